"""Deliver the spool's reports, and how this node is, to the daemon: the epilog starts this, and a timer runs it again.

An acknowledged report is removed, a refused one is put aside, and after any other answer it stays for next time.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.domain.ids import expand_hostlist
from slurm_energy.errors import DaemonUnavailable, SlurmEnergyError, SpoolError, ValueRangeError, WireError
from slurm_energy.files import read_whole, remove
from slurm_energy.forms import parse_addresses
from slurm_energy.node.context import HookContext
from slurm_energy.node.host_meter import note_meter
from slurm_energy.wire.authentication import load_key, sign
from slurm_energy.wire.client import exchange_tcp
from slurm_energy.wire.codec import Message
from slurm_energy.wire.fields import loads
from slurm_energy.wire.report import decode_report, encode_batch

if TYPE_CHECKING:
    from slurm_energy.domain.node_status import NodeStatus

MAX_BATCH_REPORTS = 200
MAX_BATCH_BYTES = 262_144
EXCHANGE_SECONDS = 10.0
CONNECT_SECONDS = 2.0
"""To a daemon behind which another one stands."""
SPREAD_SECONDS = 2.0
SPREAD_SECONDS_PER_NODE = 0.02
"""500 nodes of one job come over 12 s, 42 a second."""
MAX_SPREAD_SECONDS = 30.0
MIN_INTERVAL_SECONDS = 5.0
"""Between two deliveries of one node that its epilogs asked for: a node with many short jobs sends them together."""
LOOK_SECONDS = 60.0
"""A delivery that an epilog asked for looks at the node itself at most so often: it runs programs to do so."""
TRIES = 3
MAX_REPORT_BYTES = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitingReport:
    """One report and its file."""

    path: Path
    document: object
    size_bytes: int
    started_monotonic_seconds: float | None
    """When its job started, by the clock of this boot; None for one of an earlier boot."""


class Route:
    """The daemons that take reports: each is tried in order, and the first that answered is asked further."""

    def __init__(self, addresses: tuple[tuple[str, int], ...], say: Callable[[str], None]) -> None:
        self._addresses = list(addresses)
        self._say = say

    def exchange(self, request: Callable[[], Message]) -> Message:
        """Return the reply of the first daemon that takes a request; a new one is made for each.

        Raises:
            DaemonUnavailable, DeadlineExceeded: none answers.
        """
        while len(self._addresses) > 1:
            (host, port), *others = self._addresses
            try:
                reply = exchange_tcp((host, port), request(), EXCHANGE_SECONDS, connect_seconds=CONNECT_SECONDS)
                if reply.verb != "error":
                    return reply
                reason = reply.fields.get("reason", "no reason was given")
            except (DaemonUnavailable, WireError) as error:
                reason = str(error)
            self._say(f"the daemon at {host}:{port} takes no report: {reason}")
            self._addresses = others
        return exchange_tcp(self._addresses[0], request(), EXCHANGE_SECONDS)


def run_flush_soon(context: HookContext, nodes_of_job: str, draw: Callable[[], float]) -> bool:
    """Send what waits after a short while; return as `run_flush` does.

    The nodes of a large job, and those on which the tasks of an array end, must not all come at once: each waits for a
    part of `SPREAD_SECONDS`, longer for a job of many nodes, and comes at most every `MIN_INTERVAL_SECONDS`. On a node
    one process waits for all; the reports that are written in the meantime go with it.

    Args:
        context: The doors.
        nodes_of_job: Slurm's list of the nodes of the job that ended.
        draw: Returns a number in [0, 1).

    Raises:
        SlurmEnergyError: as `run_flush`.
    """
    context.spool.prepare()
    with context.spool.try_turn() as turn:
        if turn is None:
            return True
        now = context.now()
        rest = min(max(0.0, _last_turn_seconds(turn) + MIN_INTERVAL_SECONDS - now), MIN_INTERVAL_SECONDS)
        context.stage("waiting for its turn to deliver")
        context.pause(max(rest, draw() * spread_seconds(nodes_of_job)))
        with suppress(OSError):
            turn.write_text(f"{context.now():.0f}\n", encoding="ascii")
    for _ in range(TRIES):
        if not run_flush(context, look_again=False):
            return False
        if not context.spool.waiting_reports():
            return True
        context.pause(1.0 + draw())  # another process was sending, and had read the spool before the last report came
    return False


def spread_seconds(nodes_of_job: str) -> float:
    """Return over what time the nodes of a job deliver their reports."""
    try:
        nodes = len(expand_hostlist(nodes_of_job))
    except ValueRangeError:
        nodes = 1
    return min(SPREAD_SECONDS + SPREAD_SECONDS_PER_NODE * nodes, MAX_SPREAD_SECONDS)


def _last_turn_seconds(path: Path) -> float:
    try:
        return float((read_whole(path) or b"0")[:32])
    except (SpoolError, ValueError):
        return 0.0


def run_flush(context: HookContext, *, look_again: bool = True) -> bool:
    """Send what waits, then how the node is; return whether nothing is left that should have gone.

    Args:
        context: The doors.
        look_again: Whether to see how the node is also when that was seen within `LOOK_SECONDS`.

    Raises:
        SlurmEnergyError: the daemon is away, or the site's key or munge cannot be used; everything stays.
    """
    note_meter(context)
    try:
        done = _flush_reports(context)
    except SpoolError as error:
        # The one thing that a person at the controller cannot see from there.
        _tell_status(context, (str(error),))
        raise
    if not look_again and _looked_lately(context):
        return done
    return _tell_status(context, ()) and done


def _looked_lately(context: HookContext) -> bool:
    with suppress(OSError):
        return 0 <= context.now() - context.spool.sent_status.stat().st_mtime < LOOK_SECONDS
    return False


def _tell_status(context: HookContext, problems: tuple[str, ...]) -> bool:
    """Tell the daemon how this node is, unless it has heard the same lately; return whether it has heard it."""
    if not context.settings.node.daemon_address:
        return True
    from slurm_energy.node.status import due_status  # noqa: PLC0415  # as long to import as all the rest of a delivery

    status = due_status(context, problems)
    if status is not None:
        try:
            send_status(context, status)
        except SlurmEnergyError as error:
            context.log.write(str(error))
            return False
    return True


def send_status(context: HookContext, status: "NodeStatus") -> None:
    """Tell the daemon how this node is.

    Raises:
        SlurmEnergyError: the daemon is away or takes nothing from here.
    """
    from slurm_energy.node.status import note_sent  # noqa: PLC0415  # as above
    from slurm_energy.wire.node_status import encode_status_batch  # noqa: PLC0415

    node = context.settings.node
    context.stage("sending the node's status")
    key = load_key(Path(node.hmac_key_path)) if node.authentication == "hmac" else None
    body = encode_status_batch(status).encode()
    route = Route(parse_addresses(node.daemon_address), context.log.write)
    reply = route.exchange(lambda: sign(body, key=key))
    if reply.verb != "ok":
        raise SlurmEnergyError(f"the daemon took no status: {reply.fields.get('reason', 'no reason was given')}")
    note_sent(context, status)


def _flush_reports(context: HookContext) -> bool:
    node = context.settings.node
    context.spool.prepare()
    with context.spool.try_flush_lock() as held:
        if not held:
            return True
        context.spool.sweep()
        paths = context.spool.waiting_reports()
        if not paths:
            return True
        if not node.daemon_address:
            context.log.write(f"{len(paths)} reports wait: node.daemon_address is empty")
            return False
        route = Route(parse_addresses(node.daemon_address), context.log.write)
        key = load_key(Path(node.hmac_key_path)) if node.authentication == "hmac" else None
        sent = 0
        for batch in _batches(context, paths):
            sent += _deliver(context, route, key, batch)
        waiting = len(context.spool.waiting_reports())
        context.log.write(f"flushed: delivered={sent} waiting={waiting}")
        return waiting == 0


def _batches(context: HookContext, paths: tuple[Path, ...]) -> Iterator[list[_WaitingReport]]:
    batch: list[_WaitingReport] = []
    size = 0
    for path in paths:
        report = _read(context, path)
        if report is None:
            continue
        if batch and (len(batch) >= MAX_BATCH_REPORTS or size + report.size_bytes > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(report)
        size += report.size_bytes
    if batch:
        yield batch


def _read(context: HookContext, path: Path) -> _WaitingReport | None:
    """Return a report; one that the daemon could only refuse is put aside at once."""
    try:
        content = read_whole(path)
        if content is None:
            return None
        document = loads(content, path.name, MAX_REPORT_BYTES)
        started = _taken_start(document, context.boot_id)
        decode_report(document)
    except (SpoolError, WireError) as error:
        context.log.write(f"{path.name} put aside: {error}")
        with suppress(SpoolError):
            context.spool.reject(path)
        return None
    return _WaitingReport(path=path, document=document, size_bytes=len(content), started_monotonic_seconds=started)


def _taken_start(document: object, boot_id: str) -> float | None:
    """Take out of a report's file what is no part of the report: when its job started, by the clock of which boot."""
    if not isinstance(document, dict):
        return None
    boot, started = document.pop("boot_id", None), document.pop("started_monotonic_seconds", None)
    return float(started) if boot == boot_id and isinstance(started, int | float) else None


def _body(context: HookContext, batch: list[_WaitingReport]) -> bytes:
    """Return a batch, with how long ago each job started: no daemon need believe this node's wall clock."""
    now = context.monotonic()
    starts = (waiting.started_monotonic_seconds for waiting in batch)
    ages = [None if start is None or start > now else now - start for start in starts]
    return encode_batch((waiting.document for waiting in batch), context.now(), ages).encode()


def _deliver(context: HookContext, route: Route, key: bytes | None, batch: list[_WaitingReport]) -> int:
    """Send one batch; when it is refused, find the report that is to blame by sending each alone."""
    context.stage(f"sending {len(batch)} reports")
    reply = route.exchange(lambda: sign(_body(context, batch), key=key))
    context.spool.settle()
    if reply.verb == "ok" and reply.fields.get("accepted") == str(len(batch)):
        for waiting in batch:
            remove(waiting.path)
        return len(batch)
    reason = reply.fields.get("reason", "no reason was given")
    if reply.verb == "refused" and len(batch) > 1:
        return sum(_deliver(context, route, key, [waiting]) for waiting in batch)
    if reply.verb == "refused":
        context.log.write(f"{batch[0].path.name} put aside: the daemon refused it: {reason}")
        context.spool.reject(batch[0].path)
        return 0
    if reply.verb == "ok":
        raise WireError(f"the daemon acknowledged {reply.fields.get('accepted', 'none')} of {len(batch)} reports")
    raise SlurmEnergyError(f"the daemon could not take {len(batch)} reports: {reason}")
