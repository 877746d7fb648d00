"""How long a submission takes when the daemon is away, hangs or talks nonsense: the deadline at most, or nothing.

The jobs are held, so that their hooks and steps do not run beside what is measured.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import pytest
from energy_lab import drained
from lab_fixtures import EXACT, SMALL, lab_spec, require_lab

from slurm_energy.lab.cluster import Lab, start_lab
from slurm_energy.lab.jobs import show_job, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.alone]

DEADLINE_SECONDS = 0.050
GRACE_SECONDS = 0.010
BREAKER_SECONDS = 1.0
BREAKER_FAILURES = 3
ROUNDS = 6
"""How often all is measured again on a machine that is busy with other work."""

_TIME_SBATCH = """
import json, subprocess, sys, time
runs, argv = int(sys.argv[1]), json.loads(sys.argv[2])
for _ in range(runs):
    begin = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True)
    print(json.dumps([time.perf_counter() - begin, done.returncode, done.stdout, done.stderr]))
"""
_SBATCH = ["sbatch", "--parsable", "--hold", "-p", "a100", "--gres=gpu:1", "-t", "5", "-o", "/dev/null"]

Timed = list[tuple[float, int, str, str]]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab with the deadline that the product has by itself."""
    require_lab(energy=True)
    plugin = {"deadline_milliseconds": f"{1000 * DEADLINE_SECONDS:.0f}", "breaker_seconds": f"{BREAKER_SECONDS:g}"}
    spec = lab_spec(name=f"times-{os.getpid()}", partitions=SMALL, settings=EXACT, plugin_settings=plugin)
    with start_lab(spec, owned=True) as running:
        yield running


@pytest.fixture(scope="module")
def lab_without_daemon(lab: Lab) -> Lab:
    """The lab from which the daemon has gone for good."""
    lab.stop_daemon()
    return lab


def time_sbatch(lab: Lab, runs: int) -> Timed:
    """Return seconds, exit code, stdout and stderr of some submissions made one after the other inside the lab."""
    argv = [*_SBATCH, "--wrap", "true"]
    program = ["python3", "-c", _TIME_SBATCH, str(runs), json.dumps(argv)]
    done = lab.run(program, user="alice", check=True, timeout=60)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def rest() -> None:
    """Wait until the circuit breaker is closed."""
    time.sleep(BREAKER_SECONDS + 0.2)


@contextmanager
def daemon_replaced_by(path: Path, answer: bytes, after_seconds: float = 0.0) -> Iterator[list[bytes]]:
    """Stand at the daemon's socket and give one answer to everybody; yields what was asked."""
    asked: list[bytes] = []
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)
    server.bind(str(path))
    path.chmod(0o666)
    server.listen(16)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, suppress(BrokenPipeError):
                asked.append(connection.recv(65_536))
                time.sleep(after_seconds)
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(timeout=5)
        path.unlink(missing_ok=True)


def assert_unchanged_and_done(lab: Lab, timed: Timed) -> None:
    """Every submission was accepted without a word, and the last job runs as it came."""
    assert all(code == 0 and not said for _, code, _, said in timed)
    job = int(timed[-1][2])
    lab.run(["scontrol", "release", str(job)], check=True)
    wait_for(lab, job, {"COMPLETED"})
    shown = show_job(lab, job)
    assert shown["Partition"] == "a100"
    assert "AdminComment" not in shown
    assert drained(lab) == {}


def middle(timed: Timed) -> float:
    return median(seconds for seconds, *_ in timed)


def undisturbed(timed: Timed) -> float:
    """The lower quartile: what other work on the machine adds comes and goes, our own part would stay."""
    return sorted(seconds for seconds, *_ in timed)[len(timed) // 4]


def test_submission_does_not_wait_for_an_absent_daemon(lab: Lab) -> None:
    """Both are measured in turn and compared over all rounds: what disturbs one of them disturbs the other as well."""
    usual: Timed = []
    without: Timed = []
    for _ in range(ROUNDS):
        usual += time_sbatch(lab, 10)
        lab.stop_daemon()
        try:
            without += time_sbatch(lab, 10)
            assert_unchanged_and_done(lab, without)
        finally:
            lab.start_daemon()
        rest()
        if undisturbed(without) <= undisturbed(usual) + GRACE_SECONDS:
            return
    pytest.fail(f"{undisturbed(without):.4f} s without the daemon, {undisturbed(usual):.4f} s with it")


def test_submission_waits_no_longer_than_the_deadline_for_a_hung_daemon(lab: Lab) -> None:
    usual: Timed = []
    hung: Timed = []
    broken: Timed = []
    for _ in range(ROUNDS):
        rest()
        usual += time_sbatch(lab, 9)
        rest()  # what the plugin may answer by itself for equal jobs is over as well
        lab.pause_daemon()
        try:
            hung += time_sbatch(lab, BREAKER_FAILURES)
            broken += time_sbatch(lab, 9)
        finally:
            lab.resume_daemon()
        assert_unchanged_and_done(lab, hung)
        assert_unchanged_and_done(lab, broken)
        assert middle(hung) >= 0.8 * DEADLINE_SECONDS, "nobody waited: the daemon was not asked"
        if (
            undisturbed(hung) <= undisturbed(usual) + DEADLINE_SECONDS + GRACE_SECONDS
            and undisturbed(broken) <= undisturbed(usual) + GRACE_SECONDS
        ):
            return
    figures = f"hung {undisturbed(hung):.4f} s, breaker open {undisturbed(broken):.4f} s"
    pytest.fail(f"{figures}, usual {undisturbed(usual):.4f} s")


RIGHT = b"slurm-energy/1 ok\ndecision_id=abcdefgh\npartition=a100\nmessage=too late\nend\n"


@pytest.mark.parametrize(
    ("answer", "after_seconds"),
    [
        (b"", 0.0),
        (b"\x00" * 100, 0.0),
        (b"HTTP/1.1 200 OK\r\n\r\n", 0.0),
        (b"slurm-energy/1 ok\npartition=v100\n", 0.0),
        (b"slurm-energy/1 ok\npartition=v100;rm -rf /\nend\n", 0.0),
        (b"slurm-energy/2 ok\npartition=v100\nend\n", 0.0),
        (b"slurm-energy/1 ok\ndecision_id=abcdefgh\nentry=v=1 $(reboot)\nend\n", 0.0),
        (b"slurm-energy/1 refused\nreason=no\nend\n", 0.0),
        (b"slurm-energy/1 ok\n" + b"a=" + b"x" * 200_000 + b"\nend\n", 0.0),
        (RIGHT, 0.2),
    ],
    ids=[
        "nothing",
        "zeros",
        "http",
        "cut-off",
        "bad-partition",
        "other-version",
        "bad-entry",
        "refused",
        "huge",
        "right-but-late",
    ],
)
def test_nonsense_from_the_daemon_leaves_the_job_as_it_was(
    lab_without_daemon: Lab, answer: bytes, after_seconds: float
) -> None:
    lab = lab_without_daemon
    usual: Timed = []
    timed: Timed = []
    for _ in range(ROUNDS):
        usual += time_sbatch(lab, 7)  # nothing is there to wait for
        with daemon_replaced_by(lab.layout.plugin_socket, answer, after_seconds) as asked:
            rest()
            timed += time_sbatch(lab, BREAKER_FAILURES)
        assert asked, "the daemon was not asked"
        assert_unchanged_and_done(lab, timed)
        # The least of them: how long the middle one takes is measured with the hung daemon above.
        least = min(seconds for seconds, *_ in timed)
        if least <= middle(usual) + DEADLINE_SECONDS + GRACE_SECONDS:
            return
    pytest.fail(f"{least:.4f} s at best, usual {middle(usual):.4f} s")
