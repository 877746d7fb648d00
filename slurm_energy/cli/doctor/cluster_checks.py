"""Every node, judged on the controller by what it reported to the daemon."""

import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy import __version__
from slurm_energy.cli.daemon_line import asked, json_document
from slurm_energy.cli.doctor.daemon_checks import STATUS_SECONDS, delivery_fix
from slurm_energy.cli.doctor.finding import Finding, HostFacts, fail, ok, several, skip, warn
from slurm_energy.cli.doctor.gpu_checks import NodeGpuTypes, board_checks, gpu_type_checks, status_boards
from slurm_energy.cli.doctor.node_judgement import NodeJudge, findings_of
from slurm_energy.cli.doctor.storage_checks import AS_ROOT
from slurm_energy.cli.installing.roles import CONFIG_DIRECTORY
from slurm_energy.cli.site import slurm_command
from slurm_energy.daemon.doors.reports import FOLDER, TURNED_AWAY
from slurm_energy.domain.job import GpuDemand
from slurm_energy.domain.node_status import SILENT_SECONDS, STATUS_INTERVAL_SECONDS, ReceivedStatus
from slurm_energy.errors import SlurmEnergyError, ValueRangeError, WireError
from slurm_energy.slurm.gres import parse_gpus
from slurm_energy.wire.codec import Message
from slurm_energy.wire.node_status import decode_received

FIRST_WORDS_SECONDS = STATUS_INTERVAL_SECONDS + 120.0
"""A daemon that has just begun to listen has not heard of every node yet."""
RECENT_SECONDS = 1800.0
MAX_STATUS_FILES = 20_000
MAX_LOOKUPS = 8
NODE_INSTALL = (
    "on each: slurm-energy install --role node; systemctl enable --now slurm-energy-flush.timer "
    "slurm-energy-repair.timer; slurm-energy-hook flush then says what else is missing"
)
_FIELD = re.compile(r"(?:^|\s)(NodeName|NodeAddr|State|Gres|Version)=(\S+)")
_AWAY = ("DOWN", "POWERED_DOWN", "POWERING", "FUTURE", "UNKNOWN", "REBOOT", "NOT_RESPONDING")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """A node as slurmctld knows it."""

    name: str
    address: str = ""
    state: str = ""
    gres: str = ""
    gpus: tuple[GpuDemand, ...] = ()

    @property
    def is_up(self) -> bool:
        """Whether its timers can run at the moment."""
        return not any(word in self.state for word in _AWAY) and not {"*", "~", "#"} & set(self.state)


def cluster_checks(situation: HostFacts) -> Iterator[Finding]:
    """Yield what the nodes' own words and Slurm's list of nodes say; nothing on other hosts than the controller."""
    if not situation.is_controller:
        return
    nodes, complaint = slurm_nodes(situation)
    if nodes is None:
        yield skip("nodes", complaint, "start slurmctld, see `slurmctld` here")
        return
    directory = Path(situation.config.daemon.state_directory)
    by_node, complaint = received_statuses(directory / FOLDER)
    if by_node is None:
        yield skip("nodes", complaint, AS_ROOT)
        return
    now = time.time()
    daemon = _daemon_status(situation)
    yield from _turned_away(nodes, directory / TURNED_AWAY, now)
    yield from _silent(situation, nodes, by_node, daemon, now)
    judge = NodeJudge(cluster=situation.config.cluster.name, version=__version__, now_seconds=now)
    heard = [
        (node.name, sum(demand.count for demand in node.gpus), by_node[node.name])
        for node in nodes
        if node.is_up and node.name in by_node and now - by_node[node.name].received_at_seconds <= SILENT_SECONDS
    ]
    yield from findings_of([judged for name, count, one in heard for judged in judge.judged(name, count, one)])
    statuses = {name: received.status for name, received in by_node.items()}
    seen = [NodeGpuTypes(node=node.name, demands=node.gpus, status=statuses.get(node.name)) for node in nodes]
    yield from gpu_type_checks(situation.config, seen)
    yield from board_checks(situation.config, {name: status_boards(received.status) for name, _, received in heard})


def slurm_nodes(situation: HostFacts) -> tuple[list[SlurmNode] | None, str]:
    """Return slurmctld's nodes, or None and why there is no answer."""
    result = slurm_command(situation.config, "scontrol", "--all", "--oneliner", "show", "node")
    if not result.ok:
        return None, result.complaint or "scontrol show node gives no answer"
    found = []
    for line in result.stdout.splitlines():
        fields: dict[str, str] = {}
        for key, value in _FIELD.findall(line):
            fields.setdefault(key, value)  # a Reason= at the end may hold any words
        if "NodeName" in fields:
            gres = fields.get("Gres", "").replace("(null)", "")
            found.append(
                SlurmNode(
                    name=fields["NodeName"],
                    address=fields.get("NodeAddr", ""),
                    state=fields.get("State", ""),
                    gres=gres,
                    gpus=_gpus(gres),
                )
            )
    return found, ""


def received_statuses(folder: Path) -> tuple[dict[str, ReceivedStatus] | None, str]:
    """Return what each node reported last, or None and why it cannot be read."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return None, f"{folder}: {error.strerror}"
    by_node = {}
    for name in [name for name in sorted(names) if name.endswith(".json") and name[0] != "."][:MAX_STATUS_FILES]:
        with suppress(OSError, WireError):
            by_node[name.removesuffix(".json")] = decode_received((folder / name).read_bytes())
    return by_node, ""


def _gpus(gres: str) -> tuple[GpuDemand, ...]:
    with suppress(ValueRangeError):
        return tuple(demand for demand in parse_gpus(gres) if demand.count)
    return ()


def _daemon_status(situation: HostFacts) -> Mapping[str, Any]:
    """Return what the daemon tells root of its nodes and of itself; nothing where it does not answer."""
    try:
        request = Message("query", {"what": "status"})
        return json_document(asked(situation.config.daemon.socket_path, request, STATUS_SECONDS))
    except SlurmEnergyError:
        return {}


def _silent(
    situation: HostFacts,
    nodes: list[SlurmNode],
    by_node: Mapping[str, ReceivedStatus],
    daemon: Mapping[str, Any],
    now: float,
) -> Iterator[Finding]:
    """Yield which nodes with GPUs never reported their state, and which no longer do."""
    wanted = [node for node in nodes if node.gpus and node.is_up]
    never = [node for node in wanted if node.name not in by_node]
    stopped = [node for node in wanted if node.name in by_node and _silence(by_node[node.name], now) > SILENT_SECONDS]
    if stopped:
        yield fail(
            "nodes",
            f"stopped reporting: {several(_since(node.name, by_node[node.name], now) for node in stopped)}",
            "on each: systemctl status slurm-energy-flush.timer; slurm-energy-hook flush says what fails; a hook's "
            "interpreter that is gone is put back by slurm-energy install --role node",
        )
    if never:
        names = several(f"{node.name} ({node.gres})" for node in never)
        uptime = _number(daemon.get("daemon"), "uptime_seconds")
        if uptime is not None and uptime < FIRST_WORDS_SECONDS:
            text = f"not heard of yet: {names}; slurm-energyd has run for {uptime:.0f} s"
            yield warn("nodes", text, f"ask again in {(FIRST_WORDS_SECONDS - uptime) / 60.0:.0f} minutes")
        else:
            yield fail("nodes", f"have never reported: {names}{_prolog_words(situation)}", NODE_INSTALL)
    if not stopped and not never:
        away = [node for node in nodes if node.gpus and not node.is_up]
        more = f"; not asked, since they are down: {several(node.name for node in away)}" if away else ""
        yield ok("nodes", f"{len(wanted)} of {len(wanted)} with GPUs report{more}")


def _prolog_words(situation: HostFacts) -> str:
    """Return what a node without our files means where Prolog is a pattern of files in our folder."""
    prolog = situation.conf.get("prolog", "")
    if f"{CONFIG_DIRECTORY}/" in prolog and "*" in prolog:
        return f": Prolog={prolog} drains a node that lacks these files at its first job"
    return ": their jobs run without clocks and are not measured"


def _silence(received: ReceivedStatus, now: float) -> float:
    return now - received.received_at_seconds


def _since(name: str, received: ReceivedStatus, now: float) -> str:
    seconds = _silence(received, now)
    return f"{name} ({f'{seconds / 3600.0:.1f} h' if seconds >= 3600 else f'{seconds / 60.0:.0f} min'})"


def _number(section: object, key: str) -> float | None:
    value = section.get(key) if isinstance(section, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _turned_away(nodes: list[SlurmNode], path: Path, now: float) -> Iterator[Finding]:
    """Yield whose messages were not authenticated lately; those of unknown hosts are a remark, a node's are a fault."""
    lookups = MAX_LOOKUPS
    for host, at_seconds, reason in _hosts(path):
        age = now - at_seconds
        if age > RECENT_SECONDS:
            continue
        at = [node.name for node in nodes if node.address == host]
        if not at and lookups:
            lookups -= 1
            at = _by_name(nodes, host)
        who = several(at) if at else "no node of Slurm"
        text = f"{host} ({who}): not authenticated {age:.0f} s ago: {reason}"
        yield (fail if at else warn)("messages refused", text, delivery_fix(reason))


def _hosts(path: Path) -> Iterator[tuple[str, float, str]]:
    """Yield address, time and reason of every host in the daemon's list."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return
    for host, entry in document.items() if isinstance(document, dict) else ():
        at_seconds = _number(entry, "at_seconds")
        if at_seconds is not None:
            yield host, at_seconds, str(entry.get("reason", ""))


def _by_name(nodes: list[SlurmNode], host: str) -> list[str]:
    """Return the nodes whose name or address is the name of this host's address."""
    try:
        name, aliases, _addresses = socket.gethostbyaddr(host)
    except OSError:
        return []
    words = {word for each in (name, *aliases) for word in (each, each.partition(".")[0])}
    return [node.name for node in nodes if node.name in words or node.address in words]
