"""What is said of a clock that a network's expectation led to: from which evidence, and what the tables would give."""

from dataclasses import replace

from slurm_energy.domain.decision import ClockChoice
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.policy.guard.clocks import SlowdownRoom
from slurm_energy.policy.site.comparison import TypeComparison


def prediction_notes(
    gpu_type: GpuTypeName, choice: ClockChoice | None, room: SlowdownRoom, comparison: TypeComparison
) -> tuple[str, ...]:
    """Return one sentence where a network's expectation decided; none where tables did.

    Args:
        gpu_type: On which the job may land.
        choice: Its clock; None for the default one.
        room: What the job's rules leave.
        comparison: For the job.
    """
    predicted, expected = comparison.predicted, comparison.expected(gpu_type)
    if predicted is None or expected is None:
        return ()
    table = replace(comparison, predicted=None).clock_table(gpu_type)
    point = None if table is None else room.best_of(table)
    is_default = point is None or point.sm_clock_mhz == point.default_clock_mhz
    by_tables = "the default clock" if point is None or is_default else f"{point.sm_clock_mhz} MHz"
    if choice is None:
        return (f"{gpu_type}: the default clock, expected from {predicted.evidence}; by tables alone {by_tables}",)
    here = expected.at(choice.sm_clock_mhz / choice.default_clock_mhz)
    if here is None:
        return ()
    slowdown, upper, energy_change = here
    sentence = (
        f"{gpu_type}: {choice.sm_clock_mhz} MHz expected to take {slowdown:.1%} longer (nine of ten below {upper:.1%}) "
        f"with {energy_change:+.1%} energy, from {predicted.evidence}; by tables alone {by_tables}"
    )
    return (sentence,)
