"""A node's status as JSON; what comes in is bounded in size, and its texts are shown to people only made visible."""

import json
from dataclasses import dataclass

from slurm_energy.domain.ids import ClusterName, GpuTypeName, NodeName
from slurm_energy.domain.node_status import GpuStatus, NodeStatus, PluginStatus, ReceivedStatus, SpoolStatus
from slurm_energy.domain.plain import to_plain
from slurm_energy.errors import WireError
from slurm_energy.wire.fields import Fields, loads
from slurm_energy.wire.report import BATCH_FORMAT, ReportBatch, batch_fields, decode_reports

MAX_STATUS_BYTES = 65_536
MAX_GPUS = 64
MAX_PLUGINS = 8
MAX_LINES = 32
MAX_LINE = 500
MAX_PROOF = 300
_MAX_UNIX_SECONDS = 1e11
_MAX_BYTES = 1 << 60
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_MAX_NAME = 200
"""The daemon keeps one file a node, whose name has an ending, and a file's name has 255 bytes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What one message of a node brings."""

    batch: ReportBatch
    status: NodeStatus | None = None


def encode_status_batch(status: NodeStatus) -> str:
    """Return the text of a batch without reports that carries a status; a daemon that knows none leaves it out."""
    document = {"format": BATCH_FORMAT, "reports": [], "status": encode_status(status)}
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def decode_delivery(text: str | bytes) -> Delivery:
    """Return the reports of a batch, all or none, and the node's status if it has one.

    Raises:
        WireError: not a batch of this format, or a part of it is malformed.
    """
    fields = batch_fields(text)
    status = fields.get("status")
    return Delivery(batch=decode_reports(fields), status=None if status is None else decode_status(status))


def encode_status(status: NodeStatus) -> dict[str, object]:
    """Return the status as a JSON object, its lists and lines cut to what is taken."""
    document: dict[str, object] = to_plain(status)
    for key in ("problems", "repair_said"):
        lines = document[key]
        assert isinstance(lines, list)
        document[key] = [_line(line) for line in lines[:MAX_LINES]]
    for key in ("interpreter", "driver_problem"):
        document[key] = None if document[key] is None else _line(document[key])
    for key, max_members in (("gpus", MAX_GPUS), ("plugins", MAX_PLUGINS)):
        members = document[key]
        document[key] = members[:max_members] if isinstance(members, list) else members
    return document


def _line(value: object) -> str:
    return str(value).replace("\0", "?")[:MAX_LINE]


def decode_status(value: object) -> NodeStatus:
    """Return the status in a parsed JSON value; members that are not known are left out: nodes may be newer.

    Raises:
        WireError: a member is missing, of another type or outside its bound.
    """
    fields = Fields(value, "status")
    gpus = fields.get("gpus")
    clean = fields.get("repair_clean")
    if clean is not None and not isinstance(clean, bool):
        raise WireError("status.repair_clean is neither true nor false")
    return NodeStatus(
        cluster=ClusterName(fields.text("cluster", 255)),
        node=NodeName(_node_name(fields)),
        sent_at_seconds=fields.number("sent_at_seconds", 0, _MAX_UNIX_SECONDS),
        boot_id=fields.optional_text("boot_id", 64) or "",
        hook_version=fields.text("hook_version", 64),
        interpreter=fields.optional_text("interpreter") or "",
        slurm_version=fields.optional_text("slurm_version", 64),
        plugins=tuple(_plugin(plugin) for plugin in fields.sequence("plugins", MAX_PLUGINS)),
        spool=_spool(fields.get("spool")),
        problems=fields.texts("problems", MAX_LINES),
        gpus=None if gpus is None else tuple(_gpu(gpu) for gpu in fields.sequence("gpus", MAX_GPUS)),
        driver_problem=fields.optional_text("driver_problem"),
        repaired_at_seconds=fields.optional_number("repaired_at_seconds", 0, _MAX_UNIX_SECONDS),
        repair_clean=clean,
        repair_said=fields.texts("repair_said", MAX_LINES),
    )


def encode_received(received: ReceivedStatus) -> bytes:
    """Return what the daemon keeps of a node."""
    document = {"received_at_seconds": received.received_at_seconds, "status": encode_status(received.status)}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def decode_received(text: bytes) -> ReceivedStatus:
    """Return what the daemon has kept of a node.

    Raises:
        WireError: it is no such file.
    """
    fields = Fields(loads(text, "status file", 2 * MAX_STATUS_BYTES), "status file")
    return ReceivedStatus(
        received_at_seconds=fields.number("received_at_seconds", 0, _MAX_UNIX_SECONDS),
        status=decode_status(fields.get("status")),
    )


def _node_name(fields: Fields) -> str:
    name = fields.text("node", _MAX_NAME)
    if not _NAME_CHARACTERS.issuperset(name) or name.startswith("."):
        raise WireError(f"status.node is {name[:64]!r}, which has characters that are not allowed there")
    return name


def _plugin(value: object) -> PluginStatus:
    fields = Fields(value, "status.plugins")
    return PluginStatus(path=fields.text("path"), version=fields.text("version", 200))


def _spool(value: object) -> SpoolStatus:
    fields = Fields(value, "status.spool")
    return SpoolStatus(
        path=fields.text("path"),
        exists=fields.flag("exists"),
        owner_user_id=fields.optional_integer("owner_user_id", 0, 0xFFFFFFFF),
        mode=fields.optional_integer("mode", 0, 0o7777),
        free_bytes=fields.optional_integer("free_bytes", 0, _MAX_BYTES),
        waiting_reports=fields.integer("waiting_reports", 0, _MAX_BYTES),
        oldest_waiting_seconds=fields.optional_number("oldest_waiting_seconds", -1e10, 1e10),
        rejected_files=fields.integer("rejected_files", 0, _MAX_BYTES),
        pending_jobs=fields.integer("pending_jobs", 0, _MAX_BYTES),
    )


def _gpu(value: object) -> GpuStatus:
    fields = Fields(value, "status.gpus")
    gpu_type = fields.optional_text("gpu_type", 63)
    return GpuStatus(
        uuid=fields.text("uuid", 128),
        index=fields.integer("index", 0, 4096),
        minor_number=fields.optional_integer("minor_number", 0, 1 << 20),
        name=fields.optional_text("name", 255) or "",
        gpu_type=None if gpu_type is None else GpuTypeName(gpu_type),
        pci_id=fields.optional_text("pci_id", 64),
        power_limit_watts=fields.optional_number("power_limit_watts", 0, 1e5),
        position=fields.optional_integer("position", 0, 4096),
        slurm_type=fields.optional_text("slurm_type", 64),
        proof=fields.optional_text("proof", MAX_PROOF) or "",
        unproven=fields.optional_text("unproven", MAX_PROOF) or "",
    )
