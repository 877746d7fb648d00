"""What a call of sbatch asks for, from command line, environment and script."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime

import pytest
from measured_data import MEASURED

from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.sbatch import SbatchJob, decide_fields, job_request, sbatch_job
from slurm_energy.slurm.sbatch_options import ENERGY_OPTIONS, script_directives, split_arguments
from slurm_energy.wire.messages import parse_submitted_job

NOW = datetime(2026, 3, 4, 12, 0, 0).timestamp()
HEADERS = MEASURED / "sbatch_headers" / "sbatch_headers.jsonl"


def make_job(*words: str, script: str | None = None, environment: Mapping[str, str] | None = None) -> SbatchJob:
    directives = None if script is None else script_directives(script)
    return sbatch_job(
        split_arguments(words, ENERGY_OPTIONS), environment or {}, directives, ENERGY_OPTIONS, script or ""
    )


def request(*words: str, script: str | None = None, environment: Mapping[str, str] | None = None) -> JobRequest:
    return job_request(make_job(*words, script=script, environment=environment), 1000, NOW)


@pytest.mark.parametrize(
    ("words", "total", "types"),
    [
        (("--gres=gpu:2",), 2, set()),
        (("--gres=gpu:a100:2",), 2, {"a100"}),
        (("--gres=gpu",), 1, set()),
        (("--gpus=4",), 4, set()),
        (("-G4",), 4, set()),
        (("--gpus=a100:2,h100:2",), 4, {"a100", "h100"}),
        (("--gpus-per-node=2", "-N2"), 4, set()),
        (("--gpus-per-task=1", "-n4"), 4, set()),
        (("--gpus-per-socket=1",), 1, set()),
        (("-N2", "--gres=gpu:4"), 8, set()),
        (("--gres=gpu:1g.10gb:3",), 3, {"1g.10gb"}),
        (("--gres=gpu:a100-sxm4-80gb:8(S:0-1)",), 8, {"a100-sxm4-80gb"}),
        (("--gres=shard:2,gpu:a100:1,nvme:5",), 1, {"a100"}),
        (("--tres-per-task=cpu=2,gres/gpu:a100=1", "-n", "3"), 3, {"a100"}),
        (("--gpus-per-task=1", "-N2", "--ntasks-per-node=4"), 8, set()),
        (("--gres=none",), 0, set()),
        ((), 0, set()),
    ],
)
def test_every_form_of_a_gpu_request_gives_the_jobs_total(words: tuple[str, ...], total: int, types: set[str]) -> None:
    found = request(*words)
    assert (found.gpu_count, set(found.gpu_types)) == (total, types)
    sent = parse_submitted_job({"uid": "1", **decide_fields(make_job(*words))})
    assert sent.complaints == ()


@pytest.mark.parametrize(
    ("text", "minutes", "field"),
    [
        ("UNLIMITED", None, "infinite"),
        ("Partition_Limit", None, None),
        ("0", None, "infinite"),
        ("1-00", 1440.0, "1440"),
        ("90", 90.0, "90"),
        ("1:30", 1.5, "2"),
        ("2-03:04:05", 3064 + 5 / 60, "3065"),
    ],
)
def test_time_limits(text: str, minutes: float | None, field: str | None) -> None:
    job = make_job("-t", text)
    assert job_request(job, 0, NOW).time_limit_minutes == minutes
    assert decide_fields(job).get("time_limit") == field


def test_command_line_wins_over_environment_and_environment_over_the_script() -> None:
    script = "#!/bin/sh\n#SBATCH -t 1 -p a -A x --gres=gpu:8\n"
    environment = {"SBATCH_TIMELIMIT": "2", "SBATCH_PARTITION": "b", "SLURM_TIMELIMIT": "9", "SBATCH_GRES": "gpu:4"}
    found = request("-t3", script=script, environment=environment)
    assert (found.time_limit_minutes, found.partitions, found.account, found.gpu_count) == (3.0, ("b",), "x", 4)


def test_an_option_takes_back_its_rival_from_a_weaker_source() -> None:
    script = "#!/bin/sh\n#SBATCH --mem=4G --exclusive\n"
    assert decide_fields(make_job("--mem-per-cpu=2G", "-s", script=script)) == {
        "name": "sbatch",
        "mem_per_cpu_mib": "2048",
    }


def test_a_whole_request_is_read() -> None:
    found = request(
        "-N2-4", "-n8", "-c4", "-pa100,a40", "--mem=64G", "-t1:00:00", "-Jtrain", "-A", "chem", "-qlong", "-Ca100&ib",
        "--prefer=nvlink",
        "-a0-9%3", "--exclusive", "--gpu-freq=1000", "--gpus-per-node=a100:2", "--reservation=r", "--energy=Saver",
        "--energy-max-slowdown=7.5%", "--energy-deadline=2026-03-05T08:00", "--energy-quiet", "job.sh", "--energy=off",
    )  # fmt: skip
    assert found == JobRequest(
        user_id=1000,
        name="train",
        account="chem",
        qos="long",
        partitions=("a100", "a40"),  # type: ignore[arg-type]  # plain texts are easier to read here
        time_limit_minutes=60.0,
        nodes_min=2,
        nodes_max=4,
        tasks=8,
        cpus_per_task=4,
        memory_per_node_mib=65536.0,
        gpus=(GpuDemand(count=4, slurm_type="a100", max_count=8),),
        features="a100&ib",
        prefer="nvlink",
        reservation="r",
        array="0-9%3",
        exclusive=True,
        gpu_frequency_given=True,
        options=EnergyOptions(
            mode=EnergyMode.SAVER,
            max_slowdown=0.075,
            deadline_seconds=datetime(2026, 3, 5, 8).timestamp(),
            quiet=True,
        ),
        submitted_at_seconds=NOW,
    )


def test_the_wire_fields_say_the_same_as_the_request() -> None:
    job = make_job(
        "-N2-4", "-n8", "-pa,b", "--mem=10000000000K", "-t90", "--gpus=a100:2,h100:1", "--gpu-freq=900", "--exclusive",
        "--prefer=nvlink",
        "--energy=observe", "--energy-max-slowdown=5%", "--energy-deadline=noon", "--energy-quiet", "x/job.sh",
    )  # fmt: skip
    assert decide_fields(job) == {
        "name": "job.sh",
        "partition": "a,b",
        "time_limit": "90",
        "min_nodes": "2",
        "max_nodes": "4",
        "num_tasks": "8",
        "mem_per_node_mib": "9765625",
        "tres_per_job": "gres/gpu:a100:2,gres/gpu:h100:1",
        "tres_freq": "gpu:900",
        "prefer": "nvlink",
        "exclusive": "1",
        "energy_mode": "observe",
        "energy_max_slowdown": "5",
        "energy_deadline": "noon",
        "energy_quiet": "1",
    }


@pytest.mark.parametrize(
    ("word", "exclusive"),
    [("--exclusive", True), ("--exclusive=topo", True), ("--exclusive=user", False), ("--exclusive=MCS", False)],
)
def test_a_job_that_shares_its_nodes_with_the_users_own_jobs_does_not_hold_them_alone(
    word: str, exclusive: bool
) -> None:
    job = make_job(word, "job.sh")
    assert job_request(job, user_id=1, now_seconds=NOW).exclusive is exclusive
    assert decide_fields(job).get("exclusive") == ("1" if exclusive else None)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("-J", "x; rm", "job.sh"), "x; rm"),
        (("--wrap=hostname",), "wrap"),
        (("a/job.sh", "-J", "y"), "job.sh"),
        ((), "sbatch"),
    ],
)
def test_the_jobs_name_is_the_one_that_sbatch_gives(words: tuple[str, ...], name: str) -> None:
    assert make_job(*words).name == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--energy=loud",), "--energy=loud is not off, observe, balanced or saver"),
        (("--energy-max-slowdown=201",), "not a percentage between 0 and 200"),
        (("--energy-max-slowdown=-1",), "not a percentage"),
        (("--energy-max-slowdown=nan",), "not a percentage"),
        (("--energy-max-slowdown=\u0665",), "not a percentage"),
        (("--mem=\u0665",), "is not a size"),
        (("--energy-deadline=someday",), "deadline 'someday'"),
        (("-N0",), "--nodes=0 has a count below 1"),
        (("-N4-2",), "reversed range"),
        (("-n", "many"), "--ntasks=many is not a whole number"),
        (("--mem=lots",), "--mem=lots is not a size"),
        (("-t", "soon"), "time 'soon'"),
        (("--gres=gpu:x:y",), "GPU request"),
    ],
)
def test_an_argument_that_cannot_be_read_is_named(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        request(*words)


def test_a_stray_word_in_a_directive_is_refused_as_sbatch_refuses_it() -> None:
    with pytest.raises(ValueRangeError, match="invalid directive found in batch script: foo"):
        request(script="#!/bin/sh\n#SBATCH foo --time=5\n")


def test_what_is_not_looked_at_is_told() -> None:
    job = make_job("-N1", ":", "-N2", "s", script="#SBATCH -t5\r\n#PBS -l nodes=4\n")
    assert [note.split(":")[0] for note in job.notes] == [
        "the script has DOS line breaks",
        "the script's first line does not begin with #!",
        "#PBS and #BSUB lines are not looked at here, though sbatch reads them",
        "heterogeneous job",
    ]


def test_every_real_header_is_read() -> None:
    counts: Counter[str] = Counter()
    for line in HEADERS.read_text(encoding="utf-8").splitlines():
        header = json.loads(line)
        found = request(script="\n".join([header["shebang"], *header["directives"], *header["launch_line"]]))
        counts["headers"] += 1
        counts["gpus"] += found.gpu_count
        counts["with time"] += found.time_limit_minutes is not None
        counts["with array"] += found.array is not None
        gres = [item for item in header["directives"] if item.startswith("#SBATCH --gres=gpu:")]
        if gres:
            per_node = int(gres[-1].split("#")[1].split(":")[-1])
            assert found.gpu_count == per_node * found.nodes_min, header["path"]
    assert counts["headers"] == 149
    assert counts["with time"] > 100
    assert counts["gpus"] > 1000
    assert counts["with array"] > 5
