"""The recorder child: the only process that writes the database, and the one that reads it for people."""

import logging
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.channel import receive, send
from slurm_energy.daemon.ipc.children import connect_to_parent, set_up_logging, until_stopped
from slurm_energy.daemon.ipc.frames import QueryReply, QueryRequest, RuntimePart, WorkPart, reply_parts, table_parts
from slurm_energy.daemon.recorder.entries import STREAMS
from slurm_energy.daemon.recorder.journal import journal_directory
from slurm_energy.daemon.recorder.queries import answer_query, answer_status
from slurm_energy.daemon.recorder.recorder import Recorder
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
from slurm_energy.estimation.run_time import RUNS_PER_NAME, RunTimeModel
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.store.database_file import check_database_file, close_database, guard_content
from slurm_energy.store.past_runs import (
    NamesOfUser,
    RuntimeSample,
    all_recent_runtimes,
    failed_runs,
    measured_runs,
    names_of_jobs,
    read_scripts,
)
from slurm_energy.store.schema import check_version, database_revision, upgrade
from slurm_energy.store.session import (
    Engine,
    Session,
    open_engine,
    run_in_transaction,
    store_session,
)
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
HISTORY_DAYS = 90.0
WORK_INTERVAL_SECONDS = 600.0
WORK_SOON_SECONDS = 30.0
"""Where runs are on a GPU type that was not known at the last look at all of them."""
CORRECTED_AT_ONCE = 500
"""Jobs that ended, whose names are looked at in one go."""
CORRECTION_SHARE = 0.1
"""Of one core, that such looks may take."""
UNREPORTED_INTERVAL_SECONDS = 60.0
QUERY_WAIT_SECONDS = 10.0


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

    def __init__(self, config: Config, send_frame: SendFrame, condition: Condition) -> None:
        self._condition = condition
        self._config = config
        self._cluster = ClusterName(config.cluster.name)
        self._send_frame = send_frame
        self._recorder = Recorder(config, journal_directory(config), STREAMS)
        self._unreported = UnreportedJobs(self._cluster, config.node.time_scale)
        self._work: dict[NameOf, WorkEstimate] = {}
        self._work_fit: WorkFit | None = None
        self._work_lacks_types = False
        self._run_time_model: RunTimeModel | None = None
        self._correct_from = 0.0
        self._limits = site_board_limits(config)
        self._history_due = Every(HISTORY_INTERVAL_SECONDS)
        self._work_due = Every(WORK_INTERVAL_SECONDS)
        self._look_due = Every(LOOK_INTERVAL_SECONDS)
        self._unreported_due = Every(UNREPORTED_INTERVAL_SECONDS)

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
        if self._work_due.due(now, WORK_SOON_SECONDS if self._work_lacks_types else None):
            self._send_work(engine)
        if self._history_due.due(now):
            self._send_runtimes(engine)
        if self._recorder.touched_jobs and now >= self._correct_from:
            before = time.thread_time()
            self._correct(engine)
            self._correct_from = now + (time.thread_time() - before) / CORRECTION_SHARE
        if self._unreported_due.due(now):
            run_in_transaction(engine, lambda session: self._unreported.close(session, time.time()))

    def _send_work(self, engine: Engine) -> None:
        runs: list[MeasuredRun] = []
        failures: list[FailedRuns] = []
        scripts: Mapping[str, ScriptFeatures] = {}
        try:
            if self._config.policy.learn_from_runs:
                with store_session(engine, read_only=True) as session:
                    runs = list(measured_runs(session, self._cluster, _history_begins()))
                    failures = list(failed_runs(session, self._cluster, _history_begins()))
                    scripts = read_scripts(session, self._cluster, _history_begins())
            work, self._work_fit = named_work(runs, failures, scripts)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the recording must not end with it, whatever it is
            logger.warning("runs cannot be compared, what was known before stays runs=%d error=%s", len(runs), error)
            return
        self._work_lacks_types = False
        self._work = {(user_id, name): estimate for user_id, name, estimate in work}
        for part in table_parts(WorkPart, work):
            self._send_frame(part)

    def _send_runtimes(self, engine: Engine) -> None:
        with store_session(engine, read_only=True) as session:
            samples = all_recent_runtimes(session, self._cluster, _history_begins(), RUNS_PER_NAME)
            estimates, self._run_time_model = timed_names(samples, self._compare_for)
        for part in table_parts(RuntimePart, estimates):
            self._send_frame(part)

    def _correct(self, engine: Engine) -> None:
        """Correct what is known of the names of jobs that have ended, without a look at all others."""
        touched = [self._recorder.touched_jobs.pop() for _ in range(min(CORRECTED_AT_ONCE, self._num_touched))]
        with store_session(engine, read_only=True) as session:
            for names in names_of_jobs(session, self._cluster, touched):
                samples = list(
                    all_recent_runtimes(session, self._cluster, _history_begins(), RUNS_PER_NAME, names=names)
                )
                work = self._corrected_work(session, names) if self._config.policy.learn_from_runs else []
                self._send_corrected(names, samples, work)

    def _corrected_work(self, session: Session, names: NamesOfUser) -> list[NamedWork]:
        runs = list(measured_runs(session, self._cluster, _history_begins(), names=names))
        known_types = () if self._work_fit is None else self._work_fit.gpu_types
        self._work_lacks_types |= any(run.gpu_type not in known_types for run in runs)
        if self._work_fit is None:
            return []
        try:
            return corrected_work(
                self._work_fit, runs, failed_runs(session, self._cluster, _history_begins(), names=names)
            )
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the recording must not end with it, whatever it is
            logger.warning("estimate not corrected, what was known before stays runs=%d error=%s", len(runs), error)
            return []

    def _send_corrected(self, names: NamesOfUser, samples: list[RuntimeSample], work: list[NamedWork]) -> None:
        # Of what is read, some is of other groups, and not all of them.
        compared = [one for one in work if (one[0], one[1]) in names.groups]
        if compared:
            self._work.update({(user_id, name): estimate for user_id, name, estimate in compared})
            for part in table_parts(WorkPart, compared, is_whole=False):
                self._send_frame(part)
        if self._run_time_model is not None:
            timed, _ = timed_names(samples, self._compare_for, self._run_time_model)
            corrected = [one for one in timed if (one[0], one[1]) in names.groups]
            for time_part in table_parts(RuntimePart, corrected, is_whole=False) if corrected else ():
                self._send_frame(time_part)

    @property
    def _num_touched(self) -> int:
        return len(self._recorder.touched_jobs)

    def _compare_for(self, user_id: int, name: str) -> CompareTypes:
        return TypeComparison(limits=self._limits, work=self._work.get((user_id, name))).cost


def _history_begins() -> float:
    return time.time() - HISTORY_DAYS * 86_400.0


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
    """Answer queries one after the other, in a thread beside the recording."""
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

    requests: Requests = queue.SimpleQueue()
    condition = Condition()
    threading.Thread(
        target=serve_queries, args=(config, engine, requests, send_frame, condition), name="queries", daemon=True
    ).start()
    threading.Thread(target=_listen, args=(connection, requests), name="listen", daemon=True).start()
    RecorderLoop(config, send_frame, condition).run(engine)


def _listen(connection: socket.socket, requests: Requests) -> None:
    """Take the daemon's questions; its end is the end of this process."""
    try:
        while True:
            requests.put(receive(connection))
    except (EOFError, OSError):
        signal.raise_signal(signal.SIGTERM)
