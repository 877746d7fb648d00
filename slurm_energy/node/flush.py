"""Deliver the spool's reports, and how this node is, to the daemon, off the jobs' path: a timer runs this.

An acknowledged report is removed, a refused one is put aside, and after any other answer it stays for next time.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.domain.node_status import NodeStatus
from slurm_energy.errors import SlurmEnergyError, SpoolError, WireError
from slurm_energy.forms import parse_address
from slurm_energy.node.context import HookContext
from slurm_energy.node.files import read_whole, remove
from slurm_energy.node.status import due_status, note_sent
from slurm_energy.wire.authentication import load_key, sign
from slurm_energy.wire.fields import loads
from slurm_energy.wire.node_status import encode_status_batch
from slurm_energy.wire.report import decode_report, encode_batch
from slurm_energy.wire.transport import exchange_tcp

MAX_BATCH_REPORTS = 200
MAX_BATCH_BYTES = 262_144
EXCHANGE_SECONDS = 10.0
MAX_REPORT_BYTES = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """One report and its file."""

    path: Path
    document: object
    size_bytes: int


def run_flush(context: HookContext) -> bool:
    """Send what waits, then how the node is; return whether nothing is left that should have gone.

    Raises:
        SlurmEnergyError: the daemon is away, or the site's key or munge cannot be used; everything stays.
    """
    try:
        done = _flush_reports(context)
    except SpoolError as error:
        # The one thing that a person at the controller cannot see from there.
        _tell_status(context, (str(error),))
        raise
    _tell_status(context, ())
    return done


def _tell_status(context: HookContext, problems: tuple[str, ...]) -> None:
    """Tell the daemon how this node is, unless it has heard the same lately."""
    status = due_status(context, problems) if context.settings.node.daemon_address else None
    if status is not None:
        send_status(context, status)


def send_status(context: HookContext, status: NodeStatus) -> None:
    """Tell the daemon how this node is.

    Raises:
        SlurmEnergyError: the daemon is away or takes nothing from here.
    """
    node = context.settings.node
    context.stage("sending the node's status")
    key = load_key(Path(node.hmac_key_path)) if node.authentication == "hmac" else None
    body = encode_status_batch(status).encode()
    reply = exchange_tcp(parse_address(node.daemon_address), sign(body, key=key), EXCHANGE_SECONDS)
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
