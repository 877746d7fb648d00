"""The recorder child: the only process that writes the database, and the one that reads it for people."""

import logging
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.channel import receive, send
from slurm_energy.daemon.ipc.children import connect_to_parent, set_up_logging, until_stopped
from slurm_energy.daemon.ipc.frames import (
    LivePolicies,
    QueryReply,
    QueryRequest,
    reply_parts,
)
from slurm_energy.daemon.recorder.entries import STREAMS
from slurm_energy.daemon.recorder.history import HistoryLoop
from slurm_energy.daemon.recorder.journal import journal_directory
from slurm_energy.daemon.recorder.queries import answer_query, answer_status
from slurm_energy.daemon.recorder.recorder import QUERY_WAIT_SECONDS, ChangedJobs, Condition, Every, Recorder
from slurm_energy.daemon.recorder.unreported import UnreportedJobs
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import LivePolicy
from slurm_energy.errors import (
    DaemonUnavailable,
    DatabaseReplaced,
    PermissionRefused,
    PolicyError,
    SchemaVersionError,
    SlurmEnergyError,
    SpoolError,
    StoreError,
    ValueRangeError,
)
from slurm_energy.learning.nightly.stages import next_step, take_step
from slurm_energy.store.database_file import check_database_file, close_database, guard_content
from slurm_energy.store.past_runs import HISTORY_DAYS
from slurm_energy.store.promotion import live_policy
from slurm_energy.store.rollups import roll_up_some
from slurm_energy.store.schema import check_version, database_revision, finish_sums, upgrade
from slurm_energy.store.session import (
    Engine,
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
UNREPORTED_INTERVAL_SECONDS = 60.0
PRUNE_INTERVAL_SECONDS = 60.0
ROLLUP_INTERVAL_SECONDS = 30.0
OPTIMIZE_INTERVAL_SECONDS = 86_400.0
POLICY_LOOK_SECONDS = 2.0
POLICY_ADVANCE_SECONDS = 60.0
SHORT_SUBJECTS = frozenset({"explain", "status", "metrics"})
"""Questions that are answered at once, by threads of their own: no long report stands in their way."""
SHORT_READERS = 2
LONG_READERS = 3


class RecorderLoop:
    """Journal to database, until the daemon is gone."""

    def __init__(self, config: Config, changed: ChangedJobs, condition: Condition) -> None:
        self._condition = condition
        self._changed = changed
        self._recorder = Recorder(config, journal_directory(config), STREAMS, changed)
        self._cluster = ClusterName(config.cluster.name)
        self._keep_days = config.store.keep_days
        if 0.0 < self._keep_days < HISTORY_DAYS:
            logger.warning(
                "estimates learn from %g days of jobs, and fewer are kept store.keep_days=%g",
                HISTORY_DAYS,
                self._keep_days,
            )
        self._unreported = UnreportedJobs(self._cluster, config.node.time_scale)
        self._look_due = Every(LOOK_INTERVAL_SECONDS)
        self._unreported_due = Every(UNREPORTED_INTERVAL_SECONDS)
        self._prune_due = Every(PRUNE_INTERVAL_SECONDS)
        self._rollup_due = Every(ROLLUP_INTERVAL_SECONDS)
        self._rolls_up = False
        self._optimize_due = Every(OPTIMIZE_INTERVAL_SECONDS)

    def run(self, engine: Engine) -> None:
        """Store what comes; a database that is away is tried again after growing pauses."""
        pause, is_open, create, has_sums = 0.5, False, True, False
        while True:
            try:
                check_database_file(engine)
                if not is_open:
                    prepare_schema(engine, create=create)
                    guard_content(engine)
                    if not has_sums:
                        self._finish_sums(engine)
                    is_open, create, has_sums = True, False, True
                    self._condition.good()
                self._recorder.step(engine)
                self._side_tasks(engine)
                if self._recorder.went_back:
                    self._recorder.went_back = is_open = has_sums = False
                    self._changed.all_changed()
                    close_database(engine)
                self._condition.good()
                pause = 0.5
            except (StoreError, SpoolError) as error:
                is_open = False
                is_other = isinstance(error, DatabaseReplaced | SchemaVersionError)
                self._condition.bad(str(error), for_questions=is_other)
                if is_other:
                    has_sums = False
                    close_database(engine)
                    pause = min(pause, REPLACED_PAUSE_SECONDS)
                logger.warning("journal waits for the database retry_in_seconds=%.1f error=%s", pause, error)
                time.sleep(pause)
                pause = min(pause * 2.0, LONGEST_PAUSE_SECONDS)
                continue
            if not self._recorder.has_more:
                time.sleep(POLL_SECONDS)

    def _finish_sums(self, engine: Engine) -> None:
        """Finish an upgrade that was stopped on the way, before anything is answered: its energy would be unknown."""
        self._condition.bad("sums of an older release's reports are being made", for_questions=True)
        finished = finish_sums(engine)
        if finished:
            logger.info("an upgrade that was stopped is finished reports=%d", finished)

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
        self._rolls_up |= self._rollup_due.due(now)
        if self._rolls_up and not self._recorder.has_more:  # what comes is more urgent
            done = run_in_transaction(engine, lambda session: roll_up_some(session, self._cluster, time.time()))
            self._rolls_up = done > 0


class PromotionLoop:
    """The live policy's row and what moves it, beside the recording: read every few seconds, moved on evidence.

    A candidate that is worse is taken back within a minute of the evidence, and the answering process follows within
    seconds. What is read is always the row: after a restart at any point it says who decides.
    """

    def __init__(self, config: Config, send_frame: Callable[[object], None]) -> None:
        self._config = config
        self._cluster = ClusterName(config.cluster.name)
        self._send_frame = send_frame
        self._sent: LivePolicy | None = None
        self._advance_due = Every(min(POLICY_ADVANCE_SECONDS, 0.01 * 86_400.0 * config.nightly.max_stage_days))

    def run(self, engine: Engine, condition: Condition) -> None:
        """Follow the row until the process ends; a database that is away is tried again."""
        while True:
            try:
                condition.wait(QUERY_WAIT_SECONDS)
                self.step(engine)
            except (StoreError, DaemonUnavailable, PolicyError) as error:
                logger.info("live policy not read error=%s", error)
            except Exception:
                # The last resort of a thread: without it no candidate would be taken back, and no log would say so.
                logger.exception("live policy not read")
            time.sleep(POLICY_LOOK_SECONDS)

    def step(self, engine: Engine) -> None:
        """Move the challenger where it is time to look at its evidence, and say who decides if that has changed.

        Raises:
            StoreError: the database failed; the next step tries again.
        """
        with store_session(engine, read_only=True) as session:
            live = live_policy(session, self._cluster)
        if self._advance_due.due(time.monotonic()):
            before, live = live, self._advanced(engine, live)
            if live.generation != before.generation:
                logger.info(
                    "candidate moved id=%s from=%s champion=%s challenger=%s",
                    before.challenger_id or live.challenger_id,
                    None if before.stage is None else before.stage.value,
                    live.champion_id or "configured",
                    live.challenger_id or "none",
                )
        if live != self._sent:
            self._send_frame(LivePolicies(live=live))
            self._sent = live

    def _advanced(self, engine: Engine, live: LivePolicy) -> LivePolicy:
        """Return who decides after a look at the evidence; other writers wait only where something is moved."""
        now = time.time()
        with store_session(engine, read_only=True) as session:
            step = next_step(session, self._cluster, self._config, now)
        if not step.moves:
            return live
        return run_in_transaction(engine, lambda session: take_step(session, self._cluster, self._config, step, now))


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
            elif request.query.subject == "metrics" and condition.problem:
                reply = failure(condition.problem)
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
    promotion = PromotionLoop(config, send_frame)
    threading.Thread(target=promotion.run, args=(engine, condition), name="promotion", daemon=True).start()
    RecorderLoop(config, changed, condition).run(engine)


def _listen(connection: socket.socket, short: Requests, long: Requests) -> None:
    """Take the daemon's questions; its end is the end of this process."""
    try:
        while True:
            request: QueryRequest = receive(connection)
            (short if request.query.subject in SHORT_SUBJECTS else long).put(request)
    except (EOFError, OSError):
        signal.raise_signal(signal.SIGTERM)
