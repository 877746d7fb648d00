"""From a name's ended runs with several numbers of GPUs to how its work scales, with its doubt; no library is needed.

`scaling` tells speed-ups of work that was measured on its own; here are run times alone, of whatever jobs ran. What two
GPUs lose has the spread of public applications before any run (`UNKNOWN_SCALING`), and each pair of numbers of GPUs is
evidence by the ratio of their run times: the posterior is worked out on a grid.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log, sqrt
from statistics import median

from slurm_energy.domain.gpu_count import UNKNOWN_SCALING, GpuScaling, speedup_at

MIN_SPREAD = 0.05
"""Of the logarithm of run times of one name with one number of GPUs: what is less is luck."""
_ASSUMED_SPREAD = 0.15
"""The same where too few runs tell it."""
_MIN_RUNS_FOR_SPREAD = 3
_STEPS = 120
_REACH = 4.0
"""Standard deviations of the prior to either side."""


def scaling_of_runs(seconds_by_gpus: Mapping[int, Sequence[float]]) -> GpuScaling | None:
    """Return how work scales by its run times; by what other work does where all had one number, None without any.

    Args:
        seconds_by_gpus: Run times above 0, as if on one GPU type at its default clock, by number of GPUs.
    """
    counts = sorted(gpus for gpus, seconds in seconds_by_gpus.items() if gpus >= 1 and seconds)
    if len(counts) < 2:
        return replace(UNKNOWN_SCALING, counts=tuple(counts)) if counts else None
    logs = {gpus: [log(one) for one in seconds_by_gpus[gpus]] for gpus in counts}
    middles = {gpus: median(values) for gpus, values in logs.items()}
    errors = {gpus: _spread(values) / sqrt(len(values)) for gpus, values in logs.items()}
    prior = UNKNOWN_SCALING
    weights: list[tuple[float, float]] = []
    for step in range(-_STEPS, _STEPS + 1):
        away = _REACH * step / _STEPS
        log_loss = prior.log_loss + away * prior.doubt
        fit = -0.5 * away * away
        for few, many in pairwise(counts):
            expected = log(speedup_at(many, log_loss) / speedup_at(few, log_loss))
            error = sqrt(errors[few] ** 2 + errors[many] ** 2)
            fit -= 0.5 * ((middles[few] - middles[many] - expected) / error) ** 2
        weights.append((log_loss, fit))
    best = max(fit for _, fit in weights)
    shares = [(log_loss, exp(fit - best)) for log_loss, fit in weights]
    total = sum(share for _, share in shares)
    mean = sum(log_loss * share for log_loss, share in shares) / total
    variance = sum((log_loss - mean) ** 2 * share for log_loss, share in shares) / total
    return GpuScaling(log_loss=mean, doubt=sqrt(variance), counts=tuple(counts))


def on_usual_count(
    runs: Sequence[tuple[int | None, float]], scaling: GpuScaling | None
) -> tuple[list[float], int | None]:
    """Return run times as if all runs had the number of GPUs that most had, and that number.

    Args:
        runs: Number of GPUs, None where it is not known, and seconds.
        scaling: How the work scales; None where all had one number.
    """
    counted = Counter(gpus for gpus, _ in runs if gpus)
    usual = max(counted, key=lambda gpus: (counted[gpus], gpus)) if counted else None
    is_known = usual is not None and sum(counted.values()) == len(runs)
    if usual is None or not is_known or scaling is None:
        return [seconds for _, seconds in runs], usual if is_known and len(counted) == 1 else None
    at_usual = scaling.speedup(usual)
    return [seconds * scaling.speedup(gpus or usual) / at_usual for gpus, seconds in runs], usual


def _spread(logs: Sequence[float]) -> float:
    if len(logs) < _MIN_RUNS_FOR_SPREAD:
        return _ASSUMED_SPREAD
    mean = sum(logs) / len(logs)
    return max(MIN_SPREAD, sqrt(sum((one - mean) ** 2 for one in logs) / (len(logs) - 1)))


def seconds_by_gpus(runs: Iterable[tuple[int | None, float]]) -> dict[int, list[float]]:
    """Return the run times of each number of GPUs."""
    found: dict[int, list[float]] = {}
    for gpus, seconds in runs:
        if gpus and seconds > 0.0:
            found.setdefault(gpus, []).append(seconds)
    return found
