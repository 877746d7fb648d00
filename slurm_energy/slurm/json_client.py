"""Slurm's own commands with `--json`: the reader that works with every release."""

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterState, JobState, NodeState, PartitionState, SwitchState
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.command import JsonRows, run_command
from slurm_energy.slurm.conversion import Conversion, Converted, rows_of
from slurm_energy.slurm.convert_accounting import convert_accounted_job
from slurm_energy.slurm.convert_cluster import Topology, convert_node, convert_partitions, convert_topology
from slurm_energy.slurm.convert_job import convert_job


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReading:
    """One reading of the whole cluster; finished jobs that Slurm still remembers are in it."""

    partitions: tuple[PartitionState, ...]
    nodes: tuple[NodeState, ...]
    jobs: tuple[JobState, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Rows that could not be read, by reason."""
    switches: tuple[SwitchState, ...] = ()
    """Empty where the topology is not known."""
    clusters: tuple[ClusterState, ...] = ()
    """Empty where nothing states budgets and readings of the whole cluster."""


class SlurmReader(Protocol):
    """Reads the state of a cluster."""

    def read_cluster(self) -> ClusterReading:
        """Return partitions, nodes and jobs.

        Raises:
            SlurmError: Slurm gave no usable answer in time.
        """
        ...

    def read_ended_jobs(self, job_ids: Sequence[JobId]) -> tuple[JobState, ...]:
        """Return what accounting knows of jobs that left slurmctld's memory; all attempts, in no order.

        Raises:
            SlurmError: accounting gave no usable answer in time.
        """
        ...


_Item = TypeVar("_Item")

logger = logging.getLogger(__name__)

ACCOUNTING_CHUNK = 500
TOPOLOGY_INTERVAL_SECONDS = 600.0
_SHOWN_BYTES = 120
_THREADS = re.compile(r"^Server thread count:\s*([0-9]{1,6})\b", re.MULTILINE)
_REPEATED = frozenset({"squeue", "sinfo", "scontrol"})
"""Commands whose answers are mostly what they were at the reading before."""
_FALLBACK_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """How Slurm's commands are run."""

    bin_directory: str = ""
    slurm_conf: str = ""
    timeout_seconds: float = 30.0

    @classmethod
    def of(cls, config: Config) -> "CommandSettings":
        """Return the settings of an installation."""
        return cls(
            bin_directory=config.cluster.slurm_bin_directory,
            slurm_conf=config.cluster.slurm_conf,
            timeout_seconds=config.daemon.command_timeout_seconds,
        )


class JsonReader:
    """Reads through squeue, sinfo, scontrol and sacct; one call each, whatever the number of jobs."""

    def __init__(
        self,
        settings: CommandSettings,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._topology = Topology()
        self._topology_due = float("-inf")
        self._environment = command_environment(settings, environment)
        self._nodes_through_scontrol = False
        self._known: dict[tuple[str, str], dict[bytes, Any]] = {}
        """What the rows of the last answers were converted to, by command and key."""

    def read_cluster(self) -> ClusterReading:
        """Return partitions, nodes and jobs.

        Raises:
            SlurmError: a command failed, hung, or answered something else than expected.
        """
        partitions = self.read_partitions()
        nodes = self._read_nodes()
        return self.reading(partitions, nodes, self.read_jobs())

    def read_jobs(self, job_ids: Sequence[JobId] = ()) -> Converted[JobState]:
        """Return these jobs, all of them where none is named.

        Raises:
            SlurmError: squeue failed or hung, or knows none of those that are named.
        """
        named = [f"--jobs={','.join(map(str, job_ids))}"] if job_ids else []
        return self._rows("jobs", convert_job, "squeue", "--json", "--all", "--states=all", *named)

    def read_partitions(self) -> Converted[PartitionState]:
        """Return the partitions; `scontrol` alone tells every release's whole settings of them.

        Raises:
            SlurmError: scontrol failed or hung.
        """
        return convert_partitions(self._text("scontrol", "--all", "show", "partition", "-o"))

    def reading(
        self, partitions: Converted[PartitionState], nodes: Converted[NodeState], jobs: Converted[JobState]
    ) -> ClusterReading:
        """Return what was read, in whichever way, as one reading with the switches that the nodes hang on."""
        skipped: Counter[str] = Counter()
        for kind, reasons in (("partition", partitions), ("node", nodes), ("job", jobs)):
            skipped.update({f"{kind}: {reason}": count for reason, count in reasons.skipped.items()})
        topology = self._read_topology()
        return ClusterReading(
            partitions=partitions.items,
            nodes=_with_switches(nodes.items, topology),
            jobs=jobs.items,
            skipped=dict(skipped),
            switches=topology.switches,
        )

    def slurm_version(self) -> str:
        """Return what Slurm's commands say of their release, such as `slurm 25.11.2`.

        Raises:
            SlurmError: they cannot be run.
        """
        return self._text("scontrol", "--version").strip()[:_SHOWN_BYTES]

    def server_threads(self) -> int | None:
        """Return how many requests slurmctld is at, of 256 at most, as sdiag says; None where it does not say."""
        try:
            found = _THREADS.search(self._text("sdiag"))
        except SlurmError as error:
            logger.debug("sdiag not read error=%s", error)
            return None
        return None if found is None else int(found.group(1))

    def read_ended_jobs(self, job_ids: Sequence[JobId]) -> tuple[JobState, ...]:
        """Return what accounting knows of some jobs.

        Raises:
            SlurmError: sacct failed, hung, or answered something else than expected.
        """
        found: list[JobState] = []
        for begin in range(0, len(job_ids), ACCOUNTING_CHUNK):
            numbers = ",".join(str(job_id) for job_id in job_ids[begin : begin + ACCOUNTING_CHUNK])
            command = ("sacct", "--json", "--duplicates", "--allusers", f"--jobs={numbers}")
            found += self._rows("jobs", convert_accounted_job, *command).items
        return tuple(found)

    def _read_nodes(self) -> Converted[NodeState]:
        if not self._nodes_through_scontrol:
            answer = self._answer("nodes", convert_node, "sinfo", "--json", "--all")
            if answer.has_list:
                return answer.converted()
            # From 23.02 on `sinfo --json` groups nodes, and scontrol has learnt --json.
            self._nodes_through_scontrol = True
        return self._rows("nodes", convert_node, "scontrol", "--all", "show", "nodes", "--json")

    def _read_topology(self) -> Topology:
        """Return the switches, asked for every ten minutes; without an answer what was known stays: nothing at first.

        Networks change rarely, and a reading does not fail for the lack of them.
        """
        if self._clock() >= self._topology_due:
            self._topology_due = self._clock() + TOPOLOGY_INTERVAL_SECONDS
            try:
                self._topology = convert_topology(self._text("scontrol", "show", "topology"))
            except SlurmError as error:
                logger.debug("topology not read error=%s", error)
        return self._topology

    def _rows(self, key: str, convert: Callable[[Mapping[str, object]], _Item], *command: str) -> Converted[_Item]:
        """Return the converted rows of the list under `key` of a command's answer."""
        return self._answer(key, convert, *command).converted()

    def _answer(self, key: str, convert: Callable[[Mapping[str, object]], _Item], *command: str) -> "JsonAnswer[_Item]":
        """Return a command's answer, read and converted row by row while it is printed."""
        known = self._known.get((command[0], key))
        answer = JsonAnswer(key, convert, known)
        self._run(answer.feed, *command)
        try:
            answer.close()
        except (ValueError, RecursionError) as error:
            raise SlurmError(f"{' '.join(command)} printed no JSON: {answer.head!r}") from error
        if command[0] in _REPEATED:
            self._known[command[0], key] = answer.seen
        return answer

    def _text(self, *command: str) -> str:
        pieces: list[bytes] = []
        self._run(pieces.append, *command)
        return b"".join(pieces).decode("utf-8", "replace")

    def _run(self, take: Callable[[bytes], None], name: str, *arguments: str) -> None:
        folder = self._settings.bin_directory
        command = [str(Path(folder) / name) if folder else name, *arguments]
        try:
            run_command(command, take, environment=self._environment, timeout_seconds=self._settings.timeout_seconds)
        except OSError as error:
            raise SlurmError(
                f"{command[0]} cannot be run ({error.strerror}): set cluster.slurm_bin_directory"
            ) from error


class JsonAnswer(Generic[_Item]):
    """A JSON answer of a command or a server; what is wrong with it is said at its end, the command's own error first.

    A row is converted as soon as it has come, so that a long queue is never held as text or as raw rows.
    """

    def __init__(
        self, key: str, convert: Callable[[Mapping[str, object]], _Item], known: Mapping[bytes, _Item] | None
    ) -> None:
        self.head = b""
        """How it begins."""
        self._key = key
        self._conversion = Conversion(convert, known)
        self._rows = JsonRows(key, self._conversion.take)
        self._error: Exception | None = None

    @property
    def has_list(self) -> bool:
        """Whether it is an object with something under the key."""
        return isinstance(self._rows.document, dict) and self._key in self._rows.document

    @property
    def seen(self) -> dict[bytes, _Item]:
        """What its rows were converted to, by the hash of their texts."""
        return self._conversion.seen

    def feed(self, data: bytes) -> None:
        """Take some bytes of it; never raises."""
        if len(self.head) < _SHOWN_BYTES:
            self.head = (self.head + data)[:_SHOWN_BYTES]
        if self._error is None:
            try:
                self._rows.feed(data)
            except (ValueError, RecursionError) as error:
                self._error = error

    def close(self) -> None:
        """Take its end.

        Raises:
            ValueError: it is no JSON.
            RecursionError: it is nested too deeply.
        """
        if self._error is not None:
            raise self._error
        self._rows.close()

    def converted(self) -> Converted[_Item]:
        """Return the converted rows.

        Raises:
            SlurmError: it has no list, or tells an error and has no rows.
        """
        if not self._conversion.rows:
            rows_of(self._rows.document, self._key)
        return self._conversion.result()


def _with_switches(nodes: tuple[NodeState, ...], topology: Topology) -> tuple[NodeState, ...]:
    """Return the nodes with the leaf switch of each that hangs on one."""
    if not topology.leaf_by_node:
        return nodes
    leaves = topology.leaf_by_node
    return tuple(replace(node, switch=leaves[node.name]) if node.name in leaves else node for node in nodes)


def command_environment(settings: CommandSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Slurm's commands: no user's SQUEUE_FORMAT and the like gets into it."""
    chosen = {"PATH": environment.get("PATH") or _FALLBACK_PATH, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}
    conf = settings.slurm_conf or environment.get("SLURM_CONF", "")
    if conf:
        chosen["SLURM_CONF"] = conf
    for name in ("TZ", "LD_LIBRARY_PATH"):
        if name in environment:
            chosen[name] = environment[name]
    return chosen
