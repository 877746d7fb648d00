"""Policies without learning that others must beat: Slurm's default, and one fixed clock per GPU type."""

from collections.abc import Mapping

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import ClockChoice, PolicyAnswer
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.job import JobRequest
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.policy.base import DecisionContext
from slurm_energy.policy.site.comparison import clock_choice, landing_types


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
