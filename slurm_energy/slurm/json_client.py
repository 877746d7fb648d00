"""Slurm's own commands with `--json`: the reader that works with every release."""

import json
import logging
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.domain.cluster import JobState, NodeState
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.client import ClusterReading
from slurm_energy.slurm.conversion import Converted
from slurm_energy.slurm.convert_accounting import convert_accounting
from slurm_energy.slurm.convert_job import convert_jobs
from slurm_energy.slurm.convert_node import convert_nodes
from slurm_energy.slurm.convert_partition import convert_partitions
from slurm_energy.slurm.convert_topology import Topology, convert_topology

logger = logging.getLogger(__name__)

MAX_OUTPUT_BYTES = 1 << 30
ACCOUNTING_CHUNK = 500
TOPOLOGY_INTERVAL_SECONDS = 600.0
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

    def read_cluster(self) -> ClusterReading:
        """Return partitions, nodes and jobs.

        Raises:
            SlurmError: a command failed, hung, or answered something else than expected.
        """
        partitions = convert_partitions(
            self._run("scontrol", "--all", "show", "partition", "-o").decode("utf-8", "replace")
        )
        nodes = self._read_nodes()
        jobs = convert_jobs(self._json("squeue", "--json", "--all", "--states=all"))
        skipped: Counter[str] = Counter()
        for kind, converted in (("partition", partitions), ("node", nodes), ("job", jobs)):
            skipped.update({f"{kind}: {reason}": count for reason, count in converted.skipped.items()})
        topology = self._read_topology()
        return ClusterReading(
            partitions=partitions.items,
            nodes=_with_switches(nodes.items, topology),
            jobs=jobs.items,
            skipped=dict(skipped),
            switches=topology.switches,
        )

    def read_ended_jobs(self, job_ids: Sequence[JobId]) -> tuple[JobState, ...]:
        """Return what accounting knows of some jobs.

        Raises:
            SlurmError: sacct failed, hung, or answered something else than expected.
        """
        found: list[JobState] = []
        for begin in range(0, len(job_ids), ACCOUNTING_CHUNK):
            numbers = ",".join(str(job_id) for job_id in job_ids[begin : begin + ACCOUNTING_CHUNK])
            document = self._json("sacct", "--json", "--duplicates", "--allusers", f"--jobs={numbers}")
            found += convert_accounting(document).items
        return tuple(found)

    def _read_nodes(self) -> Converted[NodeState]:
        if not self._nodes_through_scontrol:
            document = self._json("sinfo", "--json", "--all")
            if isinstance(document, dict) and "nodes" in document:
                return convert_nodes(document)
            # From 23.02 on `sinfo --json` groups nodes, and scontrol has learnt --json.
            self._nodes_through_scontrol = True
        return convert_nodes(self._json("scontrol", "--all", "show", "nodes", "--json"))

    def _read_topology(self) -> Topology:
        """Return the switches, asked for every ten minutes; without an answer what was known stays: nothing at first.

        Networks change rarely, and a reading does not fail for the lack of them.
        """
        if self._clock() >= self._topology_due:
            self._topology_due = self._clock() + TOPOLOGY_INTERVAL_SECONDS
            try:
                self._topology = convert_topology(self._run("scontrol", "show", "topology").decode("utf-8", "replace"))
            except SlurmError as error:
                logger.debug("topology not read error=%s", error)
        return self._topology

    def _json(self, *command: str) -> object:
        output = self._run(*command)
        try:
            document: object = json.loads(output)
        except (ValueError, RecursionError) as error:
            raise SlurmError(f"{' '.join(command)} printed no JSON: {output[:120]!r}") from error
        return document

    def _run(self, name: str, *arguments: str) -> bytes:
        folder = self._settings.bin_directory
        command = [str(Path(folder) / name) if folder else name, *arguments]
        shown = " ".join((name, *arguments))[:120]
        try:
            done = subprocess.run(
                command,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._settings.timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmError(f"{shown} gave no answer within {self._settings.timeout_seconds:g} s") from error
        except OSError as error:
            raise SlurmError(
                f"{command[0]} cannot be run ({error.strerror}): set cluster.slurm_bin_directory"
            ) from error
        if done.returncode != 0:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
            raise SlurmError(f"{shown} ended with {done.returncode}: {said}")
        if len(done.stdout) > MAX_OUTPUT_BYTES:
            raise SlurmError(f"{shown} printed {len(done.stdout)} bytes, over {MAX_OUTPUT_BYTES}")
        return done.stdout


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
