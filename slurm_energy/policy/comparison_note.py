"""What runs of a job's name, or tables, said of GPU types: in sentences for whoever asks why."""

from collections.abc import Iterable, Mapping

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.relative_speed import RelativeCost
from slurm_energy.policy.base import Candidate, DecisionContext
from slurm_energy.policy.baselines import landing_types
from slurm_energy.policy.routing import rivals_of, slurms_own, with_room

_LISTED = 4
_SOURCES = {
    "measured": "workloads measured on both",
    "specification": "data sheets",
}


def comparison_notes(context: DecisionContext, shown_names: Mapping[GpuTypeName, str]) -> tuple[str, ...]:
    """Return what each GPU type with room costs beside the one that Slurm would take, and who says so.

    Nothing where there is one type, or they cannot be compared. Where the job would wait, it is beside the fastest.

    Args:
        context: Of a job for which partitions are open to choice.
        shown_names: Slurm's names of the types.
    """
    candidates = with_room(context.candidates)
    rivals = rivals_of(candidates, context.comparison)
    if rivals is None or len(rivals.types) == 1:
        return ()
    own = slurms_own(candidates)
    home = rivals.fastest if own is None else own.gpu_types[0]
    others = [name for name in rivals.types if name != home]
    runs = _runs(context.work, shown_names)
    return tuple(
        f"beside {shown_names.get(home, home)}, {_told(shown_names.get(name, name), cost, runs)}"
        for name in others[:_LISTED]
        if (cost := context.comparison.cost(name, home)) is not None
    )


def light_notes(
    landing: Iterable[Candidate], context: DecisionContext, shown_names: Mapping[GpuTypeName, str]
) -> tuple[str, ...]:
    """Return why a job keeps the default clock on types where its name draws far less than what was measured.

    Args:
        landing: Where the job may start.
        context: What the policy was told.
        shown_names: Slurm's names of the types.
    """
    comparison = context.comparison
    return tuple(
        f"{shown_names.get(name, name)}: runs of this name draw {comparison.watts(name):.0f} W, far less than any "
        "measured workload: what a lower clock does to it is unknown, the default clock stays"
        for name in landing_types(landing)
        if comparison.draws_less(name)
    )


def _told(name: str, cost: RelativeCost, runs: str) -> str:
    source = _SOURCES.get(cost.source, cost.source)
    counted = f" ({runs})" if runs and cost.source not in _SOURCES else ""
    times, joules = f"{cost.time_ratio:.2f} times as long", f"{cost.energy_ratio:.2f} of the energy"
    return f"{name} takes {times} and {joules}, by {source}{counted}"


def _runs(work: WorkEstimate | None, shown_names: Mapping[GpuTypeName, str]) -> str:
    counts = {} if work is None else work.runs_by_type
    return ", ".join(f"{runs} on {shown_names.get(name, name)}" for name, runs in counts.items())
