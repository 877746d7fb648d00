"""What ended jobs say of the next one: how long it runs, and what its work costs on each GPU type.

One object, `JobHistory`, is looked at by every decision, in the daemon and in the twin. The daemon's recorder makes its
tables from the database; `site_runs` keeps a site's runs where there is none. Either way a run that ends corrects what
is known of its name at once.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.gpu_count import GpuScaling
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.predicted_clocks import PredictedWork
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.energy_model.relative_speed import RelativeCost
from slurm_energy.estimation.gpu_scaling import on_usual_count, scaling_of_runs, seconds_by_gpus
from slurm_energy.estimation.job_groups import NamedRun, alike_groups, job_group
from slurm_energy.estimation.run_time import NAME, RUNS_PER_NAME, EndedRun, RunTime, RunTimeModel, run_times
from slurm_energy.estimation.site_clocks import SiteClocks
from slurm_energy.resources import install_command

if TYPE_CHECKING:  # numpy is no part of the base
    from slurm_energy.estimation.run_groups import TypicalSpreads
    from slurm_energy.estimation.work_model import WorkModel

logger = logging.getLogger(__name__)

MAX_TIMED_NAMES = 20_000
MAX_COMPARED_NAMES = 10_000
MAX_COUNTED_RUNS = 10_000
"""Newest runs by which it is counted how far runs are from what was expected of them."""
ANY_USER = -1
"""Stands for all users, where what is known is of no user alone."""
NEVER_RAN = ""
"""Stands for all names that never ran."""

NameOf = tuple[int | str, str]
"""User and job name, or what stands for it (`job_groups`)."""
TimedName = tuple[int | str, str, RunTime]
NamedWork = tuple[int | str, str, WorkEstimate]
"""User, job name, and what its work compares like between GPU types."""
CompareTypes = Callable[[GpuTypeName, GpuTypeName], RelativeCost | None]
"""What the same work needs on the first type relative to the second; None where nothing is known of it."""


class FinishedRun(NamedRun, Protocol):
    """One run of a job that has ended."""

    @property
    def submitted_at_seconds(self) -> float:
        """When it was submitted."""

    @property
    def ended_at_seconds(self) -> float:
        """When it ended."""

    @property
    def limit_seconds(self) -> float | None:
        """Its time limit; None where there was none."""

    @property
    def cut_off(self) -> bool:
        """Whether it was ended before its work was."""

    @property
    def run_seconds(self) -> float:
        """How long it took."""

    @property
    def clock_slowdown(self) -> float:
        """Ratio by which its clock made it longer, measured in it or predicted; 0 at its default clock."""

    @property
    def default_clock_seconds(self) -> float:
        """How long it took, or would have taken at the default clock."""

    @property
    def gpu_type(self) -> GpuTypeName | None:
        """The type of its GPUs, where it is known and one."""

    @property
    def gpu_count(self) -> int | None:
        """How many it had, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """What ended jobs of a site say of the next one; looked up, never worked out, while a job waits for an answer."""

    runtimes: Mapping[NameOf, RunTime] = field(default_factory=dict)
    """How long they took at the default clock; under `NEVER_RAN` and `ANY_USER` what is expected of other names."""
    work: Mapping[NameOf, WorkEstimate] = field(default_factory=dict)
    """How their work compares between GPU types; under `ANY_USER` by what scripts say."""
    clocks: Mapping[NameOf, Mapping[GpuTypeName, LearnedClock]] = field(default_factory=dict)
    """What trials in their runs measured, by GPU type."""
    scaling: Mapping[NameOf, GpuScaling] = field(default_factory=dict)
    """How their work scales with the number of GPUs."""
    site_clocks: SiteClocks | None = None
    """What decides clocks where the site's bound is held in the mean."""
    predicted: Mapping[NameOf, PredictedWork] = field(default_factory=dict)
    """What a network expects of them at lower clocks; under `NEVER_RAN` and `ANY_USER` of other names."""

    def predicted_of(self, user_id: int | str, name: str, script: ScriptFeatures | None) -> PredictedWork | None:
        """Return what a network expects of a job: by its group, its name, its script, its user, else by all runs."""
        alike = () if script is None else alike_groups(script)
        keys: list[NameOf] = [(user_id, job_group(name, None if script is None else script.key)), (user_id, name)]
        keys += [(ANY_USER, key) for key in alike]
        keys += [(user_id, NEVER_RAN), (ANY_USER, NEVER_RAN)]
        return next((found for key in keys if (found := self.predicted.get(key)) is not None), None)

    def scaling_of(self, user_id: int | str, name: str, script: ScriptFeatures | None) -> GpuScaling | None:
        """Return how a job's work scales: from runs of its script's group, else of its name alone."""
        group = user_id, job_group(name, None if script is None else script.key)
        return self.scaling.get(group) or self.scaling.get((user_id, name))

    def clocks_of(
        self, user_id: int | str, name: str, script: ScriptFeatures | None
    ) -> Mapping[GpuTypeName, LearnedClock] | None:
        """Return what trials in runs of a job's group measured, else of its name alone."""
        group = user_id, job_group(name, None if script is None else script.key)
        return self.clocks.get(group) or self.clocks.get((user_id, name))

    def about(
        self, user_id: int | str, name: str, script: ScriptFeatures | None
    ) -> tuple[RunTime | None, WorkEstimate | None]:
        """Return what is known of a job: from its script's group, its name alone, then from other jobs like it."""
        group = user_id, job_group(name, None if script is None else script.key)
        named = user_id, name
        runtime = (self.runtimes.get(group) or self.runtimes.get(named)) if name or group[1] else None
        if runtime is None or runtime.source != NAME:
            runtime = self.runtimes.get((user_id, NEVER_RAN)) or self.runtimes.get((ANY_USER, NEVER_RAN))
        work = self.work.get(group) or self.work.get(named)
        if work is None and script is not None:
            work = next((known for key in alike_groups(script) if (known := self.work.get((ANY_USER, key)))), None)
        return runtime, work

    def expected(
        self, user_id: int | str, name: str, script: ScriptFeatures | None, limit_seconds: float | None
    ) -> tuple[RuntimeEstimate | None, WorkEstimate | None]:
        """Return what a decision on a job with this time limit rests on."""
        runtime, work = self.about(user_id, name, script)
        return expected_run_time(runtime, limit_seconds), work


def expected_run_time(runtime: RunTime | None, limit_seconds: float | None) -> RuntimeEstimate | None:
    """Return the run time of a job with a time limit; None where nothing is known, or a share of no limit."""
    has_limit = limit_seconds is not None and 0.0 < limit_seconds < inf
    if runtime is None or not (has_limit or runtime.source == NAME):
        return None
    return runtime.estimate(limit_seconds if has_limit else None)


def timed_names(
    samples: Iterable[FinishedRun],
    compare_for: Callable[[int, str], CompareTypes],
    model: RunTimeModel | None = None,
) -> tuple[list[TimedName], RunTimeModel]:
    """Return run times of the groups (see `job_groups`) that ran last, and what all runs together say.

    Args:
        samples: In any order.
        compare_for: Returns what compares GPU types for the jobs of a user and group.
        model: Of all runs, where the samples are those of a few names; None where they are all.
    """
    ordered = sorted(samples, key=lambda sample: sample.ended_at_seconds)
    groups: dict[tuple[int, str], list[EndedRun]] = {}
    for sample in ordered:
        run = ended_run(sample)
        if run.is_sound and run.name:
            groups.setdefault((sample.user_id, run.name), []).append(run)
    known = run_times(ended_run(sample) for sample in ordered[-MAX_COUNTED_RUNS:]).model() if model is None else model
    found = [
        (
            runs[-1].ended_at_seconds,
            user_id,
            name,
            known.of_runs(on_one_count(on_one_type(runs, compare_for(user_id, name)))),
        )
        for (user_id, name), ended in groups.items()
        if (runs := ended[-RUNS_PER_NAME:])
    ]
    found.sort(key=lambda item: item[0], reverse=True)
    table: list[TimedName] = [(user_id, name, run_time) for _, user_id, name, run_time in found[:MAX_TIMED_NAMES]]
    if model is None:
        table += [(user, NEVER_RAN, habits) for user, habits in known.users.items()]
        table += [] if known.site is None else [(ANY_USER, NEVER_RAN, known.site)]
    return table, known


def ended_run(sample: FinishedRun) -> EndedRun:
    """Return a run as estimates take it: under its group's name, at the default clock."""
    return EndedRun(
        user=sample.user_id,
        name=job_group(sample.name, sample.script_key),
        seconds=sample.default_clock_seconds,
        limit_seconds=sample.limit_seconds,
        cut_off=sample.cut_off,
        gpu_type=sample.gpu_type,
        gpus=sample.gpu_count,
        submitted_at_seconds=sample.submitted_at_seconds,
        ended_at_seconds=sample.ended_at_seconds,
        real_seconds=sample.run_seconds,
        slowdown=sample.clock_slowdown,
    )


def on_one_type(runs: Sequence[EndedRun], compare: CompareTypes) -> list[EndedRun]:
    """Return runs as if all had been on the type that most were on.

    By tables a run on another type is taken to be as long as the worst of what was measured makes it. Where the types
    are unknown or cannot be compared, the seconds are as they are, and speak of no type.
    """
    types = Counter(run.gpu_type for run in runs)
    usual = max(types, key=lambda gpu_type: types[gpu_type])
    if usual is None or len(types) == 1:
        return list(runs)
    ratios = {gpu_type: _ratio(usual, gpu_type, compare) for gpu_type in types}
    if any(ratio is None for ratio in ratios.values()):
        return list(runs)
    return [replace(run, seconds=run.seconds * (ratios[run.gpu_type] or 1.0), gpu_type=usual) for run in runs]


def scaled_names(
    samples: Iterable[FinishedRun], compare_for: Callable[[int, str], CompareTypes]
) -> list[tuple[int | str, str, GpuScaling]]:
    """Return how the work of the groups scales, and with which numbers of GPUs they ran.

    Args:
        samples: In any order.
        compare_for: Returns what compares GPU types for the jobs of a user and group.
    """
    groups: dict[tuple[int, str], list[EndedRun]] = {}
    for sample in samples:
        run = ended_run(sample)
        if run.is_sound and run.name:
            groups.setdefault((sample.user_id, run.name), []).append(run)
    found: list[tuple[int | str, str, GpuScaling]] = []
    for (user_id, name), runs in groups.items():
        scaling = scaling_of_group(on_one_type(runs, compare_for(user_id, name)))
        found += [] if scaling is None else [(user_id, name, scaling)]
    return found[:MAX_COMPARED_NAMES]


def scaling_of_group(runs: Sequence[EndedRun]) -> GpuScaling | None:
    """Return how work scales; a run that was cut off says nothing of it, nor do runs whose types differ."""
    ran_through = [run for run in runs if not run.cut_off]
    if len({run.gpu_type for run in ran_through}) != 1:
        return None
    return scaling_of_runs(seconds_by_gpus((run.gpus, run.seconds) for run in ran_through))


def on_one_count(runs: Sequence[EndedRun]) -> list[EndedRun]:
    """Return runs as if all had the number of GPUs that most had; of none where that is not known."""
    if len({run.gpus for run in runs}) == 1:
        return list(runs)
    scaling = scaling_of_group(runs)
    is_measured = scaling is not None and scaling.is_measured
    seconds, usual = on_usual_count([(run.gpus, run.seconds) for run in runs], scaling if is_measured else None)
    return [replace(run, seconds=one, gpus=usual) for run, one in zip(runs, seconds, strict=True)]


def _ratio(usual: GpuTypeName, gpu_type: GpuTypeName | None, compare: CompareTypes) -> float | None:
    cost = None if gpu_type is None else compare(usual, gpu_type)
    if cost is None:
        return None
    return cost.time_ratio if cost.is_by_runs else max(1.0, cost.worst_time_ratio)


class WorkFit(NamedTuple):
    """What all names of a site say of the work of one."""

    gpu_types: tuple[GpuTypeName, ...]
    model: "WorkModel"
    typical: "TypicalSpreads"


def named_work(
    runs: Iterable[MeasuredRun],
    failures: Iterable[FailedRuns] = (),
    scripts: Mapping[str, ScriptFeatures] | None = None,
) -> tuple[list[NamedWork], WorkFit | None]:
    """Return estimates of the names that ran last, those that only failed behind them, and then of scripts.

    Nothing is said without numpy.

    Args:
        runs: Of any names.
        failures: Of any names.
        scripts: What was read of scripts, by their keys.
    """
    try:
        from slurm_energy.estimation.first_estimates import first_estimates  # noqa: PLC0415  # numpy: not in the base
        from slurm_energy.estimation.run_groups import group_runs  # noqa: PLC0415
        from slurm_energy.estimation.work_model import fit_work_model, work_estimates  # noqa: PLC0415
    except ImportError as error:
        logger.info("runs say nothing of GPU types, %s reason=%s", install_command("daemon"), error)
        return [], None
    known = list(runs)
    groups = group_runs(known, failures)
    if not groups.gpu_types:
        return _newest_first(known, [(name.user, name.name, one) for name, one in work_estimates(groups)]), None
    model = fit_work_model(groups)
    found: list[NamedWork] = [(name.user, name.name, estimate) for name, estimate in work_estimates(groups, model)]
    table = _newest_first(known, found)
    if scripts:
        keys = {
            (run.user, job_group(run.name, run.script_key)): scripts[run.script_key]
            for run in known
            if run.script_key is not None and run.script_key in scripts
        }
        table += [(ANY_USER, key, estimate) for key, estimate in first_estimates(groups, keys)]
    return table, WorkFit(groups.gpu_types, model, groups.typical)


def corrected_work(fit: WorkFit, runs: Iterable[MeasuredRun], failures: Iterable[FailedRuns] = ()) -> list[NamedWork]:
    """Return estimates of a few names by all of their runs, as of now; what all names together say stays as it was.

    A new run of a name corrects what is expected of it on every GPU type.
    """
    from slurm_energy.estimation.run_groups import group_runs  # noqa: PLC0415  # numpy is no part of the base
    from slurm_energy.estimation.work_model import work_estimates  # noqa: PLC0415

    groups = group_runs(runs, failures, fit.gpu_types, fit.typical)
    return [(name.user, name.name, estimate) for name, estimate in work_estimates(groups, fit.model)]


def _newest_first(runs: Sequence[MeasuredRun], found: Iterable[NamedWork]) -> list[NamedWork]:
    newest: dict[NameOf, float] = {}
    for run in runs:
        key = run.user, job_group(run.name, run.script_key)
        newest[key] = max(run.ended_at_seconds, newest.get(key, run.ended_at_seconds))
    ordered = sorted(found, key=lambda one: (-newest.get((one[0], one[1]), 0.0), str(one[0]), one[1]))
    return ordered[:MAX_COMPARED_NAMES]
