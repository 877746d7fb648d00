"""What a node states of a running job's power, and the clock that the daemon answers with under a power budget."""

import json
from dataclasses import dataclass, fields

from slurm_energy.domain.energy import MAX_WATTS_PER_GPU
from slurm_energy.domain.ids import MAX_JOB_ID, GpuTypeName, JobId, NodeName
from slurm_energy.errors import WireError
from slurm_energy.wire.fields import Fields, loads

VERB = "power"
MAX_BODY_BYTES = 4096
MAX_GPUS = 4096
MAX_CLOCK_MHZ = 10_000
MAX_LEASE_SECONDS = 3600.0
_HEAD = b"power "


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPower:
    """The GPUs that one job holds on one node, which are of one type and its alone where their clock may be lowered."""

    job_id: JobId
    node: NodeName
    gpu_type: GpuTypeName | None
    num_gpus: int
    watts: float | None
    """Mean power of all of them since the node asked before, at the clock in force; None where it is not known yet."""
    clock_mhz: int
    """The clock in force."""
    decided_clock_mhz: int
    """The clock without a budget: as decided, or the default."""
    default_clock_mhz: int
    lowest_clock_mhz: int
    """That the boards support."""
    may_lower: bool
    """False: the job counts, and its clock stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOrder:
    """The daemon's answer."""

    clock_mhz: int | None
    """No higher clock until the lease is over; None: the job's own."""
    lease_seconds: float
    """How long the order holds without another answer; then the node gives the job's own clock back."""
    ask_seconds: float
    """When the node asks again."""


def encode_running_power(found: RunningPower) -> bytes:
    """Return the body of the message, to be signed."""
    document = {item.name: getattr(found, item.name) for item in fields(found)}
    return _HEAD + json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def decode_running_power(body: bytes) -> RunningPower:
    """Return what an authenticated node says.

    Raises:
        WireError: it is malformed, or a value is outside its bound.
    """
    if not body.startswith(_HEAD):
        raise WireError("the message does not state the power of a job")
    fields = Fields(loads(body[len(_HEAD) :], "power of a job", MAX_BODY_BYTES), "power")
    gpu_type = fields.optional_text("gpu_type", 63)
    num_gpus = fields.integer("num_gpus", 1, MAX_GPUS)
    found = RunningPower(
        job_id=JobId(fields.integer("job_id", 1, MAX_JOB_ID)),
        node=NodeName(fields.text("node", 255)),
        gpu_type=None if gpu_type is None else GpuTypeName(gpu_type),
        num_gpus=num_gpus,
        watts=fields.optional_number("watts", 0, MAX_WATTS_PER_GPU * num_gpus),
        clock_mhz=fields.integer("clock_mhz", 1, MAX_CLOCK_MHZ),
        decided_clock_mhz=fields.integer("decided_clock_mhz", 1, MAX_CLOCK_MHZ),
        default_clock_mhz=fields.integer("default_clock_mhz", 1, MAX_CLOCK_MHZ),
        lowest_clock_mhz=fields.integer("lowest_clock_mhz", 1, MAX_CLOCK_MHZ),
        may_lower=fields.flag("may_lower"),
    )
    if not found.lowest_clock_mhz <= found.decided_clock_mhz <= found.default_clock_mhz:
        raise WireError(
            f"clocks of job {found.job_id} on {found.node} are not in order: lowest {found.lowest_clock_mhz}, "
            f"decided {found.decided_clock_mhz}, default {found.default_clock_mhz} MHz"
        )
    return found


def encode_order(order: ClockOrder) -> str:
    """Return the order as one line, to be signed."""
    return f"power {order.clock_mhz or 0} {order.lease_seconds:.3f} {order.ask_seconds:.3f}"


def decode_order(text: str) -> ClockOrder:
    """Return the order of a daemon.

    Raises:
        WireError: it is malformed, or a value is outside its bound.
    """
    words = text.split(" ")
    try:
        if len(words) != 4 or words[0] != VERB or not words[1].isdigit():
            raise ValueError(text)
        clock, lease, ask = int(words[1]), float(words[2]), float(words[3])
        if not (0 <= clock <= MAX_CLOCK_MHZ and 0.0 < lease <= MAX_LEASE_SECONDS and 0.0 < ask <= lease):
            raise ValueError(text)
    except ValueError as error:
        raise WireError(f"the daemon's answer on a job's power is {text[:80]!r}") from error
    return ClockOrder(clock_mhz=clock or None, lease_seconds=lease, ask_seconds=ask)
