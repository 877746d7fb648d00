"""Node reports: proven, checked and on the disk before they are acknowledged."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from slurm_energy.daemon.entries import ReportsEntryLine, encode_entry
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.node_status import ReceivedStatus
from slurm_energy.errors import AuthenticationError, SpoolError, WireError
from slurm_energy.wire.authentication import ReplayGuard, verify
from slurm_energy.wire.codec import Message
from slurm_energy.wire.messages import failure, refusal
from slurm_energy.wire.node_status import Delivery, decode_delivery

logger = logging.getLogger(__name__)

MAX_REPORT_BYTES = 16 * 1024 * 1024


class ReportDesk:
    """Takes reports. A malformed one is refused for good; any other trouble is an error, and the node tries again."""

    def __init__(self, state: DaemonState, key: bytes | None) -> None:
        self._state = state
        self._key = key
        self._replay = ReplayGuard()
        # One thread: munge's tools and JSON of hostile size never hold up the event loop, nor the nonces each other.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reports")

    def use_key(self, key: bytes | None) -> None:
        """Use another shared key from now on; None: munge."""
        self._key = key

    async def accept(self, message: Message, host: str = "") -> Message:
        """Return the reply to one `report` message; `host` is the address that it came from."""
        if message.verb != "report":
            raise WireError(f"verb {message.verb!r} is not served here: only report is")
        loop = asyncio.get_running_loop()
        nodes = self._state.nodes
        try:
            delivery = await loop.run_in_executor(self._thread, self._proven, message, self._key)
            nodes.let_in(host)
            reports = delivery.reports
            if delivery.status is not None:
                received = ReceivedStatus(received_at_seconds=time.time(), status=delivery.status)
                await loop.run_in_executor(self._thread, nodes.take, received)
                self._state.counters["node statuses"] += 1
            if reports or delivery.status is None:
                entry = ReportsEntryLine(received_at_seconds=time.time(), reports=reports)
                await self._state.journal.append_durably(lambda: encode_entry(entry))
        except (AuthenticationError, SpoolError) as error:
            if isinstance(error, AuthenticationError):
                nodes.turn_away(host, str(error), time.time())
            self._state.counters["reports not taken"] += 1
            logger.warning("report not taken reason=%s", error)
            return failure(str(error))
        except WireError as error:
            self._state.counters["reports refused"] += 1
            logger.warning("report refused reason=%s", error)
            return refusal(str(error))
        self._state.counters["reports accepted"] += len(reports)
        return Message("ok", {"accepted": str(len(reports))})

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _proven(self, message: Message, key: bytes | None) -> Delivery:
        verified = verify(
            message, key=key, replay=self._replay, allowed_user_ids=self._state.privileged, now_seconds=time.time()
        )
        return decode_delivery(verified.body)
