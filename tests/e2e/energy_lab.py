"""What the end-to-end tests read of a lab: stored reports, device states, what a command says on a terminal."""

import json
import re
import time
from collections.abc import Callable, Sequence
from subprocess import CompletedProcess
from typing import TypeVar

from sqlalchemy.orm import Session

from slurm_energy.config import StoreConfig
from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.domain.report import ExplainRecord
from slurm_energy.errors import StoreError
from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import show_jobs, submit
from slurm_energy.store.energy import stored_reports
from slurm_energy.store.explain import explain
from slurm_energy.store.session import open_engine, store_session

Value = TypeVar("Value")
Done = CompletedProcess[str]
ACCOUNT_SECONDS = 180.0
"""A busy machine may cut off an epilog; then the report comes with the next repair, 20 s later at least."""
DEFAULT_A100_MHZ = 1410

_ON_TERMINAL = """
import json, os, subprocess, sys
terminal, end = os.openpty()
child = subprocess.Popen(json.loads(sys.argv[1]), stdin=0, stdout=subprocess.PIPE, stderr=end, text=True)
os.close(end)
out, said = child.stdout.read(), b""
while True:
    try:
        chunk = os.read(terminal, 65536)
    except OSError:
        break
    if not chunk:
        break
    said += chunk
print(json.dumps([child.wait(), out, said.decode(errors="replace").replace("\\r\\n", "\\n")]))
"""


def on_terminal(lab: Lab, argv: Sequence[str], *, user: str = "alice", script: str | None = None) -> Done:
    """Run a command inside whose stderr is a terminal and whose stdout is not; a script is its standard input."""
    whole = ["python3", "-c", _ON_TERMINAL, json.dumps(list(argv))]
    code, out, said = json.loads(lab.run(whole, user=user, input=script, check=True).stdout)
    return CompletedProcess(args=list(argv), returncode=code, stdout=out, stderr=said)


def until(what: str, look: Callable[[], Value | None], seconds: float = ACCOUNT_SECONDS) -> Value:
    """Return what `look` returns as soon as it is neither None nor empty nor false."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"no {what} within {seconds:g} s"
        time.sleep(0.2)


def when_decided(attempt: Callable[[], Value], decided: Callable[[Value], bool]) -> Value:
    """Return the first of eight submissions that the daemon answered in time; a busy machine may miss it."""
    for _ in range(8):
        done = attempt()
        if decided(done):
            return done
        time.sleep(1.2)
    raise AssertionError(f"no submission was decided, the last gave {done}")


def submit_decided(lab: Lab, arguments: Sequence[str], *, wrap: str) -> int:
    """Submit with plain sbatch until the daemon has decided a job, and return its number; others are cancelled."""

    def attempt() -> tuple[int, bool]:
        number = submit(lab, arguments, wrap=wrap)
        decided = "AdminComment" in show_jobs(lab, number)[0]
        if not decided:
            lab.run(["scancel", str(number)])
        return number, decided

    return when_decided(attempt, lambda done: done[1])[0]


def workload(seconds_at_default: float, profile: str = "training") -> str:
    """Return a command that keeps a job's GPUs loaded for so many device seconds at the default clock."""
    return f"simgpu-workload --quiet --profile {profile} --seconds-at-default {seconds_at_default:g}"


def locked_clocks(lab: Lab) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the locked range of every GPU of the lab that has one, by node and UUID."""
    found = {}
    for node in lab.spec.node_names:
        with lab.gpu_state(node) as state:
            for gpu in state.gpus:
                locked = gpu.locked_clocks_mhz
                if locked is not None:
                    found[node, gpu.uuid] = locked
    return found


def reports(lab: Lab, job_id: int) -> tuple[NodeReport, ...]:
    """Return the reports of a job that are in the database now."""
    cluster = ClusterName(lab.spec.cluster_name)
    return _read(lab, lambda session: stored_reports(session, cluster, JobId(job_id))) or ()


def await_reports(lab: Lab, job_id: int, count: int = 1, seconds: float = ACCOUNT_SECONDS) -> tuple[NodeReport, ...]:
    """Return a job's reports once there are `count` of them."""

    def look() -> tuple[NodeReport, ...] | None:
        found = reports(lab, job_id)
        return found if len(found) >= count else None

    try:
        return until(f"{count} reports of job {job_id}", look, seconds)
    except AssertionError as error:
        error.add_note("\n".join(_said_of(lab, job_id)))
        raise


def story(lab: Lab, job_id: int) -> ExplainRecord | None:
    """Return what `slurm-energy explain` knows of a job."""
    return _read(lab, lambda session: explain(session, ClusterName(lab.spec.cluster_name), JobId(job_id)))


def _read(lab: Lab, read: Callable[[Session], Value | None]) -> Value | None:
    """Return what is read from a lab's database; None while the daemon has not made its tables yet."""
    if not lab.layout.database.is_file():
        return None  # opening it would make it, as another user than the daemon's
    engine = open_engine(StoreConfig(url=f"sqlite:///{lab.layout.database}"))
    try:
        with store_session(engine, read_only=True) as session:
            return read(session)
    except StoreError as error:
        if "no such table" in str(error):
            return None
        raise
    finally:
        engine.dispose()


def _said_of(lab: Lab, job_id: int) -> list[str]:
    """Return the lines that hooks, timers and daemons wrote about a job."""
    word = re.compile(rf"(?<!\d){job_id}(?!\d)")
    return [
        f"{path.name}: {line}"
        for path in sorted(lab.layout.log.rglob("*"))
        if path.is_file()
        for line in path.read_text(errors="replace").splitlines()
        if word.search(line)
    ][-80:]


def node_states(lab: Lab) -> dict[str, str]:
    """Return Slurm's state of every node."""
    return {node.name: node.state for node in lab.status().nodes}


def drained(lab: Lab) -> dict[str, str]:
    """Return the nodes that would take no job."""
    return {
        name: state
        for name, state in node_states(lab).items()
        if any(word in state for word in ("drain", "down", "fail", "*"))
    }
