"""Waiting jobs are changed by `scontrol --uid=USER update`: in their owners' names, so that every limit holds for them.

An update by an administrator would lift the limits of the job's account and QOS from it (`ADMIN_SET_LIMIT`); in its
owner's name Slurm refuses what it would refuse its owner. Each update is one request, made as a whole or not at all.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

from slurm_energy.config import Config
from slurm_energy.daemon.doors.callers import user_id_of
from slurm_energy.daemon.pending.tracked import TrackedJob
from slurm_energy.domain.ids import JobId
from slurm_energy.domain.units import minutes_from_slurm_time
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.gres import TresRequest, gpu_demands
from slurm_energy.slurm.json_client import CommandSettings, command_environment

logger = logging.getLogger(__name__)

MAX_LINES = 50
"""Updates of one scontrol: it is killed as a whole where slurmctld hangs."""
MAX_AT_ONCE = 4
"""Processes of scontrol."""
_MAX_SAID = 65_536
_NO_TRES = frozenset({"N/A", "(null)"})
_NO_LIMIT = frozenset({"NOT_SET", "Partition_Limit"})
_NO_RIGHT = ("user id is missing", "user id missing", "security violation")
_DENIED = "access/permission denied"
_SHOWN = "JobID:32,State:32,TimeLimit:32,tres-per-job:512,tres-per-node:512,Partition:8192"
"""Of squeue: blanks between fields, and none in them."""


def missing_right(config: Config) -> str:
    """Return why this process may not change jobs in their owners' names; empty where it may."""
    user_id = os.geteuid()
    if user_id in {0, user_id_of(config.cluster.slurm_user)}:
        return ""
    return (
        f"the daemon runs as uid {user_id}: to change waiting jobs (routing.redecide) it must run as SlurmUser "
        f"{config.cluster.slurm_user} or root; nothing is changed"
    )


class JobUpdater:
    """Runs scontrol."""

    def __init__(self, config: Config, environment: Mapping[str, str] = os.environ) -> None:
        self._settings = CommandSettings.of(config)
        self._environment = command_environment(self._settings, environment)

    async def update(self, user_id: int, lines: Sequence[str]) -> str:
        """Ask for updates of one user's jobs, in order; return what scontrol said of those that were not made.

        Never raises for what Slurm says: what became of each job, the next snapshot shows.

        Raises:
            OSError: scontrol cannot be started.
            TimeoutError: it hangs; what it had sent may still be carried out.
        """
        text = "".join(f"update {line}\n" for line in lines) + "exit\n"
        said = await self._answer("scontrol", f"--uid={user_id}", "--quiet", text=text)
        return complaints(said[:_MAX_SAID], lines)

    async def unchanged(self, jobs: Mapping[JobId, TrackedJob]) -> frozenset[JobId]:
        """Return those jobs that wait, and of which Slurm shows now what the last snapshot showed.

        Raises:
            OSError: squeue cannot be started.
            TimeoutError: it hangs.
        """
        numbers = ",".join(str(number) for number in jobs)
        said = await self._answer("squeue", "--noheader", "--states=all", f"--jobs={numbers}", f"--Format={_SHOWN}")
        rows = {row[0]: row for row in map(str.split, said.splitlines()) if len(row) == len(_SHOWN.split(","))}
        return frozenset(
            number for number, job in jobs.items() if str(number) in rows and is_unchanged(job, rows[str(number)])
        )

    async def _answer(self, name: str, *arguments: str, text: str = "") -> str:
        folder = self._settings.bin_directory
        process = await asyncio.create_subprocess_exec(
            f"{folder}/{name}" if folder else name,
            *arguments,
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                said, _ = await process.communicate(text.encode("ascii"))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return said.decode("utf-8", "replace")


def is_unchanged(job: TrackedJob, row: Sequence[str]) -> bool:
    """Return whether a row of squeue shows a job that waits as it was last; a text that cannot be read is a change."""
    _, state, limit, per_job, per_node, partitions = row
    shape = job.shape
    if state != "PENDING" or tuple(partitions.split(",")) != shape.partitions:
        return False
    asked = ["" if text in _NO_TRES else text for text in (per_job, per_node)]
    try:
        minutes = shape.time_limit_minutes if limit in _NO_LIMIT else minutes_from_slurm_time(limit)
        demands = gpu_demands(TresRequest(per_job=asked[0], per_node=asked[1], nodes_min=job.request.nodes_min))
    except ValueRangeError:
        return False
    return minutes == shape.time_limit_minutes and (
        not any(asked) or sum(demand.count for demand in demands) == shape.gpus
    )


def complaints(said: str, lines: Sequence[str]) -> str:
    """Return what scontrol said beyond its prompt and the commands that it was given, which it repeats."""
    given = {"exit", "", *(f"update {line}" for line in lines)}
    messages = (line.replace("scontrol:", "").strip() for line in said.splitlines())
    return "; ".join(dict.fromkeys(line for line in messages if line not in given))


def is_right_missing(said: str) -> bool:
    """Return whether Slurm says that this process may not change jobs in others' names."""
    lowered = said.lower()
    return any(word in lowered for word in _NO_RIGHT)


def is_denied(said: str) -> bool:
    """Return whether Slurm denied a change: for want of the right, or because this job may not have it."""
    return _DENIED in said.lower()
