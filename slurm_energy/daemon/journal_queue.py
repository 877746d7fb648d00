"""The answering process's side of the journal: decisions after the reply, reports before the acknowledgement.

Encoding, writing and fsync happen in one thread of their own; many reports share one fsync.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from slurm_energy.daemon.journal import JournalWriter
from slurm_energy.errors import SpoolError

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_SECONDS = 0.05
RETRY_SECONDS = 1.0
WARN_INTERVAL_SECONDS = 60.0
MAX_WAITING = 50_000

Encoder = Callable[[], bytes]
"""Makes one journal line; runs in the writer's thread."""


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
