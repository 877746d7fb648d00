"""Whether this node's boards have the power limit that clocks are chosen for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy.cli.doctor.finding import Finding, fail, ok, skip, warn
from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.board_limits import LIMIT_TOLERANCE
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.errors import ConfigError
from slurm_energy.policy.site_limits import site_board_limits

SUBJECT = "GPU power limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One local GPU and the power limit in force; None when it does not tell."""

    gpu_type: GpuTypeName | None
    limit_watts: float | None


def board_checks(config: Config, boards: Sequence[Board]) -> Iterator[Finding]:
    """Yield a finding for each GPU type for which clocks are chosen."""
    try:
        limits = site_board_limits(config)
    except ConfigError as error:
        yield fail(SUBJECT, str(error), "fix [gpu_power_limits_watts] in slurm-energy.toml, on every host")
        return
    for gpu_type, found in sorted(_by_type(boards).items()):
        assumed = limits.known_watts(gpu_type)
        if assumed is not None and clock_table_of(gpu_type) is not None:
            yield _finding(gpu_type, assumed, found)


def _by_type(boards: Sequence[Board]) -> Mapping[GpuTypeName, list[float | None]]:
    found: dict[GpuTypeName, list[float | None]] = {}
    for board in boards:
        if board.gpu_type is not None:
            found.setdefault(board.gpu_type, []).append(board.limit_watts)
    return found


def _finding(gpu_type: GpuTypeName, assumed_watts: float, found: Sequence[float | None]) -> Finding:
    known = [watts for watts in found if watts is not None]
    if not known:
        return skip(SUBJECT, f"{gpu_type}: no board tells its own; clocks are chosen for {assumed_watts:g} W")
    highest, lowest = max(known), min(known)
    setting = f'"{gpu_type}" = {highest:g} under [gpu_power_limits_watts] in slurm-energy.toml, on the controller too'
    if highest > assumed_watts * (1.0 + LIMIT_TOLERANCE):
        text = f"{gpu_type}: {highest:g} W, clocks are chosen for {assumed_watts:g} W: the default clock stays here"
        return fail(SUBJECT, text, f"set {setting}")
    if lowest < assumed_watts * (1.0 - LIMIT_TOLERANCE):
        text = f"{gpu_type}: {lowest:g} W, clocks are chosen for {assumed_watts:g} W: less is saved than predicted"
        return warn(SUBJECT, text, f"set {setting}, unless other boards of this type have {assumed_watts:g} W")
    return ok(SUBJECT, f"{gpu_type}: {assumed_watts:g} W, as clocks are chosen for")
