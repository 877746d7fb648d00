"""What decisions know of earlier jobs, kept up from the database: runs in memory, and the tables made of them.

The runs are read whole once, and after that only of jobs that changed: what a look reads of the database depends on how
many jobs have ended since the last one, not on how many there are.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.frames import (
    ClockPart,
    PredictionPart,
    RuntimePart,
    ScalingPart,
    SiteClocksKnown,
    WorkPart,
    table_parts,
)
from slurm_energy.daemon.recorder.recorder import QUERY_WAIT_SECONDS, ChangedJobs, Condition, Every
from slurm_energy.domain.ids import ClusterName, GpuTypeName
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.errors import DaemonUnavailable, StoreError
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.job_history import (
    CompareTypes,
    NamedWork,
    NameOf,
    WorkFit,
    corrected_work,
    ended_run,
    named_work,
    scaled_names,
    timed_names,
)
from slurm_energy.estimation.learned_clocks import learned_clocks
from slurm_energy.estimation.run_time import RUNS_PER_NAME, RunTimeModel
from slurm_energy.estimation.site_clocks import EndedJobs, site_clocks
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.store.clock_trials import trials_of_names
from slurm_energy.store.decided_runs import decided_runs
from slurm_energy.store.past_runs import (
    HISTORY_DAYS,
    RuntimeSample,
    counted_failures,
    failed_jobs,
    measured_jobs,
    read_scripts,
    timed_jobs,
)
from slurm_energy.store.session import Engine, Session, store_session

if TYPE_CHECKING:  # numpy is no part of the base
    from slurm_energy.policy.gnn.outcomes.inference import OutcomeNetwork
    from slurm_energy.policy.gnn.outcomes.site import SitePredictions

logger = logging.getLogger(__name__)

SendFrame = Callable[[object], None]

HISTORY_INTERVAL_SECONDS = 300.0
WORK_INTERVAL_SECONDS = 600.0
WORK_SOON_SECONDS = 30.0
"""Where runs are on a GPU type that was not known at the last look at all of them."""
PREDICTIONS_SECONDS = 3600.0
"""Between two looks of the network at all runs; what is expected of a name is corrected when one of its runs ends."""
SITE_CLOCKS_SECONDS = 300.0
"""Between two looks at what all runs say of clocks; what one run tried counts for its own name at once."""
MAX_CORRECTION_PAUSE_SECONDS = 2.0
"""Also after a look at all names, which takes longer: a run that ends is to be known within five seconds."""
CORRECTION_SHARE = 0.1
"""Of the time, that looks at the names of jobs that ended may take."""
HISTORY_PAUSE_SECONDS = 0.5
MAX_JOBS_AT_ONCE = 500
"""Numbers of jobs in one statement."""


class _EndedRun(Protocol):
    @property
    def ended_at_seconds(self) -> float:
        """When it ended."""


_Run = TypeVar("_Run", bound=_EndedRun)
_Key = tuple[object, ...]
_Group = tuple[int | str, str]
"""User and the word under which runs are put together (`job_groups`)."""


class NewestRuns(Generic[_Run]):
    """The newest runs of each key, each of one job's row: a job that is read again takes its own place."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: dict[_Key, dict[int, _Run]] = {}
        self._places: dict[int, tuple[_Group, _Key]] = {}
        self._groups: dict[_Group, set[_Key]] = {}

    def put(self, row_id: int, group: _Group, key: _Key, run: _Run) -> None:
        """Take a run in; the oldest over the limit goes.

        Args:
            row_id: The job's row.
            group: Whose runs are looked at together; every key is of one.
            key: Whose runs are counted.
            run: What is kept.
        """
        self.remove(row_id)
        runs = self._runs.setdefault(key, {})
        runs[row_id] = run
        self._places[row_id] = group, key
        self._groups.setdefault(group, set()).add(key)
        if len(runs) > self._limit:
            self.remove(min(runs, key=lambda one: (runs[one].ended_at_seconds, one)))

    def remove(self, row_id: int) -> None:
        """Forget a job's run, if there is one."""
        group, key = self._places.pop(row_id, (None, None))
        if group is None or key is None:
            return
        del self._runs[key][row_id]
        if not self._runs[key]:
            del self._runs[key]
            self._groups[group].discard(key)
            if not self._groups[group]:
                del self._groups[group]

    def forget_before(self, seconds: float) -> None:
        """Forget what ended before."""
        for row_id in [one for runs in self._runs.values() for one in runs if runs[one].ended_at_seconds < seconds]:
            self.remove(row_id)

    def of(self, groups: Collection[_Group]) -> Iterator[_Run]:
        """Yield the runs of some groups."""
        for group in groups:
            for key in self._groups.get(group, ()):
                yield from self._runs[key].values()

    def __iter__(self) -> Iterator[_Run]:
        for runs in self._runs.values():
            yield from runs.values()


class RunMemory:
    """Ended runs with their times, those that were measured, and those that failed."""

    def __init__(self, cluster: ClusterName, runs_per_name: int) -> None:
        self._cluster = cluster
        self._limit = runs_per_name
        self._timed = NewestRuns[RuntimeSample](runs_per_name)
        self._measured = NewestRuns[MeasuredRun](runs_per_name)
        self._failed: dict[int, tuple[float, FailedRuns]] = {}
        self._failed_groups: dict[_Group, set[int]] = {}
        self.is_loaded = False

    def load(self, session: Session, now_seconds: float) -> None:
        """Read the whole history, in place of what was known."""
        self._timed, self._measured = NewestRuns(self._limit), NewestRuns(self._limit)
        self._failed.clear()
        self._failed_groups.clear()
        self._read(session, now_seconds, None)
        self.is_loaded = True

    def read_again(self, session: Session, job_ids: Iterable[int], now_seconds: float) -> set[_Group]:
        """Read the jobs of these numbers: they have changed. What is too old by now is forgotten.

        Returns:
            The groups that they belong to.
        """
        numbers = sorted(set(job_ids))
        groups: set[_Group] = set()
        for begin in range(0, len(numbers), MAX_JOBS_AT_ONCE):
            groups |= self._read(session, now_seconds, numbers[begin : begin + MAX_JOBS_AT_ONCE])
        self.forget_old(now_seconds)
        return groups

    def forget_old(self, now_seconds: float) -> None:
        """Forget what ended before the history begins."""
        begin = history_begin(now_seconds)
        self._timed.forget_before(begin)
        self._measured.forget_before(begin)
        for row_id in [row_id for row_id, one in self._failed.items() if one[0] < begin]:
            _, run = self._failed.pop(row_id)
            self._failed_groups[_group(run.user, run.name, run.script_key)].discard(row_id)

    def timed(self, groups: Collection[_Group] | None = None) -> list[RuntimeSample]:
        """Return the newest runs of every user, name and script that completed or were cut off, or of some groups."""
        return list(self._timed if groups is None else self._timed.of(groups))

    def measured(self, groups: Collection[_Group] | None = None) -> list[MeasuredRun]:
        """Return the newest measured runs of every user, name, script and GPU type, or of some groups."""
        return list(self._measured if groups is None else self._measured.of(groups))

    def failed(self, groups: Collection[_Group] | None = None) -> list[FailedRuns]:
        """Return how often runs of each user and name failed on GPUs of one type, or those of some groups."""
        rows = self._failed if groups is None else {row for one in groups for row in self._failed_groups.get(one, ())}
        return list(counted_failures(self._failed[row_id][1] for row_id in rows))

    def _read(self, session: Session, now_seconds: float, job_ids: list[int] | None) -> set[_Group]:
        begin, limit = history_begin(now_seconds), self._limit
        groups: set[_Group] = set()
        for row_id, sample in timed_jobs(session, self._cluster, begin, job_ids=job_ids, limit_per_name=limit):
            group = _group(sample.user_id, sample.name, sample.script_key)
            self._timed.put(row_id, group, (sample.user_id, sample.name, sample.script_key), sample)
            groups.add(group)
        for row_id, run in measured_jobs(session, self._cluster, begin, job_ids=job_ids, limit_per_type=limit):
            group = _group(run.user, run.name, run.script_key)
            self._measured.put(row_id, group, (run.user, run.name, run.script_key, run.gpu_type), run)
            groups.add(group)
        for row_id, ended, failed in failed_jobs(session, self._cluster, begin, job_ids=job_ids):
            group = _group(failed.user, failed.name, failed.script_key)
            self._failed[row_id] = ended, failed
            self._failed_groups.setdefault(group, set()).add(row_id)
            groups.add(group)
        return groups


def history_begin(now_seconds: float) -> float:
    """Return since when ended jobs count."""
    return now_seconds - HISTORY_DAYS * 86_400.0


def _group(user: int | str, name: str, script_key: str | None) -> _Group:
    return user, job_group(name, script_key)


class HistoryLoop:
    """From the database to what decisions know of earlier jobs, in a thread beside the recording.

    Nothing that is recorded waits for it, and what it reads grows with the jobs that ended, not with the history. A job
    that ended corrects what is known of its name within a second or two, all names are looked at together from time
    to time.
    """

    def __init__(self, config: Config, send_frame: SendFrame, changed: ChangedJobs) -> None:
        self._learns = config.policy.learn_from_runs
        self._tries_clocks = config.policy.clock_trials != "off"
        self._by_mean = config.policy.slowdown_bound == "mean"
        self._bounds = (config.policy.max_slowdown, config.policy.saver_max_slowdown)
        self._send_frame = send_frame
        self._changed = changed
        self._cluster = ClusterName(config.cluster.name)
        self._memory = RunMemory(self._cluster, RUNS_PER_NAME)
        self._work: dict[NameOf, WorkEstimate] = {}
        self._work_fit: WorkFit | None = None
        self._work_lacks_types = False
        self._run_time_model: RunTimeModel | None = None
        self._limits = site_board_limits(config)
        self._predicts = config.policy.clock_predictions == "network"
        self._scripts: Mapping[str, ScriptFeatures] = {}
        self._network: OutcomeNetwork | None = None
        self._predictions: SitePredictions | None = None
        self._predictions_due = Every(PREDICTIONS_SECONDS)
        self._learned: dict[NameOf, Mapping[GpuTypeName, LearnedClock]] = {}
        self._history_due = Every(HISTORY_INTERVAL_SECONDS)
        self._work_due = Every(WORK_INTERVAL_SECONDS)
        self._site_clocks_due = Every(SITE_CLOCKS_SECONDS)
        self._correct_from = 0.0

    def run(self, engine: Engine, condition: Condition) -> None:
        """Keep the tables up until the process ends; a database that is away is tried again."""
        while True:
            try:
                condition.wait(QUERY_WAIT_SECONDS)
                self.step(engine)
            except (StoreError, DaemonUnavailable) as error:
                self._memory.is_loaded = False
                logger.info("history not read error=%s", error)
            except Exception:
                # The last resort of a thread: without it decisions stay at what they know, and no log says so.
                self._memory.is_loaded = False
                logger.exception("history not read")
            time.sleep(HISTORY_PAUSE_SECONDS)

    def step(self, engine: Engine) -> None:
        """Bring the memory to the database's state, and send what it says now.

        Raises:
            StoreError: the database failed; everything is read again at the next step.
        """
        now = time.monotonic()
        is_whole = self._history_due.due(now) or not self._memory.is_loaded
        if not is_whole and not (self._changed.waiting and now >= self._correct_from):
            return
        before = time.thread_time()
        changed = self._changed.take()
        groups: Collection[NameOf] | None = None
        with store_session(engine, read_only=True) as session:
            if changed is None or not self._memory.is_loaded:
                self._memory.load(session, time.time())
                is_whole = True
            else:
                groups = self._memory.read_again(session, changed, time.time())
            if is_whole or groups:
                self._send_clocks(session)  # first: what trials measured counts in what a network expects
            if self._work_due.due(now, WORK_SOON_SECONDS if self._work_lacks_types else None):
                self._send_all_work(session)
            elif groups:
                self._correct_work(groups)
            self._send_runtimes(None if is_whole else groups)
            self._send_scaling(None if is_whole else groups)
        pause = (time.thread_time() - before) / CORRECTION_SHARE
        self._correct_from = now + min(pause, MAX_CORRECTION_PAUSE_SECONDS)

    def _send_all_work(self, session: Session) -> None:
        runs: list[MeasuredRun] = []
        failures: list[FailedRuns] = []
        scripts: Mapping[str, ScriptFeatures] = {}
        try:
            if self._learns:
                runs, failures = self._memory.measured(), self._memory.failed()
                scripts = read_scripts(session, self._cluster, history_begin(time.time()))
            work, self._work_fit = named_work(runs, failures, scripts)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # run times are still worth sending, whatever it is
            logger.warning("runs cannot be compared, what was known before stays runs=%d error=%s", len(runs), error)
            return
        self._work_lacks_types, self._scripts = False, scripts
        if self._predictions_due.due(time.monotonic()) or self._predictions is None:
            self._send_predictions(runs)
        self._work = {(user_id, name): estimate for user_id, name, estimate in work}
        for part in table_parts(WorkPart, work):
            self._send_frame(part)

    def _correct_work(self, groups: Collection[NameOf]) -> None:
        """Correct what is known of a few names; what all names together say stays until they are looked at."""
        if not self._learns:
            return
        runs = self._memory.measured(groups)
        known_types = () if self._work_fit is None else self._work_fit.gpu_types
        self._work_lacks_types |= any(run.gpu_type not in known_types for run in runs)
        if self._work_fit is None:
            return
        work: list[NamedWork] = []
        try:
            work = corrected_work(self._work_fit, runs, self._memory.failed(groups))
        except Exception as error:  # noqa: BLE001  # run times are still worth sending, whatever it is
            logger.warning("estimate not corrected, what was known before stays runs=%d error=%s", len(runs), error)
        self._send_predictions(runs, groups)
        if work:
            self._work.update({(user_id, name): estimate for user_id, name, estimate in work})
            for part in table_parts(WorkPart, work, is_whole=False):
                self._send_frame(part)

    def _send_runtimes(self, groups: Collection[NameOf] | None) -> None:
        """Send the run times of all names, or correct those of some."""
        if groups is None or self._run_time_model is None:
            table, self._run_time_model = timed_names(self._memory.timed(), self._compare_for)
            is_whole = True
        else:
            table, _ = timed_names(self._memory.timed(groups), self._compare_for, self._run_time_model)
            is_whole = False
        if is_whole or table:
            for part in table_parts(RuntimePart, table, is_whole=is_whole):
                self._send_frame(part)

    def _send_scaling(self, groups: Collection[NameOf] | None) -> None:
        if not self._learns:
            return
        table = scaled_names(self._memory.timed(groups), self._compare_for)
        if groups is None or table:
            for part in table_parts(ScalingPart, table, is_whole=groups is None):
                self._send_frame(part)

    def _send_clocks(self, session: Session) -> None:
        if not (self._tries_clocks or self._by_mean):
            return
        found: list[tuple[int | str, str, Mapping[GpuTypeName, LearnedClock]]] = []
        try:
            if self._tries_clocks:
                found += learned_clocks(trials_of_names(session, self._cluster, history_begin(time.time())))
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # run times and work are known anyway, whatever it is
            logger.warning("clocks cannot be compared, what was known before stays error=%s", error)
            return
        self._learned = {(user_id, name): learned for user_id, name, learned in found}
        if self._tries_clocks:
            for part in table_parts(ClockPart, found):
                self._send_frame(part)
        if self._by_mean and self._site_clocks_due.due(time.monotonic()):
            self._send_site_clocks(session, found)

    def _send_site_clocks(
        self, session: Session, found: Sequence[tuple[int | str, str, Mapping[GpuTypeName, LearnedClock]]]
    ) -> None:
        """Send what all runs say of clocks; what each name learned is known without it."""
        now = time.time()
        try:
            ended = EndedJobs(
                timed=map(ended_run, self._memory.timed()),
                decided=list(decided_runs(session, self._cluster, history_begin(now))),
            )
            clocks = site_clocks(found, self._memory.measured(), self._bounds, self._limits, now, ended)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # run times and work are known anyway, whatever it is
            logger.warning("clocks of the site not planned, those before stay error=%s", error)
            return
        self._send_frame(SiteClocksKnown(clocks=clocks))

    def _send_predictions(self, runs: Sequence[MeasuredRun], groups: Collection[NameOf] | None = None) -> None:
        """Send what the network expects of all names, or of some; without a network the tables count.

        Args:
            runs: All, or those of the groups.
            groups: Whose runs they are: beside them the last look at all runs counts. None: of all.
        """
        if not self._predicts or (groups is not None and self._predictions is None):
            return
        try:
            from slurm_energy.policy.gnn.outcomes.inference import loaded_network  # noqa: PLC0415  # numpy: no base
            from slurm_energy.policy.gnn.outcomes.site import SitePredictions, run_records  # noqa: PLC0415

            network = self._network = self._network or loaded_network()
            records = list(run_records(runs, self._scripts, self._learned))
            if groups is None or self._predictions is None:
                self._predictions = SitePredictions(network, records, self._limits, time.time())
            else:
                self._predictions = self._predictions.corrected(set(groups), records, time.time())
            predicted = list(self._predictions.table(groups))
        except Exception as error:  # noqa: BLE001  # tables count without it, whatever it is
            logger.warning("clocks not predicted, tables count runs=%d error=%s", len(runs), error)
            self._predictions, predicted, groups = None, [], None
        for part in table_parts(PredictionPart, predicted, is_whole=groups is None):
            self._send_frame(part)

    def _compare_for(self, user_id: int, name: str) -> CompareTypes:
        return TypeComparison(limits=self._limits, work=self._work.get((user_id, name))).cost
