"""From finished runs to what a job of the same user and name will need at the default clock."""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence

from slurm_energy.daemon.frames import MAX_ITEMS, RuntimePart
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.store.history import RuntimeSample

SOURCE = "history"
RUNS_PER_NAME = 20
MAX_NAMES = 20_000


def runtime_estimate(seconds: Sequence[float]) -> RuntimeEstimate:
    """Return the median and a bound that holds in about 19 of 20 cases.

    The longest of n runs is passed by the next with probability 1/(n + 1): 19 runs give the bound as they are, fewer
    get a margin of 1/n of the longest.
    """
    longest = max(seconds)
    upper = longest if len(seconds) >= 19 else longest * (1.0 + 1.0 / len(seconds))
    return RuntimeEstimate(seconds=statistics.median(seconds), upper_seconds=upper, source=SOURCE)


def runtime_estimates(samples: Iterable[RuntimeSample]) -> list[tuple[int, str, RuntimeEstimate]]:
    """Return estimates of the names that ran last; samples come ordered by user and name."""
    found: list[tuple[float, int, str, RuntimeEstimate]] = []
    for (user_id, name), runs in itertools.groupby(samples, key=lambda sample: (sample.user_id, sample.name)):
        known = list(runs)
        estimate = runtime_estimate([run.default_clock_seconds for run in known])
        found.append((max(run.ended_at_seconds for run in known), user_id, name, estimate))
    found.sort(key=lambda item: item[0], reverse=True)
    return [(user_id, name, estimate) for _, user_id, name, estimate in found[:MAX_NAMES]]


def runtime_parts(estimates: Sequence[tuple[int, str, RuntimeEstimate]]) -> Iterator[RuntimePart]:
    """Yield the table in frames of at most `MAX_ITEMS` estimates; an empty table is one frame."""
    begins = range(0, max(1, len(estimates)), MAX_ITEMS)
    for begin in begins:
        part = tuple(estimates[begin : begin + MAX_ITEMS])
        yield RuntimePart(estimates=part, first=begin == 0, last=begin == begins[-1])
