"""Which board each of Slurm's GPUs is, and whether the boards have the power limit that clocks are chosen for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy.cli.doctor.finding import Finding, fail, ok, several, skip, warn
from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.node_status import NodeStatus
from slurm_energy.energy_model.catalog import LIMIT_TOLERANCE
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.errors import ConfigError
from slurm_energy.node.gpu_mapping import GpuMapping, MappedGpu
from slurm_energy.policy.site_limits import site_board_limits

SUBJECT = "GPU power limits"
IDENTITY = "GPU identity"
MAX_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One local GPU and the power limit in force; None when it does not tell."""

    gpu_type: GpuTypeName | None
    limit_watts: float | None


def board_checks(config: Config, boards: Mapping[str, Sequence[Board]]) -> Iterator[Finding]:
    """Yield a finding for each GPU type for which clocks are chosen.

    Args:
        config: That of this host.
        boards: Of each node by its name; this host's own under an empty one.
    """
    try:
        limits = site_board_limits(config)
    except ConfigError as error:
        yield fail(SUBJECT, str(error), "fix [gpu_power_limits_watts] in slurm-energy.toml, on every host")
        return
    for gpu_type, found in sorted(_by_type(boards).items()):
        assumed = limits.known_watts(gpu_type)
        if assumed is not None and clock_table_of(gpu_type) is not None:
            yield _finding(gpu_type, assumed, found)


def status_boards(status: NodeStatus) -> tuple[Board, ...]:
    """Return the boards that a node has told of."""
    return tuple(Board(gpu_type=gpu.gpu_type, limit_watts=gpu.power_limit_watts) for gpu in status.gpus or ())


def mapping_checks(mapping: GpuMapping) -> Iterator[Finding]:
    """Yield what is known of Slurm's numbers: which GPU each is, by what it is proven, and where orders differ."""
    counted = sorted(mapping.positions.values(), key=lambda gpu: gpu.position or 0)
    lost = next((gpu for gpu in counted if not gpu.proven), None)
    if mapping.problem or lost is not None or not counted:
        why = mapping.problem or (
            "Slurm counts no GPU here" if lost is None else f"position {lost.position}: {lost.problem}"
        )
        yield fail(
            IDENTITY,
            f"{why}: no clock is set and no energy billed for jobs on it",
            "compare `slurmd -G` with /dev/nvidia*, restart slurmd, then slurm-energy-hook repair (as root)",
        )
        return
    yield ok(IDENTITY, f"{_shown(counted)} (by {' and '.join(counted[0].ways)})")
    moved = [gpu for gpu in counted if gpu.minor_number != gpu.index]
    if moved:
        text = (
            f"/dev/nvidia{moved[0].minor_number} is the driver's index {moved[0].index}, and {len(moved)} GPUs are so"
        )
        yield warn(
            IDENTITY, f"minor numbers are not the driver's order: {text}", "none: `nvidia-smi -i` takes the index"
        )
    forgotten = [gpu for gpu in mapping.gpus if gpu.position is None]
    if forgotten:
        names = ", ".join(f"{gpu.uuid}" for gpu in forgotten[:4])
        yield warn(IDENTITY, f"Slurm does not count {len(forgotten)} GPUs of this node: {names}", "add them to Gres=")


def _shown(counted: Sequence[MappedGpu]) -> str:
    shown = [_line(gpu) for gpu in counted[:MAX_SHOWN]]
    return "; ".join([*shown, *(["..."] if len(counted) > MAX_SHOWN else [])])


def _line(gpu: MappedGpu) -> str:
    place = f"/dev/nvidia{gpu.minor_number}, index {gpu.index}, {gpu.pci_bus_id or 'bus unknown'}"
    return f"{gpu.position} = {gpu.slurm_type or 'gpu'}: {place}, {gpu.uuid}"


def _by_type(boards: Mapping[str, Sequence[Board]]) -> Mapping[GpuTypeName, list[tuple[str, float | None]]]:
    found: dict[GpuTypeName, list[tuple[str, float | None]]] = {}
    for node, of_node in boards.items():
        for board in of_node:
            if board.gpu_type is not None:
                found.setdefault(board.gpu_type, []).append((node, board.limit_watts))
    return found


def _finding(gpu_type: GpuTypeName, assumed_watts: float, found: Sequence[tuple[str, float | None]]) -> Finding:
    known = [watts for _node, watts in found if watts is not None]
    above = [node for node, watts in found if watts is not None and watts > assumed_watts * (1.0 + LIMIT_TOLERANCE)]
    if not known:
        return skip(SUBJECT, f"{gpu_type}: no board tells its own; clocks are chosen for {assumed_watts:g} W")
    highest, lowest = max(known), min(known)
    place = "under [gpu_power_limits_watts] in slurm-energy.toml, on the controller and these nodes"
    setting = f'"{gpu_type}" = {highest:g} {place}'
    if above:
        where = f"on {several(above)}" if all(above) else "here"
        text = f"{gpu_type}: {highest:g} W, clocks are chosen for {assumed_watts:g} W: the default clock stays {where}"
        return fail(SUBJECT, text, f"set {setting}, then systemctl reload slurm-energyd")
    if lowest < assumed_watts * (1.0 - LIMIT_TOLERANCE):
        text = f"{gpu_type}: {lowest:g} W, clocks are chosen for {assumed_watts:g} W: less is saved than predicted"
        return warn(SUBJECT, text, f"set {setting}, unless other boards of this type have {assumed_watts:g} W")
    return ok(SUBJECT, f"{gpu_type}: {assumed_watts:g} W, as clocks are chosen for")
