"""How much longer jobs ran by the clocks they were given: measured in the jobs themselves, or as it was predicted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.estimation.user_shares import within_share

COUNTED_RUNS = 200
"""Latest decided runs by which it is seen how much of the bound is used."""
MIN_RUNS = 10
"""Below so many recent runs nothing is said of them all."""
_MIN_MEASURED_SHARE = 0.5
"""Of the GPU time at lower clocks, that must have been measured before more than the bound is planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedRun:
    """One completed run whose clock was decided here, be it the default one."""

    user: int | str
    gpu_seconds: float
    ended_at_seconds: float
    slowdown: float
    """Ratio against the default clock; 0 there."""
    is_slowed: bool
    """Whether it ran at a lower clock."""
    is_measured: bool = False
    """Whether trials of this clock in the job itself, or the detector, measured it; else it is the prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedBound:
    """What recent jobs used of a bound that is held in the mean."""

    slowdown: float | None = None
    """Mean over all of them, measured where it was, else predicted; None before enough of them."""
    measured_slowdown: float | None = None
    """Mean of those at lower clocks that measured it themselves; None before enough of them."""
    jobs: int = 0
    measured_jobs: int = 0
    is_measured: bool = False
    """Whether enough of it was measured to plan more than the bound where less was used."""


def used_bound(runs: Iterable[DecidedRun]) -> UsedBound:
    """Return what the latest of some runs say."""
    latest = sorted(runs, key=lambda run: run.ended_at_seconds)[-COUNTED_RUNS:]
    slowed = [run for run in latest if run.is_slowed]
    measured = [run for run in slowed if run.is_measured]
    share = sum(run.gpu_seconds for run in measured) / max(sum(run.gpu_seconds for run in slowed), 1e-9)
    return UsedBound(
        slowdown=_mean(latest) if len(latest) >= MIN_RUNS else None,
        measured_slowdown=_mean(measured) if len(measured) >= MIN_RUNS else None,
        jobs=len(latest),
        measured_jobs=len(measured),
        is_measured=len(measured) >= MIN_RUNS and share >= _MIN_MEASURED_SHARE,
    )


def measured_slowdown(gpu_type: GpuTypeName, sm_clock_mhz: int | None, trials: Iterable[ClockTrial]) -> float | None:
    """Return what a job's own trials say of the clock it ran at; None where they say nothing."""
    found = [
        one.slowdown
        for one in trials
        if one.gpu_type == gpu_type and one.sm_clock_mhz == sm_clock_mhz and one.slowdown is not None and not one.reason
    ]
    return max(sum(found) / len(found), 0.0) if found else None


def _mean(runs: Sequence[DecidedRun]) -> float:
    """Return the mean over jobs or GPU time, each with and without one user's largest share, whichever is most."""
    means = []
    for weights in ([1.0 for _ in runs], [run.gpu_seconds for run in runs]):
        sums: dict[int | str, float] = {}
        for run, weight in zip(runs, weights, strict=True):
            sums[run.user] = sums.get(run.user, 0.0) + weight
        fair = within_share(sums, len(sums))
        for shares in (sums, fair):
            each = [weight * shares[run.user] / sums[run.user] for run, weight in zip(runs, weights, strict=True)]
            total = sum(each)
            means.append(sum(weight * run.slowdown for run, weight in zip(runs, each, strict=True)) / max(total, 1e-9))
    return max(*means, 1e-6)
