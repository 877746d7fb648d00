"""The journal's lines (decisions, node reports, job states as JSON), and the queue in which they wait to be written.

The answering process writes decisions after the reply and reports before the acknowledgement. Encoding, writing and
fsync happen in one thread of their own; many reports share one fsync.
"""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from slurm_energy.daemon.recorder.journal import JournalWriter
from slurm_energy.domain.cluster import JobState, NodeSize
from slurm_energy.domain.decision import DecisionChange, EnergyDecision
from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.plain import from_plain, to_plain
from slurm_energy.domain.promotion import Assignment
from slurm_energy.errors import SpoolError, ValueRangeError, WireError

logger = logging.getLogger(__name__)

DAEMON_STREAM = "daemon"
JOBS_STREAM = "jobs"
REPORTS_STREAM = "reports"
STREAMS = (DAEMON_STREAM, JOBS_STREAM, REPORTS_STREAM)
FLUSH_INTERVAL_SECONDS = 0.05
RETRY_SECONDS = 1.0
WARN_INTERVAL_SECONDS = 60.0
MAX_WAITING = 50_000

Encoder = Callable[[], bytes]
"""Makes one journal line; runs in the writer's thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionEntryLine:
    """A decision and the job it was made for."""

    decision: EnergyDecision
    job: JobRequest
    assignment: Assignment | None = None
    """Which policy decided, where a candidate had part in it; none in the lines of older releases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsEntryLine:
    """Reports that one node sent at once."""

    received_at_seconds: float
    reports: tuple[NodeReport, ...]
    clock_offsets_seconds: tuple[float | None, ...] = ()
    """What to add to the times of each report to have them by this host's clock; None, and nothing in the lines of
    older releases: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsEntryLine:
    """Jobs whose recorded state changed; `vanished` ones left Slurm's memory without a seen end."""

    seen_at_seconds: float
    jobs: tuple[JobState, ...]
    vanished: tuple[JobState, ...] = ()
    node_sizes: tuple[NodeSize, ...] = ()
    """Of nodes that were not seen before, or are of another size by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEntryLine:
    """What was decided again for a job that waits."""

    change: DecisionChange


EntryLine = DecisionEntryLine | ReportsEntryLine | JobsEntryLine | ChangeEntryLine

_KINDS: dict[str, type[EntryLine]] = {
    "decision": DecisionEntryLine,
    "reports": ReportsEntryLine,
    "jobs": JobsEntryLine,
    "change": ChangeEntryLine,
}


def decision_line(decision: EnergyDecision, job: JobRequest, assignment: Assignment | None = None) -> bytes:
    """Return the line of a decision."""
    return encode_entry(DecisionEntryLine(decision=decision, job=job, assignment=assignment))


def change_line(change: DecisionChange) -> bytes:
    """Return the line of a decision that was made again."""
    return encode_entry(ChangeEntryLine(change=change))


def encode_entry(entry: EntryLine) -> bytes:
    """Return the journal line of an entry, without its line feed."""
    kind = next(name for name, known in _KINDS.items() if isinstance(entry, known))
    document = {"v": 1, "kind": kind, **to_plain(entry)}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def decode_entry(line: bytes) -> EntryLine:
    """Return the entry of a journal line.

    Raises:
        WireError: the line is damaged or was written by another version.
    """
    try:
        document = json.loads(line)
        kind = _KINDS[document["kind"]]
        version = document["v"]
    except (ValueError, KeyError, TypeError) as error:
        raise WireError(f"journal line {line[:80]!r} cannot be read: {error}") from error
    if version != 1:
        raise WireError(f"journal line has version {version!r}, this code reads 1")
    try:
        return from_plain(kind, document)
    except ValueRangeError as error:
        raise WireError(f"journal line cannot be read: {error}") from error


class JournalQueue:
    """Takes entries without blocking and writes them in order."""

    def __init__(self, writer: JournalWriter, max_waiting: int = MAX_WAITING) -> None:
        self._writer = writer
        self._max_waiting = max_waiting
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._waiting: deque[Encoder] = deque()
        self._durable: list[tuple[Encoder, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._warned_at = -WARN_INTERVAL_SECONDS
        self.dropped = 0
        """Decisions lost because the disk stayed full until memory's share was used up."""

    @property
    def waiting(self) -> int:
        """Entries that are in memory only."""
        return len(self._waiting) + len(self._durable)

    def append(self, encoder: Encoder) -> None:
        """Take an entry to be written soon; the oldest is dropped, and counted, when too many wait."""
        if len(self._waiting) >= self._max_waiting:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(encoder)
        self._wake.set()

    async def append_durably(self, encoder: Encoder) -> None:
        """Return once the entry is on the disk.

        Raises:
            SpoolError: it could not be written; the sender keeps it.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._durable.append((encoder, done))
        self._wake.set()
        await done

    async def run(self) -> None:
        """Write what arrives, until cancelled."""
        while True:
            await self._wake.wait()
            if not self._durable:
                await asyncio.sleep(FLUSH_INTERVAL_SECONDS)
            self._wake.clear()
            if not await asyncio.shield(self.flush()):
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def flush(self) -> bool:
        """Write everything that waits by now; return whether it could be written."""
        loop = asyncio.get_running_loop()
        durable, self._durable = self._durable, []
        entries = list(self._waiting)
        self._waiting.clear()
        written = await loop.run_in_executor(self._thread, self._write, entries, [item for item, _ in durable])
        if isinstance(written, SpoolError):
            self._keep(entries, written)
        for _, done in durable:
            if done.done():
                continue
            if isinstance(written, SpoolError):
                done.set_exception(written)
            else:
                done.set_result(None)
        return written is None

    async def close(self) -> None:
        """Write what is left and close the segment."""
        if not await self.flush():
            logger.error("journal not written at stop lost_entries=%d", len(self._waiting))
        await asyncio.get_running_loop().run_in_executor(self._thread, self._writer.close)
        self._thread.shutdown()

    def _write(self, entries: list[Encoder], durable: list[Encoder]) -> SpoolError | None:
        if not entries and not durable:
            return None
        try:
            self._writer.append([encode() for encode in (*entries, *durable)], durable=bool(durable))
        except SpoolError as error:
            return error
        return None

    def _keep(self, entries: list[Encoder], error: SpoolError) -> None:
        room = self._max_waiting - len(self._waiting)
        kept = entries[-room:] if room > 0 else []
        self.dropped += len(entries) - len(kept)
        self._waiting.extendleft(reversed(kept))
        now = time.monotonic()
        if now - self._warned_at >= WARN_INTERVAL_SECONDS:
            self._warned_at = now
            logger.warning("journal kept in memory waiting=%d dropped=%d error=%s", self.waiting, self.dropped, error)
