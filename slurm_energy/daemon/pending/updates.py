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
from slurm_energy.slurm.json_client import CommandSettings, command_environment

logger = logging.getLogger(__name__)

MAX_LINES = 50
"""Updates of one scontrol: it is killed as a whole where slurmctld hangs."""
MAX_AT_ONCE = 4
"""Processes of scontrol."""
_MAX_SAID = 65_536
_DENIED = ("access/permission denied", "user id is missing", "user id missing", "security violation")


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
        folder = self._settings.bin_directory
        program = f"{folder}/scontrol" if folder else "scontrol"
        process = await asyncio.create_subprocess_exec(
            program,
            f"--uid={user_id}",
            "--quiet",
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        text = "".join(f"update {line}\n" for line in lines) + "exit\n"
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                said, _ = await process.communicate(text.encode("ascii"))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return complaints(said[:_MAX_SAID].decode("utf-8", "replace"), lines)


def complaints(said: str, lines: Sequence[str]) -> str:
    """Return what scontrol said beyond its prompt and the commands that it was given, which it repeats."""
    given = {"exit", "", *(f"update {line}" for line in lines)}
    told = (line.replace("scontrol:", "").strip() for line in said.splitlines())
    return "; ".join(dict.fromkeys(line for line in told if line not in given))


def is_denied(said: str) -> bool:
    """Return whether Slurm says that this process may not change jobs in others' names."""
    lowered = said.lower()
    return any(word in lowered for word in _DENIED)
