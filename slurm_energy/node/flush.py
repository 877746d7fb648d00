"""Deliver the spool's reports to the daemon, off the jobs' path: the epilog starts this, and a timer runs it again.

An acknowledged report is removed, a refused one is put aside, and after any other answer it stays for next time.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.errors import SlurmEnergyError, SpoolError, ValueRangeError, WireError
from slurm_energy.forms import parse_address
from slurm_energy.node.context import HookContext
from slurm_energy.node.files import read_whole, remove
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.wire.authentication import load_key, sign
from slurm_energy.wire.fields import loads
from slurm_energy.wire.report import decode_report, encode_batch
from slurm_energy.wire.transport import exchange_tcp

MAX_BATCH_REPORTS = 200
MAX_BATCH_BYTES = 262_144
EXCHANGE_SECONDS = 10.0
SPREAD_SECONDS = 2.0
SPREAD_SECONDS_PER_NODE = 0.02
"""500 nodes of one job come over 12 s, 42 a second."""
MAX_SPREAD_SECONDS = 30.0
MIN_INTERVAL_SECONDS = 5.0
"""Between two deliveries of one node that its epilogs asked for: a node with many short jobs sends them together."""
TRIES = 3
MAX_REPORT_BYTES = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """One report and its file."""

    path: Path
    document: object
    size_bytes: int


def run_flush_soon(context: HookContext, nodes_of_job: str, draw: Callable[[], float]) -> bool:
    """Send what waits after a short while; return as `run_flush` does.

    The nodes of a large job, and those on which the tasks of an array end, shall not all come at once: each waits for a
    part of `SPREAD_SECONDS`, longer for a job of many nodes, and comes at most every `MIN_INTERVAL_SECONDS`. On a node
    one process waits for all; the reports that are written meanwhile go with it.

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
        if not run_flush(context):
            return False
        if not context.spool.waiting_reports():
            return True
        context.pause(1.0 + draw())  # somebody else was sending, and had read the spool before the last report came
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


def run_flush(context: HookContext) -> bool:
    """Send what waits; return whether nothing is left that should have gone.

    Raises:
        SlurmEnergyError: the daemon is away, or the site's key or munge cannot be used; everything stays.
    """
    node = context.settings.node
    context.spool.prepare()
    with context.spool.try_flush_lock() as held:
        if not held:
            return True
        context.spool.sweep(context.now())
        paths = context.spool.waiting_reports()
        if not paths:
            return True
        if not node.daemon_address:
            context.log.write(f"{len(paths)} reports wait: node.daemon_address is empty")
            return False
        address = parse_address(node.daemon_address)
        key = load_key(Path(node.hmac_key_path)) if node.authentication == "hmac" else None
        sent = 0
        for batch in _batches(context, paths):
            sent += _deliver(context, address, key, batch)
        waiting = len(context.spool.waiting_reports())
        context.log.write(f"flushed: delivered={sent} waiting={waiting}")
        return waiting == 0


def _batches(context: HookContext, paths: tuple[Path, ...]) -> Iterator[list[_Waiting]]:
    batch: list[_Waiting] = []
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


def _read(context: HookContext, path: Path) -> _Waiting | None:
    """Return a report; one that the daemon could only refuse is put aside at once."""
    try:
        content = read_whole(path)
        if content is None:
            return None
        document = loads(content, path.name, MAX_REPORT_BYTES)
        decode_report(document)
    except (SpoolError, WireError) as error:
        context.log.write(f"{path.name} put aside: {error}")
        with suppress(SpoolError):
            context.spool.reject(path)
        return None
    return _Waiting(path=path, document=document, size_bytes=len(content))


def _deliver(context: HookContext, address: tuple[str, int], key: bytes | None, batch: list[_Waiting]) -> int:
    """Send one batch; when it is refused, find the report that is to blame by sending each alone."""
    context.stage(f"sending {len(batch)} reports")
    body = encode_batch(waiting.document for waiting in batch).encode()
    reply = exchange_tcp(address, sign(body, key=key), EXCHANGE_SECONDS)
    if reply.verb == "ok" and reply.fields.get("accepted") == str(len(batch)):
        for waiting in batch:
            remove(waiting.path)
        return len(batch)
    reason = reply.fields.get("reason", "no reason was given")
    if reply.verb == "refused" and len(batch) > 1:
        return sum(_deliver(context, address, key, [waiting]) for waiting in batch)
    if reply.verb == "refused":
        context.log.write(f"{batch[0].path.name} put aside: the daemon refused it: {reason}")
        context.spool.reject(batch[0].path)
        return 0
    if reply.verb == "ok":
        raise WireError(f"the daemon acknowledged {reply.fields.get('accepted', 'none')} of {len(batch)} reports")
    raise SlurmEnergyError(f"the daemon could not take {len(batch)} reports: {reason}")
