"""From finished runs to what a job of the same user and name will need at the default clock."""

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.catalog import CATALOGUE_LIMITS, BoardLimits
from slurm_energy.policy.comparison import TypeComparison
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
    samples: Iterable[RuntimeSample],
    work: Mapping[tuple[int, str], WorkEstimate] | None = None,
    limits: BoardLimits = CATALOGUE_LIMITS,
) -> list[tuple[int, str, RuntimeEstimate]]:
    """Return estimates of the names that ran last.

    Args:
        samples: Ordered by user and name.
        work: What is known of how a name's work compares between GPU types, by user and name.
        limits: Power limits of the site's boards.
    """
    found: list[tuple[float, int, str, RuntimeEstimate]] = []
    for (user_id, name), runs in itertools.groupby(samples, key=lambda sample: (sample.user_id, sample.name)):
        known = list(runs)
        comparison = TypeComparison(limits=limits, work=(work or {}).get((user_id, name)))
        estimate = runtime_estimate(*_on_one_type(known, comparison))
        found.append((max(run.ended_at_seconds for run in known), user_id, name, estimate))
    found.sort(key=lambda item: item[0], reverse=True)
    return [(user_id, name, estimate) for _, user_id, name, estimate in found[:MAX_NAMES]]


def _on_one_type(runs: Sequence[RuntimeSample], comparison: TypeComparison) -> tuple[list[float], GpuTypeName | None]:
    """Return the seconds of runs as if all had been on the type that most were on, and that type.

    By tables a run on another type is taken to be as long as the worst of what was measured makes it. Where the types
    cannot be told or compared, the seconds are as they are, and speak of no type.
    """
    seconds = [run.default_clock_seconds for run in runs]
    types = Counter(run.gpu_type for run in runs)
    usual = max(types, key=lambda gpu_type: types[gpu_type])
    if usual is None or None in types:
        return seconds, None
    ratios = {gpu_type: _ratio(usual, gpu_type, comparison) for gpu_type in types}
    if any(ratio is None for ratio in ratios.values()):
        return seconds, None
    return [run.default_clock_seconds * (ratios[run.gpu_type] or 1.0) for run in runs], usual


def _ratio(usual: GpuTypeName, gpu_type: GpuTypeName | None, comparison: TypeComparison) -> float | None:
    cost = None if gpu_type is None else comparison.cost(usual, gpu_type)
    if cost is None:
        return None
    return cost.time_ratio if cost.is_by_runs else max(1.0, cost.worst_time_ratio)
