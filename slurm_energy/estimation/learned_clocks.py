"""The clock that the next run of a name begins with, from the trials of its earlier runs."""

from collections.abc import Iterable, Mapping
from math import hypot, sqrt
from typing import Protocol

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import ClockTrial, LearnedClock
from slurm_energy.estimation.job_groups import NamedRun, job_group

MAX_RUNS = 5
"""Older runs of a name say nothing more: programs change."""
RUN_SPREAD = 0.002
"""Standard deviation of a slowdown from run to run, beside the error of its measurement: assumed."""


class TrialOfName(NamedRun, Protocol):
    """A trial with the job name it belongs to."""

    @property
    def run(self) -> int:
        """One number for all trials of one job."""
        ...

    @property
    def ended_at_seconds(self) -> float:
        """When that job ended."""
        ...

    @property
    def trial(self) -> ClockTrial:
        """What was measured."""
        ...


def learned_clocks(
    trials: Iterable[TrialOfName],
) -> tuple[tuple[int, str, Mapping[GpuTypeName, LearnedClock]], ...]:
    """Return the clock of each user, job group and GPU type, where trials led to one.

    Args:
        trials: The latest job's first, each job's in their order.
    """
    grouped: dict[tuple[int, str], dict[GpuTypeName, list[TrialOfName]]] = {}
    for one in trials:
        group = job_group(one.name, one.script_key)
        grouped.setdefault((one.user_id, group), {}).setdefault(one.trial.gpu_type, []).append(one)
    found = []
    for (user_id, group), by_type in grouped.items():
        clocks = {gpu_type: clock for gpu_type, of in by_type.items() if (clock := _learned(of)) is not None}
        if clocks:
            found.append((user_id, group, clocks))
    return tuple(found)


def _learned(trials: list[TrialOfName]) -> LearnedClock | None:
    """Return the clock that the latest run with an answer ended at, with all answers at that clock together.

    Answers that a run dropped, since its work changed afterwards, do not count.
    """
    runs = list(dict.fromkeys(one.run for one in trials))[:MAX_RUNS]
    recent = [one for one in trials if one.run in runs and one.trial.slowdown is not None]
    if not recent:
        return None
    latest = [one.trial for one in recent if one.run == recent[0].run]
    kept = [trial for trial in latest if trial.kept and not trial.is_outdated]
    if not kept:
        return None
    last = kept[-1]
    same = [one for one in recent if one.trial.sm_clock_mhz == last.sm_clock_mhz and not one.trial.is_outdated]
    weights = [1.0 / hypot(one.trial.error or 0.0, RUN_SPREAD) ** 2 for one in same]
    total = sum(weights)
    slowdown = sum(w * (one.trial.slowdown or 0.0) for w, one in zip(weights, same, strict=True)) / total
    change = sum(w * (one.trial.energy_change or 0.0) for w, one in zip(weights, same, strict=True)) / total
    variance = sum(w * ((one.trial.slowdown or 0.0) - slowdown) ** 2 for w, one in zip(weights, same, strict=True))
    # Answers that lie farther apart than their errors make the error larger, never smaller.
    spread = sqrt(variance / total / (len(same) - 1)) if len(same) > 1 else 0.0
    return LearnedClock(
        sm_clock_mhz=last.sm_clock_mhz,
        default_clock_mhz=last.default_clock_mhz,
        slowdown=max(slowdown, 0.0),
        error=max(1.0 / sqrt(total), spread),
        energy_change=change,
        runs=len({one.run for one in same}),
        measured_at_seconds=max(one.ended_at_seconds for one in same),
    )
