"""The clock that the next run of a name begins with, from the trials of its earlier runs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import ClockTrial, LearnedClock, NamedTrial
from slurm_energy.estimation.clock_response import AnsweredWindow, ClockAnswer, slowdown_at
from slurm_energy.estimation.job_groups import job_group

MAX_RUNS = 5
"""Older runs of a name say nothing more: programs change."""


def learned_clocks(
    trials: Iterable[NamedTrial],
) -> tuple[tuple[int, str, Mapping[GpuTypeName, LearnedClock]], ...]:
    """Return the clock of each user, job group and GPU type, where trials led to one.

    Args:
        trials: The latest job's first, each job's in their order.
    """
    grouped: dict[tuple[int, str], dict[GpuTypeName, list[NamedTrial]]] = {}
    for one in trials:
        group = job_group(one.name, one.script_key)
        grouped.setdefault((one.user_id, group), {}).setdefault(one.trial.gpu_type, []).append(one)
    found = []
    for (user_id, group), by_type in grouped.items():
        clocks = {gpu_type: clock for gpu_type, of in by_type.items() if (clock := _learned(of)) is not None}
        if clocks:
            found.append((user_id, group, clocks))
    return tuple(found)


def _learned(trials: list[NamedTrial]) -> LearnedClock | None:
    """Return the clock that the latest run with an answer ended at, and what is known of the others that were tried.

    All answers of the latest runs count together, so that several runs are sure of what none of them was alone. Answers
    that a run dropped, since its work changed afterwards, do not count.
    """
    runs = list(dict.fromkeys(one.run for one in trials))[:MAX_RUNS]
    latest = next((one.run for one in trials if one.run in runs and one.trial.slowdown is not None), None)
    if all(one.trial.is_outdated for one in trials if one.run == latest and one.trial.slowdown is not None):
        return None
    recent = [one for one in trials if one.run in runs and one.trial.slowdown is not None and not one.trial.is_outdated]
    answered = [(one, ClockAnswer(slowdown=one.trial.slowdown or 0.0, error=one.trial.error or 0.0)) for one in recent]
    windows = [AnsweredWindow(worst=_worst(one.trial), answer=answer, run=one.run) for one, answer in answered]
    found = []
    for clock in dict.fromkeys(one.trial.sm_clock_mhz for one in recent):
        same = [one for one in recent if one.trial.sm_clock_mhz == clock and one.trial.default_watts > 0.0]
        answer = slowdown_at(_worst(same[0].trial), windows) if same else None
        if answer is None:
            continue
        ratio = sum(one.trial.watts / one.trial.default_watts for one in same) / len(same)
        found.append(
            LearnedClock(
                sm_clock_mhz=clock,
                default_clock_mhz=same[0].trial.default_clock_mhz,
                slowdown=max(answer.slowdown, 0.0),
                error=answer.error,
                energy_change=ratio * (1.0 + max(answer.slowdown, 0.0)) - 1.0,
                runs=len({one.run for one in same}),
                measured_at_seconds=max(one.ended_at_seconds for one in same),
            )
        )
    if not found:
        return None
    kept = next((one.trial.sm_clock_mhz for one in reversed(_of_run(recent, recent[0].run)) if one.trial.kept), None)
    first = next((one for one in found if one.sm_clock_mhz == kept), found[0])
    return replace(first, others=tuple(one for one in found if one is not first))


def _of_run(trials: Iterable[NamedTrial], run: int) -> list[NamedTrial]:
    return [one for one in trials if one.run == run]


def _worst(trial: ClockTrial) -> float:
    """Return the slowdown of work that the clock alone paces."""
    return max(trial.default_clock_mhz / trial.sm_clock_mhz - 1.0, 0.0)
