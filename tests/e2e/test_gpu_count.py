"""Other numbers of GPUs on a real slurmctld: every form of request, fewer and more, seen alike by script and srun."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from energy_lab import drained, on_terminal, story, submit_decided, until, when_decided
from lab_fixtures import EXACT, PATIENT, StartLab, lab_spec, require_lab

from slurm_energy.domain.report import DecisionRecord
from slurm_energy.lab.cluster import Lab, PartitionSpec, start_lab
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent
PARTITIONS = (
    PartitionSpec(name="a100", nodes=2, gpus_per_node=8),
    PartitionSpec(name="short", nodes=1, gpus_per_node=8, gpu_type="a40", max_time_minutes=60),
)
RANGE = "--energy-gpus=1-16"
FORMS: list[tuple[str, list[int]]] = [
    ("--gres=gpu:4", [1, 2, 3, 8]),
    ("--gres=gpu:a100:4", [2, 8]),
    ("--gres=gpu:4 -N1 -n4", [2, 8]),
    ("--gres=gpu:4 -N1 -c2", [2, 8]),
    ("--gres=gpu:8 -N1 --ntasks-per-node=8", [1, 4]),
    ("--gpus=4", [2, 8]),
    ("--gpus=a100:4", [2, 8]),
    ("--gpus=4 -n4", [2]),
    ("--gpus=4 -N1 -n4", [2, 8]),
    ("--gpus=2 -N2 -n2", [1]),
    ("--gpus=2 -N1 --ntasks-per-node=4", [1, 4]),
    ("--gpus=4 -N1 --cpus-per-gpu=1", [2, 8]),
    ("--gpus=4 -N1 --mem-per-gpu=100", [2, 8]),
    ("--gpus=4 --ntasks-per-gpu=1", [2]),
    ("--gpus=4 -N1 --ntasks-per-gpu=2", [2, 8]),
    ("-N1 -n4 --ntasks-per-gpu=1", [2, 8]),
    ("-N1 -n4 --gpus-per-task=1", [2, 8]),
    ("-N1 -n2 --gpus-per-task=a100:2", [2, 8]),
    ("--gpus-per-node=4 -N1", [2, 8]),
    ("--gpus-per-node=4 -N1 --ntasks-per-node=4 --mem=1000", [2, 8]),
    ("--gpus-per-node=4 -N2", [2, 4]),
    ("--gpus-per-node=a100:4 -N2 --ntasks-per-node=4", [2, 4]),
    ("--gpus-per-node=4 -N2 --ntasks-per-node=1", [2, 4]),
]
"""Requests of a job, and other numbers of GPUs for it."""
SHORT = [
    (form, counts if row == 0 else counts[row // 2 % len(counts) :][:1])
    for row, (form, counts) in enumerate(FORMS)
    if row % 2 == 0 or "--cpus-per-gpu" in form
]
"""Every other form with one number, fewer and more in turn, the first with all; SLURM_ENERGY_TRIAL=long takes all."""
CASES = FORMS if os.environ.get("SLURM_ENERGY_TRIAL") == "long" else SHORT
REFUSED = [
    ("--gres=gpu:4 --exclusive", "whole nodes"),
    ("--gres=gpu:4 -w a100-1", "names its nodes"),
    ("--gpus=4 --gpus-per-socket=4 --sockets-per-node=1 -N1", "by socket"),
    ("--gres=gpu:4 --switches=1", "limits its switches"),
    ("--gpus=4 -n6", "no multiple"),
    ("--gpus=4 -N1-2", "range of nodes"),
    ("--gres=gpu:4 --time-min=5", "least time"),
    ("--gres=gpu:4 --gpu-bind=map_gpu:0,1", "by number"),
    ("--gres=gpu:4 --hint=nomultithread", "threads of a core"),
    ("--gres=gpu:4 --contiguous", "side by side"),
    ("--gres=gpu:4 --mincpus=8", "--mincpus"),
]
"""Requests whose number of GPUs stays, and a part of the reason."""
SEES = """#!/bin/sh
echo "batch gpus=$SLURM_ENERGY_GPUS asked=$SLURM_ENERGY_GPUS_ASKED tasks=${SLURM_NTASKS:-none} nodes=$SLURM_NNODES"
echo "names $SLURM_GPUS $SLURM_GPUS_PER_NODE $SLURM_NTASKS_PER_NODE"
srun -l sh -c 'echo "step $SLURM_PROCID $SLURM_NODEID $CUDA_VISIBLE_DEVICES $SLURM_NTASKS"' || echo STEP FAILED
echo "steps $(srun -l env | grep -c SLURM_PROCID)"
"""


@pytest.fixture(scope="module")
def counting_lab() -> Iterator[Lab]:
    """A lab whose daemon gives a job the number of GPUs that its name says."""
    require_lab(energy=True)
    spec = lab_spec(
        name=f"counts-{os.getpid()}",
        partitions=PARTITIONS,
        daemon=False,
        settings=EXACT,
        plugin_settings=PATIENT,
    )
    with start_lab(spec, owned=True) as lab, CountingDaemon(lab):
        yield lab


class CountingDaemon:
    """The daemon that chooses by names, while it lasts."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def __enter__(self) -> "CountingDaemon":
        as_slurm = ["setpriv", "--reuid", "slurm", "--regid", "slurm", "--init-groups", "--"]
        program = [sys.executable, str(HERE / "daemon_with_counts.py"), str(self._lab.layout.energy_config)]
        argv, environment = self._lab.command([*as_slurm, *program])
        self._log = (self._lab.layout.log / "energyd.log").open("a")
        self.process = subprocess.Popen(
            argv, env={**environment, "PYTHONPATH": str(HERE)}, stdout=self._log, stderr=self._log
        )
        self._lab.await_daemon()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=120)
        self._log.close()


def counted(lab: Lab, count: int, arguments: Sequence[str], script: str = SEES) -> int:
    return when_decided(
        lambda: submit(lab, ["-J", f"count-{count}", "-t", "20", "-o", "count-%j", *arguments], script=script),
        lambda job_id: "AdminComment" in show_job(lab, job_id),
    )


def printed(lab: Lab, job_id: int) -> str:
    return (lab.layout.home("alice") / f"count-{job_id}").read_text()


def decision_of(lab: Lab, job_id: int) -> DecisionRecord:
    def look() -> DecisionRecord | None:
        record = story(lab, job_id)
        return None if record is None else record.decision

    return until(f"decision of job {job_id}", look)


def gpus_of(row: dict[str, str]) -> int:
    """Return how many GPUs Slurm gave a job, over its nodes."""
    return int(row["JOB_GRES"].rpartition(":")[2])


def expected_tasks(form: str, count: int, asked: int) -> int | None:
    """Return how many tasks srun starts: as many for each GPU, one for each node, or one."""
    words = form.replace("=", " ").split()
    if "--gpus-per-task" in words:
        return count // int(words[words.index("--gpus-per-task") + 1].rpartition(":")[2])
    if "--ntasks-per-gpu" in words:
        return count * int(words[words.index("--ntasks-per-gpu") + 1])
    per_node = int(words[words.index("--ntasks-per-node") + 1]) if "--ntasks-per-node" in words else 0
    nodes = 2 if "-N2" in words else 1
    named = next((int(word[2:]) for word in words if word.startswith("-n")), per_node * nodes)
    return named * count // asked if named > nodes else 1


def test_the_short_form_takes_every_option_that_asks_for_gpus_and_both_fewer_and_more() -> None:
    every = dict(FORMS)
    assert all(counts and set(counts) <= set(every[form]) for form, counts in SHORT)
    assert gpu_options(form for form, _ in SHORT) == gpu_options(every)
    numbers = [count for _, counts in SHORT for count in counts]
    assert min(numbers.count(2), numbers.count(8)) >= 2


def gpu_options(forms: Iterable[str]) -> set[str]:
    return {word.partition("=")[0] for form in forms for word in form.split() if "gpu" in word or "gres" in word}


@pytest.mark.parametrize(("form", "counts"), CASES, ids=[f"{form}->{counts}" for form, counts in CASES])
def test_script_and_steps_see_the_number_that_slurm_gives(counting_lab: Lab, form: str, counts: list[int]) -> None:
    jobs = [(count, counted(counting_lab, count, [RANGE, *form.split(), "-p", "a100"])) for count in counts]
    for count, job_id in jobs:
        rows = wait_for(counting_lab, job_id, {"COMPLETED"}, timeout=300)
        said = printed(counting_lab, job_id)
        asked = int(said.partition("asked=")[2].split()[0])
        assert said.startswith(f"batch gpus={count} asked={asked} "), said
        assert gpus_of(rows[0]) == count, rows
        assert "STEP FAILED" not in said
        steps = re.findall(r"^ *\d+: step (\d+) (\d+) (\S*) (\d+)$", said, re.MULTILINE)
        tasks = expected_tasks(form, count, asked)
        assert len(steps) == tasks == int(said.rpartition("steps ")[2]), said
        assert {int(step[3]) for step in steps} == {tasks}
        seen = {(node, gpu) for _, node, devices, _ in steps for gpu in devices.split(",") if gpu}
        assert len(seen) in {0, count}, said  # srun leaves the variable empty for a type by task, whoever asks
        minutes = -(-20 * asked // count) if count < asked else 20
        assert rows[0]["TimeLimit"] == f"{minutes // 60:02}:{minutes % 60:02}:00"


def as_submitted(lab: Lab, arguments: Sequence[str], script: str = SEES) -> dict[str, str]:
    """Return what scontrol shows of a held job, without what differs for each job; the job is cancelled."""
    job_id = submit(lab, ["--hold", "-t", "20", "-J", "count-2", "-o", "/dev/null", *arguments], script=script)
    shown = show_job(lab, job_id)
    lab.run(["scancel", str(job_id)], check=True)
    for name in ("JobId", "SubmitTime", "EligibleTime", "AccrueTime", "LastSchedEval", "Priority", "StdErr"):
        shown.pop(name, None)
    return shown


@pytest.mark.parametrize(("form", "why"), REFUSED, ids=[form for form, _ in REFUSED])
def test_a_job_whose_number_cannot_change_is_what_it_was_and_its_user_learns_why(
    counting_lab: Lab, form: str, why: str
) -> None:
    lab, arguments = counting_lab, form.split()
    plain = as_submitted(lab, arguments)
    ranged = when_decided(lambda: as_submitted(lab, [RANGE, *arguments]), lambda shown: "AdminComment" in shown)
    assert ranged.pop("AdminComment").startswith("energy:")
    plain.pop("AdminComment", None)
    assert ranged == plain
    job_id = counted(lab, 2, [RANGE, *arguments, "--hold"])
    decision = decision_of(lab, job_id)
    assert decision.gpus is None
    assert any(why in note for note in decision.notes), decision.notes
    assert "GPU_COUNT_REFUSED" in {reason.code for reason in decision.reasons}
    lab.run(["scancel", str(job_id)])


def test_numbers_in_the_script_and_a_range_without_the_jobs_own_keep_it(counting_lab: Lab) -> None:
    lab = counting_lab
    for option, script in ((RANGE, "#!/bin/sh\nsrun -n 4 true\n"), ("--energy-gpus=1,2,8", SEES)):
        job_id = counted(lab, 2, [option, "--gres=gpu:4", "-p", "a100"], script)
        assert gpus_of(wait_for(lab, job_id, {"COMPLETED", "FAILED"}, timeout=300)[0]) == 4
        assert decision_of(lab, job_id).gpus is None


def test_fewer_gpus_are_not_given_where_their_longer_time_is_over_a_partitions(counting_lab: Lab) -> None:
    lab = counting_lab
    job_id = counted(lab, 2, [RANGE, "--gres=gpu:4", "-p", "a100,short", "-t", "60"])
    rows = wait_for(lab, job_id, {"COMPLETED"}, timeout=300)
    assert (gpus_of(rows[0]), rows[0]["TimeLimit"]) == (4, "01:00:00")
    assert decision_of(lab, job_id).gpus == 4
    job_id = counted(lab, 3, ["--energy-gpus=3,4", "--gres=gpu:4", "-p", "a100,short", "-t", "60"])
    wait_for(lab, job_id, {"COMPLETED"}, timeout=300)
    assert "GPU_COUNT_REFUSED" in {reason.code for reason in decision_of(lab, job_id).reasons}


def test_salloc_and_srun_keep_their_number(counting_lab: Lab) -> None:
    for command in (["srun"], ["salloc", "-Q"]):
        argv = [*command, RANGE, "-J", "count-2", "--gres=gpu:4", "-p", "a100", "sh", "-c", "echo $SLURM_GPUS_ON_NODE"]
        done = counting_lab.run(argv, user="alice", timeout=60, check=True)
        assert done.stdout.split() in (["4"], [])


def test_an_array_has_one_number_for_all_its_tasks(counting_lab: Lab) -> None:
    job_id = counted(counting_lab, 2, [RANGE, "--gres=gpu:4", "-p", "a100", "--array=1-3"])
    rows = wait_for(counting_lab, job_id, {"COMPLETED"}, timeout=300)
    assert [gpus_of(row) for row in rows] == [2, 2, 2]


def test_a_range_in_slurms_own_option_stays_its_error(counting_lab: Lab) -> None:
    refused = ["sbatch", "--gpus=2-8", "-p", "a100", "-J", "refused-range"]
    done = on_terminal(counting_lab, refused, script=SEES)
    assert done.returncode != 0
    assert "energy" not in done.stderr
    after = counted(counting_lab, 2, [RANGE, "--gres=gpu:4", "-p", "a100", "--hold"])
    decision_of(counting_lab, after)  # what was decided before is stored by now
    shown = json.loads(counting_lab.run(["slurm-energy", "decisions", "--json"], check=True).stdout)
    assert shown
    assert "refused-range" not in {one["asked"]["name"] for one in shown}


def test_explain_and_the_line_at_submission_say_how_many_and_why(counting_lab: Lab) -> None:
    lab = counting_lab
    argv = ["energy-sbatch", RANGE, "--gres=gpu:4", "-p", "a100", "-t", "20", "-J", "count-2", "-o", "/dev/null"]
    done = when_decided(lambda: on_terminal(lab, argv, script=SEES), lambda one: "energy" in one.stderr)
    assert "2 instead of 4 GPUs (" in done.stderr
    plain = when_decided(
        lambda: on_terminal(lab, ["sbatch", *argv[1:]], script=SEES), lambda one: "energy" in one.stderr
    )
    assert "another number of GPUs" in plain.stderr
    assert not re.search(r"\d", plain.stderr)
    job_id = int(done.stdout.split()[-1])
    assert decision_of(lab, job_id).gpus == 2
    told = lab.run(["slurm-energy", "explain", str(job_id)], check=True).stdout
    assert "2 GPUs, 4 asked for" in told
    assert "may run with 1, 2, 3, 4" in told


def test_a_later_change_of_a_waiting_job_reaches_its_script(counting_lab: Lab) -> None:
    lab = counting_lab
    job_id = counted(lab, 4, [RANGE, "--gpus-per-node=4", "-N1", "-n4", "-p", "a100", "--hold"])
    change = [f"JobId={job_id}", "TresPerNode=gres:gpu:2", "NumTasks=2", "NumCPUs=2"]
    lab.run(["scontrol", "update", *change], check=True)
    lab.run(["scontrol", "release", str(job_id)], check=True)
    rows = wait_for(lab, job_id, {"COMPLETED"}, timeout=300)
    said = printed(lab, job_id)
    assert gpus_of(rows[0]) == 2
    assert said.startswith("batch gpus=2 asked=4 tasks=2 "), said
    assert "names  2 " in said


def test_a_job_that_is_submitted_inside_a_counted_one_is_its_own(counting_lab: Lab) -> None:
    lab = counting_lab
    inner = "printf '#!/bin/sh\\necho inner ${SLURM_ENERGY_GPUS:-none} $SLURM_NTASKS; srun -l true || echo FAILED\\n'"
    options = "-J inner -p a100 -N1 -n2 --gpus=1 -t 5 -o count-%j"
    script = f"#!/bin/sh\n{inner} > inner.$SLURM_JOB_ID\nsbatch --parsable {options} inner.$SLURM_JOB_ID\n"
    outer = counted(lab, 2, [RANGE, "--gpus=4", "-N1", "-p", "a100"], script)
    wait_for(lab, outer, {"COMPLETED"}, timeout=300)
    job_id = int(printed(lab, outer).split()[-1])
    wait_for(lab, job_id, {"COMPLETED"}, timeout=300)
    assert printed(lab, job_id).split() == ["inner", "none", "2"]


def test_without_the_daemon_and_through_its_death_jobs_run_as_they_are(counting_lab: Lab) -> None:
    """The last of the file: the daemon is another one afterwards."""
    lab = counting_lab
    for line in Path(lab.layout.log / "energyd.log").read_text().splitlines():
        assert "Traceback" not in line
    arguments = ["-J", "count-2", "-t", "20", "-p", "a100", RANGE, "--gres=gpu:4", "-o", "count-%j"]
    jobs = [submit(lab, arguments, script=SEES) for _ in range(3)]
    for number in lab.run(["pgrep", "-f", "daemon_with_counts"], check=True).stdout.split():  # in the lab's own PIDs
        lab.run(["kill", "-9", number])
    jobs += [submit(lab, arguments, script=SEES) for _ in range(3)]
    found = [gpus_of(wait_for(lab, job_id, {"COMPLETED"}, timeout=300)[0]) for job_id in jobs]
    assert found[-1] == 4
    assert set(found) <= {2, 4}
    assert not any("STEP FAILED" in printed(lab, job_id) for job_id in jobs)
    assert not drained(lab)


def test_two_runs_with_two_numbers_of_gpus_decide_the_third(new_lab: StartLab) -> None:
    """The installed rule, without any help: work that four GPUs do not make faster gets one."""
    lab = new_lab(partitions=PARTITIONS[:1], energy=True)
    for gpus in (2, 4):
        job_id = submit_decided(lab, ["-J", "same", f"--gpus={gpus}", "-N1", "-t", "10"], wrap="sleep 4")
        wait_for(lab, job_id, {"COMPLETED"})

    def third() -> DecisionRecord | None:
        arguments = ["-J", "same", "--gpus=4", "-N1", "-t", "10", "--energy-gpus=1,2,4", "--hold"]
        decision = decision_of(lab, submit_decided(lab, arguments, wrap="true"))
        return decision if any("by runs of this name on 2, 4" in note for note in decision.notes) else None

    assert until("decision by runs", third).gpus == 1


LIMITS: list[tuple[str, str, int, int]] = [
    ("account grp GrpTRES=gres/gpu=6", "-A grp", 8, 4),
    ("account grp2 GrpTRES=gres/gpu=6", "-A grp2", 2, 2),
    ("qos job MaxTRESPerJob=gres/gpu=4", "-A plain -q job", 8, 4),
    ("qos job2 MaxTRESPerJob=gres/gpu=4", "-A plain -q job2", 2, 2),
    ("qos wall MaxWall=20", "-A plain -q wall", 2, 4),
    ("qos mins MaxTRESMinsPerJob=gres/gpu=200", "-A plain -q mins", 2, 4),
    ("qos few MinTRESPerJob=gres/gpu=4", "-A plain -q few", 2, 4),
    ("qos free", "-A plain -q free", 8, 8),
]
"""A limit, the job's options with it, the number of GPUs that is chosen, and the number with which the job runs."""


def test_under_real_accounting_limits_every_resized_job_runs_as_the_asked_one_would(new_lab: StartLab) -> None:
    lab = new_lab(
        partitions=PARTITIONS[:1],
        energy=True,
        daemon=False,
        accounting=True,
        slurm_conf_lines=("AccountingStorageEnforce=associations,limits,qos",),
    )
    admin = ["sacctmgr", "-i"]
    lab.run([*admin, "add", "account", "plain"], check=True)
    lab.run([*admin, "add", "user", "alice", "account=plain"], check=True)
    for limit, _, _, _ in LIMITS:
        lab.run([*admin, "add", *limit.split()], check=True)
        kind, name = limit.split()[:2]
        if kind == "account":
            lab.run([*admin, "add", "user", "alice", f"account={name}", "DefaultQOS=normal"], check=True)
        else:
            lab.run([*admin, "modify", "user", "alice", "where", "account=plain", "set", f"qos+={name}"], check=True)
    shown = ["scontrol", "-o", "show", "assoc_mgr", "users=alice", "flags=assoc"]
    until("alice's associations in slurmctld", lambda: "Account=grp2" in lab.run(shown, check=True).stdout)
    with CountingDaemon(lab):
        jobs = [
            counted(lab, count, [RANGE, "--gpus=4", "-N1", "-p", "a100", *given.split()], script="#!/bin/sh\ntrue\n")
            for _, given, count, _ in LIMITS
        ]
        rows = [wait_for(lab, job_id, {"COMPLETED"}, timeout=300)[0] for job_id in jobs]
    found = [(limit, gpus_of(row)) for (limit, _, _, _), row in zip(LIMITS, rows, strict=True)]
    assert found == [(limit, gpus) for limit, _, _, gpus in LIMITS]
    assert not drained(lab)
