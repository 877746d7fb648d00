"""From finished runs to what a job of the same user and name will need at the default clock."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from slurm_energy.daemon.frames import MAX_ITEMS, RuntimePart
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.policy.comparison import MOST_DOUBT
from slurm_energy.store.history import RuntimeSample

SOURCE = "history"
RUNS_PER_NAME = 20
MAX_NAMES = 20_000


def runtime_estimate(seconds: Sequence[float], gpu_type: GpuTypeName | None = None) -> RuntimeEstimate:
    """Return the median and a bound that holds in about 19 of 20 cases.

    The longest of n runs is passed by the next with probability 1/(n + 1): 19 runs give the bound as they are, fewer
    get a margin of 1/n of the longest.
    """
    longest = max(seconds)
    upper = longest if len(seconds) >= 19 else longest * (1.0 + 1.0 / len(seconds))
    return RuntimeEstimate(seconds=statistics.median(seconds), upper_seconds=upper, source=SOURCE, gpu_type=gpu_type)


def runtime_estimates(
    samples: Iterable[RuntimeSample], work: Mapping[tuple[int, str], WorkEstimate] | None = None
) -> list[tuple[int, str, RuntimeEstimate]]:
    """Return estimates of the names that ran last.

    Args:
        samples: Ordered by user and name.
        work: What is known of how a name's work compares between GPU types, by user and name.
    """
    found: list[tuple[float, int, str, RuntimeEstimate]] = []
    for (user_id, name), runs in itertools.groupby(samples, key=lambda sample: (sample.user_id, sample.name)):
        known = list(runs)
        estimate = runtime_estimate(*_on_one_type(known, (work or {}).get((user_id, name))))
        found.append((max(run.ended_at_seconds for run in known), user_id, name, estimate))
    found.sort(key=lambda item: item[0], reverse=True)
    return [(user_id, name, estimate) for _, user_id, name, estimate in found[:MAX_NAMES]]


def _on_one_type(runs: Sequence[RuntimeSample], work: WorkEstimate | None) -> tuple[list[float], GpuTypeName | None]:
    """Return the seconds of runs as if all had been on the type that most were on, and that type.

    Where the types cannot be told or compared, the seconds are as they are, and speak of no type.
    """
    seconds = [run.default_clock_seconds for run in runs]
    types = Counter(run.gpu_type for run in runs)
    usual = max(types, key=lambda gpu_type: types[gpu_type])
    if usual is None or len(types) == 1:
        return seconds, usual if len(types) == 1 else None
    if None in types or work is None or any(_doubt(work, usual, gpu_type) > MOST_DOUBT for gpu_type in types):
        return seconds, None
    ratios = {gpu_type: work.time_ratio(usual, gpu_type) for gpu_type in types if gpu_type is not None}
    return [run.default_clock_seconds * ratios[run.gpu_type] for run in runs if run.gpu_type is not None], usual


def _doubt(work: WorkEstimate, one: GpuTypeName, other: GpuTypeName | None) -> float:
    doubt = None if other is None else work.doubt(one, other)
    return math.inf if doubt is None else doubt


def runtime_parts(estimates: Sequence[tuple[int, str, RuntimeEstimate]]) -> Iterator[RuntimePart]:
    """Yield the table in frames of at most `MAX_ITEMS` estimates; an empty table is one frame."""
    begins = range(0, max(1, len(estimates)), MAX_ITEMS)
    for begin in begins:
        part = tuple(estimates[begin : begin + MAX_ITEMS])
        yield RuntimePart(estimates=part, first=begin == 0, last=begin == begins[-1])
