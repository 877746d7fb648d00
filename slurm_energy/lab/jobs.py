"""Submit jobs in a lab and wait for them, for tests and the demo."""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from slurm_energy.errors import LabError

if TYPE_CHECKING:
    from slurm_energy.lab.cluster import Lab

ENDED_STATES = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
)
_POLL_SECONDS = 0.2  # each look starts scontrol inside
# Values may hold spaces: a value ends where the next Key= begins.
_FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z0-9_/:]*)=(.*?)(?=(?: [A-Z][A-Za-z0-9_/:]*=)|$)")


def submit(
    lab: "Lab",
    arguments: Sequence[str] = (),
    *,
    wrap: str | None = None,
    script: str | None = None,
    user: str = "alice",
    env: Mapping[str, str] | None = None,
) -> int:
    """Submit with plain sbatch and return the job id.

    Args:
        lab: Where.
        arguments: sbatch's options, and a script's path with its arguments when neither of the next two is given.
        wrap: A command for --wrap.
        script: Text of a script, given on standard input.
        user: Who submits.
        env: Additional variables.
    """
    wrapped = [] if wrap is None else ["--wrap", wrap]
    argv = ["sbatch", "--parsable", *arguments, *wrapped]
    done = lab.run(argv, user=user, env=env, input=script, check=True)
    return int(done.stdout.strip().partition(";")[0])


def parse_job_lines(text: str) -> list[dict[str, str]]:
    """Return the fields of each job in `scontrol show job -o`."""
    return [
        {key: value.strip() for key, value in _FIELD.findall(line)}
        for line in text.splitlines()
        if line.startswith("JobId=")
    ]


def show_jobs(lab: "Lab", job_id: int) -> list[dict[str, str]]:
    """Return what scontrol shows of a job: one row, or one for each element of an array."""
    return parse_job_lines(lab.run(["scontrol", "show", "job", "-d", "-o", str(job_id)], check=True).stdout)


def show_job(lab: "Lab", job_id: int) -> dict[str, str]:
    """Return what scontrol shows of one job.

    Raises:
        LabError: Slurm does not know it any more.
    """
    rows = show_jobs(lab, job_id)
    if not rows:
        raise LabError(f"job {job_id} is unknown in lab {lab.name}")
    return rows[0]


def wait_for(
    lab: "Lab", job_id: int, states: Collection[str] = ENDED_STATES, timeout: float = 180.0
) -> list[dict[str, str]]:
    """Wait until a job, or every element of an array, is in one of the states, and return scontrol's rows.

    Raises:
        LabError: the time is over, or the job ended in another state.
    """
    end = time.monotonic() + timeout
    while True:
        rows = show_jobs(lab, job_id)
        found = [row.get("JobState", "") for row in rows]
        if rows and all(state in states for state in found):
            return rows
        if rows and all(state in ENDED_STATES for state in found):
            raise LabError(f"job {job_id} ended as {', '.join(found)}, not as {', '.join(sorted(states))}")
        if time.monotonic() > end:
            reasons = ", ".join(sorted({row.get("Reason", "") for row in rows}))
            raise LabError(f"job {job_id} is {', '.join(found)} ({reasons}) after {timeout:g} s; see {lab.layout.log}")
        time.sleep(_POLL_SECONDS)
