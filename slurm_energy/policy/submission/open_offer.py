"""What a named partition costs: the energy that another one would save, and where the job could start now.

Only what is known is said: energy by runs of the job's name or by tables, with who says so, and room for this very job
as the picture of the cluster has it. A partition without may still have free GPUs: too few, or other jobs come first.
How long a job would wait is not known, and nothing is promised of it.
"""

from slurm_energy.domain.decision import OpenOffer, SlowdownBasis
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.comparison import Candidate, landing_types, with_room
from slurm_energy.policy.site.type_bound import cheapest, default_candidate, lacks_runs_at_home

MIN_SAVING = 0.01
"""Less is not worth a word."""
SOURCES = {"measured": "workloads measured on both", "specification": "data sheets"}


def open_offer(case: Case) -> OpenOffer | None:
    """Return what the job could have had outside its own partitions; None where that is nothing, or is not known.

    Args:
        case: The job's, with its named partitions as a preference, at the site.
    """
    if not case.may_route:
        return None
    best = cheapest(case.candidates, case.type_bound)
    if best is None or best.candidate.is_submitted_to or len(best.candidate.gpu_types) != 1:
        return None
    home, here = default_candidate(with_room(case.candidates)), started_in(case)
    if here is None or len(here.gpu_types) != 1 or lacks_runs_at_home(best.candidate, home, case.comparison):
        return None
    there_type, here_type = best.candidate.gpu_types[0], here.gpu_types[0]
    cost = case.comparison.cost(there_type, here_type)
    if cost is None:
        return None
    there_factor = _clock_factor(case, there_type, case.type_bound.left(there_type))
    here_factor = _clock_factor(case, here_type, case.max_slowdown)
    change = cost.energy_ratio * there_factor / here_factor - 1.0
    has_room = any(one.is_submitted_to and one.has_idle_room for one in case.candidates)
    if change > -MIN_SAVING and (has_room or change > 0.0):
        return None
    watts, runtime = case.comparison.watts(here_type), case.runtime
    joules = None
    if watts is not None and runtime is not None and runtime.is_known and runtime.gpu_type in {None, here_type}:
        joules = watts * here_factor * case.job.gpu_count * runtime.seconds * -change
    return OpenOffer(
        partition=best.candidate.partition.name,
        energy_change=change,
        source=SOURCES.get(cost.source, cost.source),
        joules=joules,
        named_has_room=has_room,
    )


def started_in(case: Case) -> Candidate | None:
    """Return where Slurm would start the job by itself: now, or where it waits as soon as its own first has room."""
    home = default_candidate(with_room(case.candidates))
    return home or default_candidate([one for one in case.candidates if one.gpu_types])


def slowdown_basis(case: Case, bound: float) -> SlowdownBasis:
    """Return what the job's slowdown is to be held against, for every GPU type on which it can land.

    Args:
        case: The job's.
        bound: The site's or the user's, of one job: where the site's is held in the mean, a clock may go beyond it.
    """
    home = started_in(case)
    own = None if home is None or len(home.gpu_types) != 1 else home.gpu_types[0]
    found: dict[GpuTypeName, float] = {}
    by_runs = own is not None
    for name in landing_types(case.candidates):
        cost = None if own is None else case.comparison.cost(name, own)
        if cost is not None:
            found[name] = cost.time_ratio - 1.0
            by_runs = by_runs and (name == own or cost.is_by_runs)
    return SlowdownBasis(bound=bound, type_bound=case.max_type_slowdown, type_slowdowns=found, by_runs=by_runs)


def offer_text(offer: OpenOffer, named: str) -> str:
    """Return an offer as a sentence with figures, for `explain` and the line after a job was accepted."""
    parts = []
    if offer.energy_change <= -MIN_SAVING:
        much = f"about {round(-100.0 * offer.energy_change)} % of the energy"
        joules = "" if offer.joules is None else f", {offer.joules / 1000.0:.0f} kJ"
        parts.append(f"--energy-open could have saved {much}{joules} in partition {offer.partition}, by {offer.source}")
    if not offer.named_has_room:
        parts.append(f"partition {offer.partition} has room for this job now, {named} is not seen to have any")
    return "; ".join(parts)


def offer_announcement(offer: OpenOffer) -> str:
    """Return the same without figures and names, which may hold digits: said before the job is accepted."""
    parts = []
    if offer.energy_change <= -MIN_SAVING:
        parts.append(f"less energy in another partition by {offer.source}")
    if not offer.named_has_room:
        parts.append("room in another partition now, where none is seen in the named one")
    return f"left open (--energy-open), the job could use {' and '.join(parts)}" if parts else ""


def _clock_factor(case: Case, gpu_type: GpuTypeName, bound: float | None) -> float:
    table = case.comparison.clock_table(gpu_type)
    point = None if table is None or bound is None else table.best(bound)
    return 1.0 if point is None else 1.0 + point.energy_change
