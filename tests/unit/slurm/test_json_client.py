import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_energy.domain.cluster import SwitchState
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.json_client import CommandSettings, JsonReader, command_environment
from slurm_energy.slurm.reader import LOAD_SECONDS, ChosenReader

DATA = Path(__file__).parents[2] / "data" / "slurm"
PARTITIONS = "PartitionName=a100 Default=YES MaxTime=01:00:00 State=UP\n"


def commands(directory: Path, clock: Callable[[], float] = time.monotonic, **scripts: str) -> JsonReader:
    """Return a reader whose commands are these shell scripts."""
    defaults = {
        "scontrol": f"printf '{PARTITIONS}'",
        "sinfo": f"cat {DATA}/sinfo-22.05.json",
        "squeue": f"cat {DATA}/squeue-22.05-running.json",
        "sacct": f"cat {DATA}/sacct-24.11.json",
    }
    for name, script in {**defaults, **scripts}.items():
        path = directory / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {directory}/calls\n{script}\n')
        path.chmod(0o755)
    settings = CommandSettings(bin_directory=str(directory), slurm_conf="/etc/x.conf", timeout_seconds=1.0)
    return JsonReader(settings, {"PATH": "/usr/bin:/bin"}, clock)


def calls(directory: Path) -> list[str]:
    return (directory / "calls").read_text().splitlines()


def test_a_cluster_is_read_with_one_call_of_each_command(tmp_path: Path) -> None:
    reading = commands(tmp_path).read_cluster()
    assert [partition.name for partition in reading.partitions] == ["a100"]
    assert [node.name for node in reading.nodes] == ["n1", "n2"]
    assert len(reading.jobs) == 6
    assert reading.skipped == {}
    assert calls(tmp_path) == [
        "scontrol --all show partition -o",
        "sinfo --json --all",
        "squeue --json --all --states=all",
        "scontrol show topology",
    ]
    assert reading.switches == ()
    assert all(node.switch is None for node in reading.nodes)


class Clock:
    """A clock that a test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_topology_is_asked_for_every_ten_minutes_and_tells_each_node_s_switch(tmp_path: Path) -> None:
    line = "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]"
    script = f"""case "$*" in *topology) echo '{line}';; *) printf '{PARTITIONS}';; esac"""
    clock = Clock()
    reader = commands(tmp_path, clock, scontrol=script)
    for seconds in (0.0, 10.0, 599.0, 600.0):
        clock.seconds = seconds
        reading = reader.read_cluster()
        assert [node.switch for node in reading.nodes] == ["s1", "s1"]
        assert reading.switches == (SwitchState(name="s1"),)
    assert calls(tmp_path).count("scontrol show topology") == 2


def test_a_topology_that_cannot_be_read_fails_no_reading_and_keeps_what_was_known(tmp_path: Path) -> None:
    script = f"""case "$*" in *topology) cat {tmp_path}/topology;; *) printf '{PARTITIONS}';; esac"""
    clock = Clock()
    reader = commands(tmp_path, clock, scontrol=script)
    assert reader.read_cluster().switches == ()
    (tmp_path / "topology").write_text("SwitchName=s1 Level=0 Nodes=n[1-2]\n")
    clock.seconds = 700.0
    assert reader.read_cluster().switches == (SwitchState(name="s1"),)
    (tmp_path / "topology").unlink()
    clock.seconds = 1400.0
    assert reader.read_cluster().switches == (SwitchState(name="s1"),)
    assert calls(tmp_path).count("scontrol show topology") == 3


def test_newer_slurm_is_asked_for_nodes_through_scontrol_from_then_on(tmp_path: Path) -> None:
    script = f"case $3 in partition) printf '{PARTITIONS}';; nodes) cat {DATA}/nodes-25.11.json;; esac"
    reader = commands(tmp_path, sinfo="""echo '{"sinfo": [], "errors": []}'""", scontrol=script)
    assert len(reader.read_cluster().nodes) == 6
    reader.read_cluster()
    assert [call for call in calls(tmp_path) if call.startswith("sinfo")] == ["sinfo --json --all"]
    assert calls(tmp_path).count("scontrol --all show nodes --json") == 2


def test_skipped_rows_are_counted_by_kind_and_reason(tmp_path: Path) -> None:
    reader = commands(tmp_path, squeue="""echo '{"jobs": [{"job_state": "?"}, 5]}'""")
    assert reader.read_cluster().skipped == {"job: no known state": 1, "job: not an object": 1}


def test_a_name_that_is_no_utf8_costs_neither_the_reading_nor_its_own_row(tmp_path: Path) -> None:
    """A user may name a job with any bytes, and Slurm prints them as they are."""
    row = json.dumps(json.loads((DATA / "squeue-22.05-running.json").read_text())["jobs"][0] | {"name": "NAME"})
    (tmp_path / "answer").write_bytes(
        b'{"jobs": [' + row.encode().replace(b"NAME", b"caf\xe9\x01") + b'], "errors": []}'
    )
    (job,) = commands(tmp_path, squeue=f"cat {tmp_path}/answer").read_cluster().jobs
    assert job.name.startswith("caf\ufffd")


def test_a_command_s_own_error_is_told_before_what_is_wrong_with_its_answer(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="ended with 1: no contact"):
        commands(tmp_path, squeue="echo '{\"jobs\": [nonsense'; echo 'no contact' >&2; exit 1").read_cluster()


def test_accounting_is_asked_for_all_jobs_at_once(tmp_path: Path) -> None:
    jobs = commands(tmp_path).read_ended_jobs([JobId(5), JobId(6)])
    assert len(jobs) == 4
    assert calls(tmp_path) == ["sacct --json --duplicates --allusers --jobs=5,6"]


def test_a_command_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    reader = commands(tmp_path, squeue="exec sleep 600")
    began = time.monotonic()
    with pytest.raises(SlurmError, match="squeue --json --all --states=all gave no answer within 1 s"):
        reader.read_cluster()
    assert time.monotonic() - began < 300.0


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "ended with 1: slurm_load"),
        ("echo 'Segmentation fault'", "printed no JSON"),
        ("""echo '{"jobs": null}'""", "no list 'jobs'"),
        ("printf '['; head -c 5000 /dev/zero | tr '\\0' '['", "printed no JSON"),
        ("true", "printed no JSON"),
    ],
)
def test_a_command_that_fails_or_answers_nonsense_is_our_own_error(tmp_path: Path, script: str, complaint: str) -> None:
    with pytest.raises(SlurmError, match=complaint):
        commands(tmp_path, squeue=script).read_cluster()


def test_a_missing_command_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match=r"set cluster\.slurm_bin_directory"):
        JsonReader(CommandSettings(bin_directory=str(tmp_path))).read_cluster()


def test_commands_see_the_configured_slurm_and_nothing_that_changes_their_output() -> None:
    environment = {"PATH": "", "SQUEUE_FORMAT": "%i", "SLURM_CONF": "/etc/other.conf", "TZ": "UTC", "SECRET": "x"}
    chosen = command_environment(CommandSettings(slurm_conf="/etc/slurm.conf"), environment)
    assert chosen == {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin",
        "LC_ALL": "C.UTF-8",
        "SLURM_TIME_FORMAT": "standard",
        "SLURM_CONF": "/etc/slurm.conf",
        "TZ": "UTC",
    }


def test_real_answers_are_what_the_commands_print(tmp_path: Path) -> None:
    document = json.loads((DATA / "squeue-22.05-running.json").read_text())
    jobs = commands(tmp_path).read_cluster().jobs
    assert {job.job_id for job in jobs} == {row["job_id"] for row in document["jobs"]}


SDIAG = "Server thread count:  %s\nRPC queue enabled:    0\nAgent queue size:     0\n"


@pytest.mark.parametrize(("said", "threads"), [(SDIAG % "70", 70), (SDIAG % "3 (max 256)", 3), ("", None)])
def test_sdiag_says_how_many_requests_slurmctld_is_at(tmp_path: Path, said: str, threads: int | None) -> None:
    assert commands(tmp_path, sdiag=f"cat <<'END'\n{said}\nEND").server_threads() == threads


def test_without_an_answer_of_sdiag_no_load_is_known(tmp_path: Path) -> None:
    assert commands(tmp_path, sdiag="exit 1").server_threads() is None


@pytest.mark.parametrize(
    ("threads", "slowing"), [(None, 1.0), (63, 1.0), (64, 2.0), (127, 2.0), (128, 4.0), (256, 4.0)]
)
def test_a_busy_slurmctld_is_read_more_rarely_and_asked_for_its_load_once_a_minute(
    tmp_path: Path, threads: int | None, slowing: float
) -> None:
    clock, asked = Clock(), []

    def load() -> int | None:
        asked.append(clock.seconds)
        return threads

    own = commands(tmp_path)
    reader = ChosenReader("commands", own, own, clock=clock, threads=load)
    for clock.seconds in (0.0, 30.0, LOAD_SECONDS):
        assert reader.slowing() == slowing
    assert asked == [0.0, LOAD_SECONDS]
