"""A site's ended runs where there is no database, as in the twin: what the daemon's recorder makes of its own.

Each run corrects at once what is known of its name, and all are looked at together from time to time.
"""

from collections import Counter, deque
from collections.abc import Mapping
from math import inf

from slurm_energy.domain.gpu_count import GpuScaling
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.energy_model.relative_speed import RelativeCost
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.job_history import (
    ANY_USER,
    NEVER_RAN,
    JobHistory,
    NameOf,
    WorkFit,
    corrected_work,
    named_work,
    on_one_count,
    on_one_type,
    scaling_of_group,
)
from slurm_energy.estimation.run_time import RUNS_PER_NAME, EndedRun, RunTime, RunTimeModel, RunTimes

_RUNS_PER_TYPE, _MANY_RUNS = 20, 8
_LOOKED_SECONDS, _MAX_LOOKED_SECONDS = 3600.0, 6 * 3600.0
_NEW_SHARE = 0.05
"""Between two looks at all runs together, and how many new ones make one worth its time before the longest pause is
over. The daemon looks every few minutes; what all names together say moves slowly."""


class SiteRuns:
    """A site's ended runs, and what they say: each corrects at once what is known of its name.

    The daemon's database in the twin, where there is none.
    """

    def __init__(self) -> None:
        self.history = JobHistory()
        self._times = RunTimes()
        self._measured: dict[tuple[NameOf, GpuTypeName], deque[MeasuredRun]] = {}
        self._failures: dict[NameOf, list[FailedRuns]] = {}
        self._scripts: dict[str, ScriptFeatures] = {}
        self._fit: WorkFit | None = None
        self._model: RunTimeModel | None = None
        self._looked_at_seconds = -inf
        self._new, self._known = 0, 0
        """Runs since the last look at all of them, and those before."""
        self._scaling: dict[NameOf, GpuScaling] = {}
        self._runtimes: dict[NameOf, RunTime] = {}
        self._work: dict[NameOf, WorkEstimate] = {}
        self._counts: Counter[NameOf] = Counter()

    def observe(self, measurement: EndedRun | MeasuredRun | FailedRuns, script: ScriptFeatures | None = None) -> None:
        """Take in what one run measured, or that it failed.

        Args:
            measurement: An ended run under its group's name (`job_group`), or one with its power.
            script: What was read of its script.
        """
        if script is not None and script.key:
            self._scripts[script.key] = script
        self._new += 1
        if isinstance(measurement, EndedRun):
            self._times.add(measurement)
            self._correct_times((measurement.user, measurement.name))
            return
        name = measurement.user, job_group(measurement.name, measurement.script_key)
        if isinstance(measurement, MeasuredRun):
            key = name, measurement.gpu_type
            self._measured.setdefault(key, deque(maxlen=_RUNS_PER_TYPE)).append(measurement)
        else:
            self._failures.setdefault(name, []).append(measurement)
        self._correct_work(name)

    def timed_runs(self) -> list[EndedRun]:
        """Return the ended runs that are kept."""
        return [run for kept in self._times.names.values() for run in kept]

    @property
    def measured(self) -> list[MeasuredRun]:
        """The runs with their power, the newest of each name on each GPU type."""
        return [run for kept in self._measured.values() for run in kept]

    @property
    def scripts(self) -> Mapping[str, ScriptFeatures]:
        """What was read of scripts, by their keys."""
        return self._scripts

    def look(self, now_seconds: float) -> JobHistory:
        """Return what is known, all runs looked at together at most once an hour."""
        pause = _LOOKED_SECONDS if self._new > _NEW_SHARE * self._known else _MAX_LOOKED_SECONDS
        if self._new and now_seconds - self._looked_at_seconds >= pause:
            self._looked_at_seconds = now_seconds
            self._known, self._new = self._known + self._new, 0
            self._look_at_all()
        return self.history

    def _look_at_all(self) -> None:
        self._model = model = self._times.model()
        self._runtimes = {
            (user, name): model.of_runs(on_one_count(on_one_type(tuple(runs)[-RUNS_PER_NAME:], _no_comparison)))
            for (user, name), runs in self._times.names.items()
        }
        self._runtimes |= {(user, NEVER_RAN): habits for user, habits in model.users.items()}
        if model.site is not None:
            self._runtimes[ANY_USER, NEVER_RAN] = model.site
        runs = self.measured
        failures = [one for several in self._failures.values() for one in several]
        table, self._fit = named_work(runs, failures, self._scripts)
        self._work = {(user, name): estimate for user, name, estimate in table}
        self.history = JobHistory(runtimes=self._runtimes, work=self._work, scaling=self._scaling)

    def _correct_times(self, key: NameOf) -> None:
        runs = self._times.names.get(key)
        if runs and self._model is not None:
            self._runtimes[key] = self._model.of_runs(on_one_count(tuple(runs)))
        scaling = scaling_of_group(tuple(runs)[-RUNS_PER_NAME:]) if runs else None
        if scaling is not None:
            self._scaling[key] = scaling

    def _correct_work(self, name: NameOf) -> None:
        self._counts[name] += 1
        # Of a name of many runs one more says little, and the next look at all is near.
        if self._fit is None or (self._counts[name] > _MANY_RUNS and self._counts[name] % _MANY_RUNS):
            return
        runs = [run for gpu_type in self._fit.gpu_types for run in self._measured.get((name, gpu_type), ())]
        for user, group, estimate in corrected_work(self._fit, runs, self._failures.get(name, ())):
            self._work[user, group] = estimate


def _no_comparison(_one: GpuTypeName, _other: GpuTypeName) -> RelativeCost | None:
    return None
