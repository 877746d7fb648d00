"""Who coordinates which accounts, by Slurm's own records."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_energy.errors import SlurmError
from slurm_energy.slurm.command import run_command
from slurm_energy.slurm.json_client import CommandSettings, command_environment

logger = logging.getLogger(__name__)

KEPT_SECONDS = 300.0
"""A role that is removed ends here so much later."""
TIMEOUT_SECONDS = 10.0


class Coordinators:
    """Asks sacctmgr about a user, at most every five minutes; where it says nothing, a user sees his own jobs."""

    def __init__(
        self,
        settings: CommandSettings,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._environment = command_environment(settings, environment)
        self._clock = clock
        self._known: dict[str, tuple[float, tuple[str, ...]]] = {}

    def coordinated_by(self, user_name: str) -> tuple[str, ...]:
        """Return the accounts that a user coordinates, as Slurm counts them; none where that is not known."""
        now = self._clock()
        at, accounts = self._known.get(user_name, (now - KEPT_SECONDS, ()))
        if now - at < KEPT_SECONDS:
            return accounts
        try:
            accounts = self._ask(user_name)
        except (SlurmError, OSError) as error:
            logger.info("coordinated accounts not known user=%s error=%s", user_name, error)
            accounts = ()
        self._known[user_name] = now, accounts
        return accounts

    def _ask(self, user_name: str) -> tuple[str, ...]:
        folder = self._settings.bin_directory
        program = str(Path(folder) / "sacctmgr") if folder else "sacctmgr"
        command = [program, "-nP", "show", "user", f"name={user_name}", "withcoord", "format=user,coordinators"]
        printed: list[bytes] = []
        run_command(command, printed.append, environment=self._environment, timeout_seconds=TIMEOUT_SECONDS)
        return parse_coordinators(b"".join(printed).decode("utf-8", "replace"), user_name)


def parse_coordinators(text: str, user_name: str) -> tuple[str, ...]:
    """Return the accounts of the user's line in `user|account,account`."""
    for line in text.splitlines():
        name, _, accounts = line.partition("|")
        if name.strip() == user_name:
            return tuple(sorted({word.strip() for word in accounts.split(",") if word.strip()}))
    return ()
