"""The answering process's end of the recorder: questions out, answers and what history says in."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slurm_energy.daemon.ipc.children import ChildProcess
from slurm_energy.daemon.ipc.frames import (
    ClockPart,
    LivePolicies,
    PredictionPart,
    QueryReply,
    QueryRequest,
    RuntimePart,
    ScalingPart,
    SiteClocksKnown,
    WorkPart,
)
from slurm_energy.daemon.reuse import NamesWithRuns
from slurm_energy.domain.gpu_count import GpuScaling
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.predicted_clocks import PredictedWork
from slurm_energy.domain.promotion import LivePolicy
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.errors import DaemonUnavailable
from slurm_energy.estimation.job_history import JobHistory, NameOf
from slurm_energy.estimation.run_time import RunTime
from slurm_energy.wire.messages import Query

QUERY_SECONDS = 30.0
MAX_OPEN_QUERIES = 64


class RecorderLink:
    """Matches answers with questions."""

    def __init__(
        self,
        use_history: Callable[[JobHistory], None],
        use_live: Callable[[LivePolicy], None] = lambda _live: None,
        names: NamesWithRuns | None = None,
    ) -> None:
        self._use_history = use_history
        self._use_live = use_live
        self._names = names or NamesWithRuns()
        self._history = JobHistory()
        self._runtimes: dict[NameOf, RunTime] = {}
        self._work: dict[NameOf, WorkEstimate] = {}
        self._scaling: dict[NameOf, GpuScaling] = {}
        self._predicted: dict[NameOf, PredictedWork] = {}
        self._clocks: dict[NameOf, Mapping[GpuTypeName, LearnedClock]] = {}
        self._open: dict[int, tuple[list[bytes], asyncio.Future[list[bytes]]]] = {}
        self._number = 0
        self.child: ChildProcess | None = None
        """Set once, when the daemon has made the child that feeds `receive`."""

    async def query(self, query: Query, only_user_id: int | None) -> list[bytes]:
        """Return the parts of the recorder's reply, a whole encoded message.

        Raises:
            DaemonUnavailable: the recorder is away, busy with too many questions, or too slow.
        """
        if len(self._open) >= MAX_OPEN_QUERIES:
            raise DaemonUnavailable(f"{MAX_OPEN_QUERIES} queries are waiting already: try again later")
        self._number += 1
        number = self._number
        request = QueryRequest(number=number, query=query, only_user_id=only_user_id)
        if self.child is None or not self.child.send(request):
            raise DaemonUnavailable("the daemon's recorder is not running at the moment: try again in a few seconds")
        answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._open[number] = [], answer
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                return await answer
        except TimeoutError:
            raise DaemonUnavailable(f"the database gave no answer within {QUERY_SECONDS:g} s") from None
        finally:
            del self._open[number]

    def receive(self, frame: Any) -> None:  # noqa: PLR0912  # one branch for each kind of frame
        """Take one frame of the recorder."""
        if isinstance(frame, QueryReply):
            parts, answer = self._open.get(frame.number, (None, None))
            if parts is None or answer is None:
                return
            parts.append(frame.part)
            if frame.last and not answer.done():
                answer.set_result(parts)
        elif isinstance(frame, LivePolicies):
            self._use_live(frame.live)
        elif isinstance(frame, RuntimePart):
            self._note("runtimes", frame)
            self._runtimes = {} if frame.first else self._runtimes
            self._runtimes.update({(user_id, name): estimate for user_id, name, estimate in frame.estimates})
            if frame.last:
                self._use(replace(self._history, runtimes=self._runtimes))
        elif isinstance(frame, WorkPart):
            self._note("work", frame)
            self._work = {} if frame.first else self._work
            self._work.update({(user_id, name): estimate for user_id, name, estimate in frame.estimates})
            if frame.last:
                self._use(replace(self._history, work=self._work))

        elif isinstance(frame, ScalingPart):
            self._note("scaling", frame)
            self._scaling = {} if frame.first else self._scaling
            self._scaling.update({(user_id, name): scaling for user_id, name, scaling in frame.estimates})
            if frame.last:
                self._use(replace(self._history, scaling=self._scaling))
        elif isinstance(frame, PredictionPart):
            self._predicted = {} if frame.first else self._predicted
            self._predicted.update({(user_id, name): found for user_id, name, found in frame.estimates})
            if frame.last:
                self._use(replace(self._history, predicted=self._predicted))
        elif isinstance(frame, ClockPart):
            self._note("clocks", frame)
            self._clocks = {} if frame.first else self._clocks
            self._clocks.update({(user_id, name): clocks for user_id, name, clocks in frame.estimates})
            if frame.last:
                self._use(replace(self._history, clocks=self._clocks))
        elif isinstance(frame, SiteClocksKnown):
            self._use(replace(self._history, site_clocks=frame.clocks))

    def _note(self, table: str, frame: RuntimePart | WorkPart | ScalingPart | ClockPart) -> None:
        """Note which names have runs."""
        names = ((user_id, name) for user_id, name, _ in frame.estimates)
        self._names.add(table, names, first=frame.first, last=frame.last)

    def _use(self, history: JobHistory) -> None:
        self._history = history
        self._use_history(history)
