"""How many GPUs a job is given, where its user named several numbers: by a policy's costs, else by a rule.

Fewer GPUs always need less energy for the same work, since each of many loses time waiting for the others; but a job on
fewer of them takes longer, and leaves more to others. By the name's own runs a job gets the most GPUs up to which each
doubling makes it 1.5 times as fast. Without them it gets its own number, and of large jobs at most
`policy.unmeasured_gpu_count`. Once runs with one number have ended, the next one gets about half of it, so that there
are two to compare; where the range has nothing smaller, about twice as many.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log2

from slurm_energy.config import PolicyConfig
from slurm_energy.domain.gpu_count import UNKNOWN_SCALING, GpuScaling
from slurm_energy.policy.base import Case, CountCost

MIN_SPEEDUP_OF_DOUBLING = 1.5
_DEVIATIONS = 1.0
"""By how much of their doubt runs must tell the speed-up of more GPUs than the job asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCount:
    """A number of GPUs, and why."""

    gpus: int
    note: str


def chosen_count(case: Case, settings: PolicyConfig) -> ChosenCount:
    """Return how many GPUs the job gets, of `case.gpu_counts`."""
    asked, counts = case.job.gpu_count, case.gpu_counts
    scaling = case.scaling
    if scaling is None or not scaling.is_measured:
        usual = _unmeasured(asked, counts, settings.unmeasured_gpu_count)
        return usual if scaling is None or not scaling.counts else _second(usual, asked, counts, scaling.counts[0])
    chosen = counts[0]
    for count in counts[1:]:
        # Beyond what the user asked for, a doubtful gain is none: he waits for the GPUs, and others for him.
        doubt = _DEVIATIONS if count > asked else 0.0
        if speed_of_doubling(scaling, chosen, count, doubt) >= MIN_SPEEDUP_OF_DOUBLING:
            chosen = count
    runs = ", ".join(map(str, scaling.counts))
    faster = ", ".join(
        f"{count} GPUs {scaling.speedup(count) / scaling.speedup(asked):.2f}" for count in _shown(counts, asked, chosen)
    )
    note = (
        f"{_gpus(chosen)} of {_listed(counts)}: the most up to which a doubling is {MIN_SPEEDUP_OF_DOUBLING:g} times "
        f"as fast, by runs of this name on {runs}; speed against {_gpus(asked)}: {faster}"
    )
    return ChosenCount(gpus=chosen, note=note)


def cheapest_count(case: Case, costs: Sequence[CountCost]) -> ChosenCount | None:
    """Return the number of GPUs of the least cost, of those with room now if there are any; None where few are known.

    Args:
        case: The job's, with its own number.
        costs: By a policy; those of numbers that the job cannot have do not count.
    """
    known = {one.gpus: one for one in costs if one.gpus in case.gpu_counts and isfinite(one.joules)}
    own = known.get(case.job.gpu_count)
    if own is None or len(known) < 2:
        return None
    open_now = [one for one in known.values() if one.has_room] or list(known.values())
    best = min(open_now, key=lambda one: (one.joules, abs(one.gpus - own.gpus)))
    runs = ", ".join(map(str, () if case.scaling is None else case.scaling.counts))
    shown = _shown(sorted(known), own.gpus, best.gpus)
    against = ", ".join(f"{_gpus(count)} {100.0 * _change(known[count], own):+.0f} %" for count in shown)
    note = (
        f"{_gpus(best.gpus)} of {_listed(sorted(known))}: the least cost of partition, number and clock together, by "
        f"runs of this name on {runs}; against {_gpus(own.gpus)}: {against}"
    )
    return ChosenCount(gpus=best.gpus, note=note)


def _change(one: CountCost, own: CountCost) -> float:
    return one.joules / own.joules - 1.0 if own.joules > 0.0 else 0.0


def speed_of_doubling(scaling: GpuScaling, few: int, many: int, deviations: float = 0.0) -> float:
    """Return how many times as fast each doubling between two numbers of GPUs makes the work."""
    gain = scaling.speedup(many, deviations) / scaling.speedup(few, deviations)
    faster: float = gain ** (1.0 / log2(many / few))
    return faster


def count_effect(case: Case, gpus: int) -> tuple[float, float]:
    """Return run time and GPU energy with another number of GPUs, over those with the job's own."""
    scaling, asked = case.scaling or UNKNOWN_SCALING, case.job.gpu_count
    longer = scaling.speedup(asked) / scaling.speedup(gpus)
    return longer, longer * gpus / asked


def _unmeasured(asked: int, counts: Sequence[int], most: int) -> ChosenCount:
    allowed = [count for count in counts if count <= asked]
    chosen = max((count for count in allowed if count <= most), default=allowed[0])
    unknown = "this name has no runs with two numbers of GPUs"
    if chosen == asked:
        return ChosenCount(gpus=asked, note=f"{_gpus(asked)}, as asked for: {unknown}")
    return ChosenCount(
        gpus=chosen,
        note=f"{_gpus(chosen)} of {_listed(counts)}: {unknown}, and large jobs then get at most {most}",
    )


def _second(usual: ChosenCount, asked: int, counts: Sequence[int], known: int) -> ChosenCount:
    """Return a second number of GPUs for a name that has run with one: about half of it, else about twice as many."""
    fewer = [count for count in counts if count < known and count <= asked]
    more = [count for count in counts if known < count <= max(asked, 2 * known)]
    if not (fewer or more):
        return usual
    wanted = known / 2.0 if fewer else 2.0 * known
    chosen = min(fewer or more, key=lambda count: (abs(log2(count / wanted)), -count))
    note = f"{_gpus(chosen)} of {_listed(counts)}: runs of this name had {known}, a second number tells how it scales"
    return ChosenCount(gpus=chosen, note=note)


def _shown(counts: Sequence[int], asked: int, chosen: int) -> list[int]:
    """Return the numbers next to the chosen one, without the job's own."""
    at = counts.index(chosen)
    near = {counts[index] for index in range(max(0, at - 1), min(len(counts), at + 2))}
    return sorted(near - {asked})


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"
