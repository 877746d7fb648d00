"""From finished and measured runs to what the next job of the same user and name will need, and on which GPU type."""

import logging
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.energy_model.relative_speed import RelativeCost
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.resources import install_command

logger = logging.getLogger(__name__)

SOURCE = "history"
RUNS_PER_NAME = 20
MAX_TIMED_NAMES = 20_000
MAX_COMPARED_NAMES = 10_000

NamedWork = tuple[int, str, WorkEstimate]
"""User, job name, and what its work compares like between GPU types."""
CompareTypes = Callable[[GpuTypeName, GpuTypeName], RelativeCost | None]
"""What the same work needs on the first type relative to the second; None where nothing is known of it."""


class FinishedRun(Protocol):
    """One completed run of a job."""

    @property
    def user_id(self) -> int:
        """Who ran it."""

    @property
    def name(self) -> str:
        """The job's name."""

    @property
    def script_key(self) -> str | None:
        """What its script shared with others of the same work."""

    @property
    def ended_at_seconds(self) -> float:
        """When it ended."""

    @property
    def default_clock_seconds(self) -> float:
        """How long it took, or would have taken at the default clock."""

    @property
    def gpu_type(self) -> GpuTypeName | None:
        """The type of its GPUs, where it is known and one."""


def runtime_estimate(seconds: Sequence[float], gpu_type: GpuTypeName | None = None) -> RuntimeEstimate:
    """Return the median and a bound that holds in about 19 of 20 cases.

    The longest of n runs is passed by the next with probability 1/(n + 1): 19 runs give the bound as they are, fewer
    get a margin of 1/n of the longest.
    """
    longest = max(seconds)
    upper = longest if len(seconds) >= 19 else longest * (1.0 + 1.0 / len(seconds))
    return RuntimeEstimate(
        seconds=statistics.median(seconds),
        upper_seconds=upper,
        source=SOURCE,
        gpu_type=gpu_type,
    )


def runtime_estimates(
    samples: Iterable[FinishedRun], compare_for: Callable[[int, str], CompareTypes]
) -> list[tuple[int, str, RuntimeEstimate]]:
    """Return estimates of the groups (see `job_groups`) that ran last, each from its newest runs.

    Args:
        samples: In any order.
        compare_for: Returns what compares GPU types for the jobs of a user and group.
    """
    groups: dict[tuple[int, str], list[FinishedRun]] = {}
    for sample in samples:
        groups.setdefault((sample.user_id, job_group(sample.name, sample.script_key)), []).append(sample)
    found: list[tuple[float, int, str, RuntimeEstimate]] = []
    for (user_id, name), runs in groups.items():
        known = sorted(runs, key=lambda run: -run.ended_at_seconds)[:RUNS_PER_NAME]
        estimate = replace(runtime_estimate(*_on_one_type(known, compare_for(user_id, name))), runs=len(known))
        found.append((max(run.ended_at_seconds for run in known), user_id, name, estimate))
    found.sort(key=lambda item: item[0], reverse=True)
    return [(user_id, name, estimate) for _, user_id, name, estimate in found[:MAX_TIMED_NAMES]]


def _on_one_type(runs: Sequence[FinishedRun], compare: CompareTypes) -> tuple[list[float], GpuTypeName | None]:
    """Return the seconds of runs as if all had been on the type that most were on, and that type.

    By tables a run on another type is taken to be as long as the worst of what was measured makes it. Where the types
    is unknown or cannot be compared, the seconds are as they are, and speak of no type.
    """
    seconds = [run.default_clock_seconds for run in runs]
    types = Counter(run.gpu_type for run in runs)
    usual = max(types, key=lambda gpu_type: types[gpu_type])
    if usual is None or None in types:
        return seconds, None
    ratios = {gpu_type: _ratio(usual, gpu_type, compare) for gpu_type in types}
    if any(ratio is None for ratio in ratios.values()):
        return seconds, None
    return [run.default_clock_seconds * (ratios[run.gpu_type] or 1.0) for run in runs], usual


def _ratio(usual: GpuTypeName, gpu_type: GpuTypeName | None, compare: CompareTypes) -> float | None:
    cost = None if gpu_type is None else compare(usual, gpu_type)
    if cost is None:
        return None
    return cost.time_ratio if cost.is_by_runs else max(1.0, cost.worst_time_ratio)


def named_work(runs: Iterable[MeasuredRun], failures: Iterable[FailedRuns] = ()) -> list[NamedWork]:
    """Return estimates of the names that ran last, those that only failed behind them; none without numpy."""
    try:
        from slurm_energy.estimation.run_groups import group_runs  # noqa: PLC0415  # numpy is no part of the base
        from slurm_energy.estimation.work_model import work_estimates  # noqa: PLC0415
    except ImportError as error:
        logger.info("runs say nothing of GPU types, %s reason=%s", install_command("daemon"), error)
        return []
    known = list(runs)
    newest: dict[tuple[int | str, str], float] = {}
    for run in known:
        key = run.user, job_group(run.name, run.script_key)
        newest[key] = max(run.ended_at_seconds, newest.get(key, run.ended_at_seconds))
    found = [
        (newest.get((name.user, name.name), 0.0), int(name.user), name.name, estimate)
        for name, estimate in work_estimates(group_runs(known, failures))
    ]
    found.sort(key=lambda item: (-item[0], item[1], item[2]))
    return [(user_id, name, estimate) for _, user_id, name, estimate in found[:MAX_COMPARED_NAMES]]
