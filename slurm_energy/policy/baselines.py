"""Policies without learning that others must beat: Slurm's default, and one fixed clock per GPU type."""

from collections.abc import Iterable, Mapping

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import ClockChoice, PolicyAnswer, Reason
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.job import JobRequest
from slurm_energy.energy_model.catalog import CATALOG, BoardLimits
from slurm_energy.energy_model.operating_point import OperatingPoint, clock_table_of
from slurm_energy.policy.base import Candidate, DecisionContext


class SlurmDefaultPolicy:
    """Changes nothing."""

    name = "slurm-default"
    version = "1"

    def decide(self, job: JobRequest, snapshot: ClusterSnapshot, context: DecisionContext) -> PolicyAnswer:  # noqa: ARG002  # the protocol's form
        """Return an empty answer."""
        return PolicyAnswer()


class FixedClockPolicy:
    """One clock per GPU type for every job: the site's table, else the best clock inside the site's bound."""

    name = "fixed-clock"
    version = "1"

    def __init__(self, fixed_clocks_mhz: Mapping[GpuTypeName, int], max_slowdown: float) -> None:
        self._max_slowdown = max_slowdown
        self._clocks = dict(fixed_clocks_mhz)

    def decide(self, job: JobRequest, snapshot: ClusterSnapshot, context: DecisionContext) -> PolicyAnswer:  # noqa: ARG002  # the protocol's form
        """Return the table's clock for each GPU type that the job can land on."""
        clocks = [self._choice(gpu_type, context) for gpu_type in landing_types(context.candidates)]
        return PolicyAnswer(clocks=tuple(clock for clock in clocks if clock is not None))

    def _choice(self, gpu_type: GpuTypeName, context: DecisionContext) -> ClockChoice | None:
        limits, table = context.board_limits, context.comparison.clock_table(gpu_type)
        if table is None:
            return None
        wanted = self._clocks.get(gpu_type)
        if wanted is None:
            return clock_choice(gpu_type, table.best(self._max_slowdown), limits)
        nearest = CATALOG[gpu_type].nearest_supported_clock_mhz(wanted)
        return None if nearest is None else clock_choice(gpu_type, table.at(nearest), limits)


def landing_types(candidates: Iterable[Candidate]) -> tuple[GpuTypeName, ...]:
    """Return the GPU types of all candidates, each once, in their order."""
    return tuple(dict.fromkeys(name for candidate in candidates for name in candidate.gpu_types))


def clock_choice(gpu_type: GpuTypeName, point: OperatingPoint | None, board_limits: BoardLimits) -> ClockChoice | None:
    """Return an operating point of such boards as an answer; None for the default clock and for no point at all."""
    if point is None or point.sm_clock_mhz == point.default_clock_mhz:
        return None
    return ClockChoice(
        gpu_type=gpu_type,
        sm_clock_mhz=point.sm_clock_mhz,
        default_clock_mhz=point.default_clock_mhz,
        predicted_slowdown=point.slowdown,
        predicted_energy_change=point.energy_change,
        power_limit_watts=board_limits.known_watts(gpu_type),
        is_assumed=point.source == "model",
    )


def unknown_types(candidates: Iterable[Candidate]) -> tuple[GpuTypeName, ...]:
    """Return the GPU types for which no clock can be chosen, since nobody has measured them at several clocks."""
    return tuple(name for name in landing_types(candidates) if clock_table_of(name) is None)


def unknown_reasons(candidates: Iterable[Candidate]) -> tuple[tuple[Reason, ...], tuple[str, ...]]:
    """Return the reason and the sentences for GPU types without measured curves; empty when all have them."""
    names = unknown_types(candidates)
    notes = tuple(f"{name}: energy at lower clocks is unknown, no clock is chosen" for name in names)
    return ((Reason.UNKNOWN_GPU_TYPE,) if names else (), notes)
