"""A running job under the cluster's power budget: its power stated to the daemon, its clock lowered while it is short.

The daemon is asked in a thread, so that a network that is away holds up no sample. A lowered clock is a lease: without
another answer the job's own clock comes back. It is set and marked as the clock of a trial is, so that whatever becomes
of this process, repair, the epilog and the next prolog put it back.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.device.gpu import Gpu, reading
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import AuthenticationError, SlurmEnergyError
from slurm_energy.forms import parse_addresses
from slurm_energy.node.context import HookContext
from slurm_energy.node.newest import ask_daemon
from slurm_energy.node.settings import HookSettings
from slurm_energy.node.state import ActiveJob
from slurm_energy.node.trials.clock import LockResult, forget_mark, mark_trial, set_trial_clock
from slurm_energy.wire.running_power import ClockOrder, RunningPower, decode_order, encode_running_power

if TYPE_CHECKING:
    from slurm_energy.node.energy import Heartbeat

Ask = Callable[[RunningPower, HookSettings], ClockOrder]
DEADLINE_SECONDS = 3.0
"""For all daemons together."""
RETRY_SECONDS = 10.0
"""Wall time until a daemon that gave no answer is asked again."""
MAX_LOST_SHARE = 0.1
"""Of its time limit that a job gives at most, counted as if it were as much slower as its clock is lower."""
MIN_MEASURED_SECONDS = 1.0
"""Device time at one clock below which a mean power says nothing of it."""
MAX_FAILURES = 3
"""In a row, after which the clock is left alone."""


class BudgetFollower:
    """One job on one node."""

    def __init__(
        self, context: HookContext, job: ActiveJob, gpus: Mapping[GpuUuid, Gpu], clocks_mhz: tuple[int, ...], ask: Ask
    ) -> None:
        """Store what is used; nothing is asked or set yet.

        Args:
            context: The doors.
            job: The job.
            gpus: Devices of all of its GPUs.
            clocks_mhz: Supported by them, ascending, the default clock last.
            ask: Asks the daemon; called in a thread.
        """
        self._context = context
        self._job = job
        self._gpus = dict(gpus)
        self._clocks_mhz = clocks_mhz
        self._ask = ask
        self._is_alone = (
            job.follows_budget
            and context.settings.node.set_clocks
            and len({gpu.gpu_type for gpu in job.gpus}) == 1
            and not any(gpu.mig or gpu.shared or not gpu.identified for gpu in job.gpus)
        )
        self._thread: threading.Thread | None = None
        self._answers: list[ClockOrder | str] = []
        self._due_seconds = 0.0
        self._order: ClockOrder | None = None
        self._lease_ends_seconds = 0.0
        self._last_seconds = context.monotonic()
        self._lost_seconds = 0.0
        self._failures = 0
        self._begun: tuple[float, float] | None = None
        """Joules and device seconds of the samples when the present mean begins."""
        self._problem = ""
        self.lowered_mhz: int | None = None
        """The clock that the budget holds the job at; None: its own."""

    def step(self, heartbeat: "Heartbeat", own_mhz: int | None, *, stays: bool) -> None:
        """Take an answer that has come, follow it, and ask again when it is time.

        Args:
            heartbeat: The sums so far; seconds at a lowered clock and events are added.
            own_mhz: The job's clock without a budget; None: the default.
            stays: Whether the clock is to be left alone: the job was rescued, or shares a GPU by now.
        """
        now = self._context.monotonic()
        self._count_time(heartbeat, now)
        self._begun = self._begun or self._sums(heartbeat)
        may_lower = self._is_alone and not stays and self._failures < MAX_FAILURES and not self._gave_enough()
        self._take_answer(now, heartbeat, own_mhz)
        wanted = self._wanted(own_mhz) if may_lower else None
        if stays:
            if self.lowered_mhz is not None:  # another part has given the clock back
                self.lowered_mhz, self._begun = None, None
                forget_mark(self._context, self._job)
        elif wanted != self.lowered_mhz:
            self._set(wanted, own_mhz, heartbeat)
        if now >= self._due_seconds and self._thread is None:
            self._start(self._stated(heartbeat, own_mhz, may_lower=may_lower))

    @property
    def is_ordered(self) -> bool:
        """Whether the daemon's last answer names a clock, and still holds."""
        order = self._order
        return (
            order is not None and order.clock_mhz is not None and self._context.monotonic() < self._lease_ends_seconds
        )

    def _count_time(self, heartbeat: "Heartbeat", now: float) -> None:
        seconds, self._last_seconds = now - self._last_seconds, now
        if self.lowered_mhz is None:
            return
        self._lost_seconds += seconds * (1.0 - self.lowered_mhz / self._clocks_mhz[-1])
        heartbeat.budget_seconds += seconds * self._job.time_scale
        lowest = heartbeat.budget_clock_mhz
        heartbeat.budget_clock_mhz = self.lowered_mhz if lowest is None else min(lowest, self.lowered_mhz)

    def _gave_enough(self) -> bool:
        minutes = self._job.time_limit_minutes
        return minutes is not None and self._lost_seconds > MAX_LOST_SHARE * 60.0 * minutes

    def _wanted(self, own_mhz: int | None) -> int | None:
        highest = None if self._order is None or not self.is_ordered else self._order.clock_mhz
        if highest is None:
            return None
        clock = max((mhz for mhz in self._clocks_mhz if mhz <= highest), default=self._clocks_mhz[0])
        return clock if clock < (own_mhz or self._clocks_mhz[-1]) else None

    def _set(self, wanted: int | None, own_mhz: int | None, heartbeat: "Heartbeat") -> None:
        context, job, events = self._context, self._job, heartbeat.events
        if wanted is not None and not self._mark(own_mhz, heartbeat):
            self._failures += 1
            return
        clock = own_mhz if wanted is None else wanted
        result, now_mhz = set_trial_clock(context, job, self._gpus, clock, own_mhz, events)
        if result is LockResult.BUSY:
            return  # a hook is at work on a GPU: again at the next sample
        self._begun = None  # the next interval between two samples has a part of the clock before
        if result is LockResult.NOT_OURS:
            self._is_alone, self.lowered_mhz = False, None  # a hook restores it
            return
        if result is LockResult.FAILED:
            self._failures += 1
            self.lowered_mhz = None if now_mhz == own_mhz else now_mhz
            events.append(f"power budget: the clock of {clock or 'default'} MHz could not be set")
            return
        self._failures = 0
        if wanted is not None and heartbeat.budget_seconds == 0.0 and self.lowered_mhz is None:
            events.append(f"power budget: first lowered to {wanted} MHz")
        self.lowered_mhz = wanted
        if wanted is None:
            forget_mark(context, job)

    def _mark(self, own_mhz: int | None, heartbeat: "Heartbeat") -> bool:
        return mark_trial(
            self._context, self._job, self._lease_ends_seconds, heartbeat.events, default_after=own_mhz is None
        )

    def _take_answer(self, now: float, heartbeat: "Heartbeat", own_mhz: int | None) -> None:
        if self._thread is None or self._thread.is_alive():
            return
        self._thread = None
        answer = self._answers.pop() if self._answers else "the daemon was not asked"
        if isinstance(answer, str):
            if answer != self._problem:
                heartbeat.events.append(f"power budget: {answer}")
            self._problem, self._due_seconds = answer, now + RETRY_SECONDS
            return
        self._problem = ""
        self._order, self._lease_ends_seconds = answer, now + answer.lease_seconds
        self._due_seconds = now + answer.ask_seconds
        if self.lowered_mhz is not None:
            self._mark(own_mhz, heartbeat)  # until the new lease's end

    def _stated(self, heartbeat: "Heartbeat", own_mhz: int | None, *, may_lower: bool) -> RunningPower:
        joules, seconds = self._sums(heartbeat)
        begun, watts = self._begun, None
        if begun is not None and seconds - begun[1] >= MIN_MEASURED_SECONDS * len(self._job.gpus):
            watts = len(self._job.gpus) * (joules - begun[0]) / (seconds - begun[1])
            self._begun = joules, seconds
        own = own_mhz or self._clocks_mhz[-1]
        return RunningPower(
            job_id=self._job.job_id,
            node=self._job.node,
            gpu_type=self._job.gpus[0].gpu_type,
            num_gpus=len(self._job.gpus),
            watts=watts,
            clock_mhz=self.lowered_mhz or own,
            decided_clock_mhz=max(own, self._clocks_mhz[0]),
            default_clock_mhz=self._clocks_mhz[-1],
            lowest_clock_mhz=self._clocks_mhz[0],
            may_lower=may_lower,
        )

    def _sums(self, heartbeat: "Heartbeat") -> tuple[float, float]:
        found = [heartbeat.gpus[gpu.uuid] for gpu in self._job.gpus if gpu.uuid in heartbeat.gpus]
        return sum(sums.share_joules for sums in found), sum(sums.sampled_seconds for sums in found)

    def _start(self, stated: RunningPower) -> None:
        self._answers.clear()

        def ask() -> None:
            try:
                self._answers.append(self._ask(stated, self._context.settings))
            except (SlurmEnergyError, OSError) as error:
                self._answers.append(f"no answer of the daemon: {error}")

        self._thread = threading.Thread(target=ask, daemon=True)
        self._thread.start()


def make_follower(context: HookContext, job: ActiveJob, gpus: Mapping[GpuUuid, Gpu]) -> BudgetFollower | None:
    """Return what follows the budget for a job, None where the node does not, or the boards' clocks are not known."""
    node = context.settings.node
    if not node.follow_power_budget or not node.daemon_address or not job.gpus or not set(job.uuids) <= set(gpus):
        return None
    device = gpus[job.gpus[0].uuid]
    highest = job.gpus[0].saved.default_clock_mhz
    supported = reading(device.supported_sm_clocks_mhz) or ()
    clocks = tuple(clock for clock in supported if highest is not None and clock <= highest)
    if not clocks:
        return None
    return BudgetFollower(context, job, {uuid: gpus[uuid] for uuid in job.uuids}, clocks, ask_for_clock)


def ask_for_clock(stated: RunningPower, settings: HookSettings) -> ClockOrder:
    """Return the clock that the daemon allows a running job.

    Raises:
        SlurmEnergyError: no daemon gave an authenticated answer in time.
    """
    from slurm_energy.wire.authentication import load_key, sign  # noqa: PLC0415  # few sites have a budget
    from slurm_energy.wire.codec import Message  # noqa: PLC0415

    end = time.monotonic() + DEADLINE_SECONDS
    key = load_key(Path(settings.node.hmac_key_path)) if settings.node.authentication == "hmac" else None
    problem: SlurmEnergyError | OSError = AuthenticationError("node.daemon_address names no daemon")
    for address in parse_addresses(settings.node.daemon_address):
        left = end - time.monotonic()
        if left <= 0.0:
            break
        signed = sign(encode_running_power(stated), key=key, tool_seconds=left)
        request = Message("power", {"nonce": os.urandom(16).hex(), **signed.fields})
        try:
            text, note = ask_daemon(address, request, settings, end)
            if text is not None:
                return decode_order(text)
            problem = AuthenticationError(f"the daemon's answer has no clock: {note}")
        except (SlurmEnergyError, OSError) as error:
            problem = error
    raise problem
