"""The recorder child: the only process that writes the database, and the one that reads it for people."""

import logging
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.channel import receive, send
from slurm_energy.daemon.ipc.children import connect_to_parent, set_up_logging, until_stopped
from slurm_energy.daemon.ipc.frames import (
    ClockPart,
    QueryReply,
    QueryRequest,
    RuntimePart,
    WorkPart,
    reply_parts,
    table_parts,
)
from slurm_energy.daemon.recorder.entries import STREAMS
from slurm_energy.daemon.recorder.journal import journal_directory
from slurm_energy.daemon.recorder.queries import answer_query, answer_status
from slurm_energy.daemon.recorder.recorder import ChangedJobs, Recorder
from slurm_energy.daemon.recorder.run_memory import RunMemory, history_begin
from slurm_energy.daemon.recorder.unreported import UnreportedJobs
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.errors import (
    DaemonUnavailable,
    DatabaseReplaced,
    PermissionRefused,
    SchemaVersionError,
    SlurmEnergyError,
    SpoolError,
    StoreError,
    ValueRangeError,
)
from slurm_energy.estimation.job_history import (
    CompareTypes,
    NamedWork,
    NameOf,
    WorkFit,
    corrected_work,
    named_work,
    timed_names,
)
from slurm_energy.estimation.learned_clocks import learned_clocks
from slurm_energy.estimation.run_time import RUNS_PER_NAME, RunTimeModel
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.store.clock_trials import trials_of_names
from slurm_energy.store.database_file import check_database_file, close_database, guard_content
from slurm_energy.store.past_runs import read_scripts
from slurm_energy.store.schema import check_version, database_revision, upgrade
from slurm_energy.store.session import (
    Engine,
    Session,
    open_engine,
    run_in_transaction,
    store_session,
)
from slurm_energy.store.upkeep import optimize, prune_some
from slurm_energy.wire.codec import encode
from slurm_energy.wire.messages import failure, refusal

logger = logging.getLogger(__name__)

Requests = queue.SimpleQueue[QueryRequest]
SendFrame = Callable[[object], None]

POLL_SECONDS = 0.5
"""Between two looks at the journal, unless much lies there: a transaction costs as much as 20 decisions in one."""
LONGEST_PAUSE_SECONDS = 30.0
REPLACED_PAUSE_SECONDS = 1.0
LOOK_INTERVAL_SECONDS = 5.0
HISTORY_INTERVAL_SECONDS = 300.0
WORK_INTERVAL_SECONDS = 600.0
WORK_SOON_SECONDS = 30.0
"""Where runs are on a GPU type that was not known at the last look at all of them."""
CORRECTION_SHARE = 0.1
"""Of the time, that looks at the names of jobs that ended may take."""
UNREPORTED_INTERVAL_SECONDS = 60.0
PRUNE_INTERVAL_SECONDS = 60.0
OPTIMIZE_INTERVAL_SECONDS = 86_400.0
QUERY_WAIT_SECONDS = 10.0
HISTORY_PAUSE_SECONDS = 1.0
SHORT_SUBJECTS = frozenset({"explain", "status"})
"""Questions that are answered at once, by threads of their own: no long report stands in their way."""
SHORT_READERS = 2
LONG_READERS = 3


class Every:
    """Says when a repeated task is due."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._last: float | None = None

    def due(self, now_seconds: float, soon_seconds: float | None = None) -> bool:
        """Return whether it is time, and take it as done; `soon_seconds` shortens the interval this once."""
        interval = self._interval_seconds if soon_seconds is None else soon_seconds
        if self._last is not None and now_seconds - self._last < interval:
            return False
        self._last = now_seconds
        return True


class Condition:
    """Whether the database can be used, and if not, why: set by the recording, read by queries."""

    def __init__(self) -> None:
        self._usable = threading.Event()
        self.problem = "it is being opened"

    def good(self) -> None:
        """Note that it can be used."""
        self.problem = ""
        self._usable.set()

    def bad(self, problem: str, *, for_questions: bool) -> None:
        """Note why nothing is recorded; `for_questions`: why nothing can be read either."""
        self.problem = problem
        if for_questions:
            self._usable.clear()

    def wait(self, limit_seconds: float) -> None:
        """Return once the database can be read.

        Raises:
            DaemonUnavailable: it cannot, within the limit.
        """
        if not self._usable.wait(limit_seconds):
            raise DaemonUnavailable(f"the database cannot be used at the moment: {self.problem}")


class RecorderLoop:
    """Journal to database, until the daemon is gone."""

    def __init__(self, config: Config, changed: ChangedJobs, condition: Condition) -> None:
        self._condition = condition
        self._changed = changed
        self._recorder = Recorder(config, journal_directory(config), STREAMS, changed)
        self._cluster = ClusterName(config.cluster.name)
        self._keep_days = config.store.keep_days
        self._unreported = UnreportedJobs(self._cluster, config.node.time_scale)
        self._look_due = Every(LOOK_INTERVAL_SECONDS)
        self._unreported_due = Every(UNREPORTED_INTERVAL_SECONDS)
        self._prune_due = Every(PRUNE_INTERVAL_SECONDS)
        self._optimize_due = Every(OPTIMIZE_INTERVAL_SECONDS)

    def run(self, engine: Engine) -> None:
        """Store what comes; a database that is away is tried again after growing pauses."""
        pause, is_open, create = 0.5, False, True
        while True:
            try:
                check_database_file(engine)
                if not is_open:
                    prepare_schema(engine, create=create)
                    guard_content(engine)
                    is_open, create = True, False
                    self._condition.good()
                self._recorder.step(engine)
                self._side_tasks(engine)
                if self._recorder.went_back:
                    self._recorder.went_back = is_open = False
                    self._changed.all_changed()
                    close_database(engine)
                self._condition.good()
                pause = 0.5
            except (StoreError, SpoolError) as error:
                is_open = False
                is_other = isinstance(error, DatabaseReplaced | SchemaVersionError)
                self._condition.bad(str(error), for_questions=is_other)
                if is_other:
                    close_database(engine)
                    pause = min(pause, REPLACED_PAUSE_SECONDS)
                logger.warning("journal waits for the database retry_in_seconds=%.1f error=%s", pause, error)
                time.sleep(pause)
                pause = min(pause * 2.0, LONGEST_PAUSE_SECONDS)
                continue
            if not self._recorder.has_more:
                time.sleep(POLL_SECONDS)

    def _side_tasks(self, engine: Engine) -> None:
        now = time.monotonic()
        if self._look_due.due(now):
            self._recorder.look(engine)
        if self._unreported_due.due(now):
            closed = run_in_transaction(engine, lambda session: self._unreported.close(session, time.time()))
            if closed:
                logger.info("jobs closed without report rows=%d", closed)
        if self._keep_days > 0.0 and self._prune_due.due(now):
            before = time.time() - self._keep_days * 86_400.0
            removed = run_in_transaction(engine, lambda session: prune_some(session, self._cluster, before))
            if removed:
                logger.info("old rows removed jobs_and_decisions=%d", removed)
        if self._optimize_due.due(now):
            optimize(engine)


class HistoryLoop:
    """From the database to what decisions know of earlier jobs, in a thread beside the recording.

    Nothing that is recorded waits for it, and what it reads grows with the jobs that ended, not with the history. A job
    that ended corrects what is known of its name within a second or two, all names are looked at together from time
    to time.
    """

    def __init__(self, config: Config, send_frame: SendFrame, changed: ChangedJobs) -> None:
        self._learns = config.policy.learn_from_runs
        self._tries_clocks = config.policy.clock_trials != "off"
        self._send_frame = send_frame
        self._changed = changed
        self._cluster = ClusterName(config.cluster.name)
        self._memory = RunMemory(self._cluster, RUNS_PER_NAME)
        self._work: dict[NameOf, WorkEstimate] = {}
        self._work_fit: WorkFit | None = None
        self._work_lacks_types = False
        self._run_time_model: RunTimeModel | None = None
        self._limits = site_board_limits(config)
        self._history_due = Every(HISTORY_INTERVAL_SECONDS)
        self._work_due = Every(WORK_INTERVAL_SECONDS)
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
                # The last resort of a thread: without it decisions would stay at what they know, and nobody would see.
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
            if self._work_due.due(now, WORK_SOON_SECONDS if self._work_lacks_types else None):
                self._send_all_work(session)
            elif groups:
                self._correct_work(groups)
            self._send_runtimes(None if is_whole else groups)
            if is_whole or groups:
                self._send_clocks(session)
        self._correct_from = now + (time.thread_time() - before) / CORRECTION_SHARE

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
        self._work_lacks_types = False
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

    def _send_clocks(self, session: Session) -> None:
        if not self._tries_clocks:
            return
        try:
            learned = learned_clocks(trials_of_names(session, self._cluster, history_begin(time.time())))
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # run times and work are known all the same, whatever it is
            logger.warning("trials cannot be compared, what was known before stays error=%s", error)
            return
        for part in table_parts(ClockPart, learned):
            self._send_frame(part)

    def _compare_for(self, user_id: int, name: str) -> CompareTypes:
        return TypeComparison(limits=self._limits, work=self._work.get((user_id, name))).cost


def prepare_schema(engine: Engine, *, create: bool = True) -> None:
    """Refuse a database of another version; create the tables of an empty one, where that is wanted.

    Not wanted is it for a database that came in the place of another: its content may be on its way.

    Raises:
        SchemaVersionError: the database is older or newer than this code, or empty.
        StoreError: the database cannot be reached.
    """
    if create and database_revision(engine) is None:
        revision = upgrade(engine)
        logger.info("database created revision=%s", revision)
    check_version(engine)


def serve_queries(
    config: Config, engine: Engine, requests: Requests, send_frame: SendFrame, condition: Condition
) -> None:
    """Answer queries one after the other, in one of the threads beside the recording."""
    while True:
        request = requests.get()
        try:
            if request.query.subject == "status":
                reply = answer_status(engine, config, condition.problem)
            else:
                condition.wait(QUERY_WAIT_SECONDS)
                reply = answer_query(engine, config, request)
        except (PermissionRefused, ValueRangeError) as error:
            reply = refusal(str(error))
        except SlurmEnergyError as error:
            reply = failure(str(error))
        except Exception as error:  # the queries' request loop: one bad question never ends the recorder
            logger.exception("query failed subject=%s", request.query.subject)
            reply = failure(f"internal error {type(error).__name__}, see the daemon's log")
        for part, last in reply_parts(encode(reply)):
            send_frame(QueryReply(number=request.number, part=part, last=last))


def main(argv: list[str] | None = None) -> int:
    """Run the child; the argument is the number of its socket."""
    with until_stopped():
        try:
            connection = connect_to_parent(sys.argv[1:] if argv is None else argv)
            config: Config = receive(connection)
            set_up_logging(config.daemon.log_level, "recorder")
            _run(config, connection)
        except SlurmEnergyError as error:
            logger.error("recorder cannot run error=%s", error)
            time.sleep(1.0)
            return 1
    return 0


def _run(config: Config, connection: socket.socket) -> None:
    engine = open_engine(config.store)
    lock = threading.Lock()

    def send_frame(frame: object) -> None:
        with lock:
            send(connection, frame)

    short, long = queue.SimpleQueue[QueryRequest](), queue.SimpleQueue[QueryRequest]()
    condition, changed = Condition(), ChangedJobs()
    for requests, readers in ((short, SHORT_READERS), (long, LONG_READERS)):
        for number in range(readers):
            threading.Thread(
                target=serve_queries,
                args=(config, engine, requests, send_frame, condition),
                name=f"queries-{number}",
                daemon=True,
            ).start()
    threading.Thread(target=_listen, args=(connection, short, long), name="listen", daemon=True).start()
    history = HistoryLoop(config, send_frame, changed)
    threading.Thread(target=history.run, args=(engine, condition), name="history", daemon=True).start()
    RecorderLoop(config, changed, condition).run(engine)


def _listen(connection: socket.socket, short: Requests, long: Requests) -> None:
    """Take the daemon's questions; its end is the end of this process."""
    try:
        while True:
            request: QueryRequest = receive(connection)
            (short if request.query.subject in SHORT_SUBJECTS else long).put(request)
    except (EOFError, OSError):
        signal.raise_signal(signal.SIGTERM)
