"""Which way queue and nodes are read: pyslurm, slurmrestd or Slurm's commands, and why not another."""

import logging
import time
from collections.abc import Callable, Sequence

from slurm_energy.config import Config
from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.json_client import ClusterReading, CommandSettings, JsonReader, SlurmReader
from slurm_energy.slurm.pyslurm_client import PyslurmReader, bridged_series, load_pyslurm, pyslurm_release
from slurm_energy.slurm.rest_client import RestReader, RestSettings

logger = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
LOAD_SECONDS = 60.0
SLOWING = ((128, 4.0), (64, 2.0))
"""From so many of slurmctld's 256 threads on the time between two readings is so many times longer."""


class ChosenReader:
    """Reads through the first way that the configuration names or finds; where that fails, through Slurm's commands.

    The way that failed is asked again a minute later.
    """

    def __init__(
        self,
        name: str,
        reader: SlurmReader,
        commands: SlurmReader,
        note: str = "",
        clock: Callable[[], float] = time.monotonic,
        threads: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._chosen_name = name
        self._chosen = reader
        self._commands = commands
        self._chosen_note = note
        self._clock = clock
        self._threads = threads
        self._threads_due = float("-inf")
        self._busy = 1.0
        self._failed_at = float("-inf")
        self.name = name
        """Of the way used at the last reading: pyslurm, slurmrestd or commands."""
        self.note = note
        """Why it is not another one; empty where there is nothing to say."""

    def read_cluster(self) -> ClusterReading:
        """Return partitions, nodes and jobs.

        Raises:
            SlurmError: Slurm's commands gave no usable answer either.
        """
        if self._chosen is self._commands or self._clock() - self._failed_at < RETRY_SECONDS:
            return self._commands.read_cluster()
        try:
            reading = self._chosen.read_cluster()
        except SlurmError as error:
            self._failed_at = self._clock()
            self.name, self.note = "commands", str(error)
            logger.warning("Slurm's commands are read reason=%s", error)
            return self._commands.read_cluster()
        self.name, self.note = self._chosen_name, self._chosen_note
        return reading

    def slowing(self) -> float:
        """Return how many times longer to wait for the next reading; slurmctld is asked for its load once a minute."""
        if self._clock() >= self._threads_due:
            self._threads_due = self._clock() + LOAD_SECONDS
            threads = self._threads() or 0
            self._busy = next((factor for bound, factor in SLOWING if threads >= bound), 1.0)
        return self._busy

    def read_ended_jobs(self, job_ids: Sequence[JobId]) -> tuple[JobState, ...]:
        """Return what accounting knows of some jobs.

        Raises:
            SlurmError: accounting gave no usable answer in time.
        """
        if self.name == "commands":
            return self._commands.read_ended_jobs(job_ids)
        try:
            return self._chosen.read_ended_jobs(job_ids)
        except SlurmError as error:
            logger.warning("accounting is read through sacct reason=%s", error)
            return self._commands.read_ended_jobs(job_ids)


def pyslurm_is_tried(config: Config) -> bool:
    """Return whether pyslurm is imported where it fits: a crash from then on is its own."""
    reader = config.cluster.reader
    return bool(pyslurm_release()) if reader == "auto" else reader == "pyslurm"


def _pyslurm_reader(commands: JsonReader) -> PyslurmReader:
    """Return pyslurm as a reader.

    Raises:
        SlurmError: it is not installed, was made for another Slurm, or cannot be imported.
    """
    module = load_pyslurm(commands.slurm_version())
    return PyslurmReader(module, commands, layouts=not bridged_series())


def create_reader(config: Config) -> ChosenReader:
    """Return the reader that the configuration asks for; else Slurm's commands, and why.

    With `auto`: pyslurm where one is installed that was made for this Slurm, else slurmrestd where its address is set.
    """
    wanted = config.cluster.reader
    commands = JsonReader(CommandSettings.of(config))
    threads = commands.server_threads
    notes: list[str] = []
    if pyslurm_is_tried(config):
        try:
            return ChosenReader("pyslurm", _pyslurm_reader(commands), commands, threads=threads)
        except SlurmError as error:
            notes.append(str(error))
    if wanted == "slurmrestd" or (wanted == "auto" and config.cluster.slurmrestd_url):
        rest = RestReader(RestSettings.of(config), commands)
        return ChosenReader("slurmrestd", rest, commands, "; ".join(notes), threads=threads)
    if notes:
        logger.warning("Slurm's commands are read reason=%s", notes[0])
    return ChosenReader("commands", commands, commands, "; ".join(notes), threads=threads)
