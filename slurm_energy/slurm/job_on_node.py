"""Ask Slurm whether a job still holds a node: for the rare job of which no process is seen there."""

import os

from slurm_energy.domain.ids import JobId, NodeName
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.command import run_command

ANSWER_SECONDS = 10.0
_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin"
_UNKNOWN = "Invalid job id"


def job_on_node(job_id: JobId, node: NodeName, bin_directory: str, slurm_conf: str) -> str | None:
    """Return the state of the job on this node, such as RUNNING; empty when it holds it no more; None without answer.

    Args:
        job_id: Slurm's own number, of an array's task too.
        node: Slurm's name of the node.
        bin_directory: Folder of squeue; empty: found through PATH.
        slurm_conf: Path of slurm.conf; empty: Slurm's default.
    """
    name = f"{bin_directory}/squeue" if bin_directory else "squeue"
    environment = {"PATH": os.environ.get("PATH") or _PATH, "LC_ALL": "C.UTF-8"}
    if slurm_conf:
        environment["SLURM_CONF"] = slurm_conf
    asked = ["--noheader", "--states=all", f"--jobs={job_id}", f"--nodelist={node}", "--format=%A %T"]
    pieces: list[bytes] = []
    try:
        run_command([name, *asked], pieces.append, environment=environment, timeout_seconds=ANSWER_SECONDS)
    except SlurmError as error:
        return "" if _UNKNOWN in str(error) else None
    except OSError:
        return None
    lines = b"".join(pieces).decode("utf-8", "replace").splitlines()
    rows = [line.split() for line in lines if line.strip()]
    if any(len(row) != 2 or not row[0].isdecimal() for row in rows):
        return None
    # Beside the leader of an array squeue names its other tasks.
    return next((state for number, state in rows if number == str(job_id)), "")
