"""What the sampler of a job carries from sample to sample, and each reading added to it."""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slurm_energy.device.gpu import Gpu, reading
from slurm_energy.domain.energy import MAX_WATTS_PER_GPU
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import DeviceError, SpoolError
from slurm_energy.node.context import HookContext
from slurm_energy.node.energy import STUCK_SECONDS, GpuSamples, Heartbeat, HostSamples
from slurm_energy.node.host_meter import read_meter
from slurm_energy.node.spool import Spool
from slurm_energy.node.state import ActiveJob, MeterReading
from slurm_energy.node.trials.progress_file import StepCounter

if TYPE_CHECKING:
    from slurm_energy.node.host_power import HostPower
    from slurm_energy.node.power_budget import BudgetFollower
    from slurm_energy.node.trials.run import TrialRun

BUSY_UTILISATION = 0.05
CLOCK_STEP_MHZ = 15
"""Boards' clocks are this far apart: one that reads within it of the lock is at the lock."""
GAP_INTERVALS = 10.0
MIN_GAP_SECONDS = 5.0
"""A longer time between two samples is a gap: what happened in it is not guessed."""


class GpuHolders:
    """How many active jobs hold each GPU; states are read again only when their files change."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._seen: frozenset[tuple[str, int, int]] = frozenset()
        self._holders: dict[GpuUuid, int] = {}
        self.count = 0

    def holders(self) -> dict[GpuUuid, int]:
        """Return the number of active jobs by GPU."""
        try:
            with os.scandir(self._spool.active) as entries:
                files = [entry for entry in entries if entry.name.endswith(".json") and entry.name[0] != "."]
                stats = {(entry.name, entry.inode(), entry.stat(follow_symlinks=False).st_mtime_ns) for entry in files}
        except OSError:
            return self._holders
        if stats != self._seen:
            self._seen = frozenset(stats)
            self._holders = {}
            jobs = self._spool.active_jobs([])
            self.count = len(jobs)
            for job in jobs:
                for uuid in job.uuids:
                    self._holders[uuid] = self._holders.get(uuid, 0) + 1
        return self._holders


@dataclass(slots=True)
class _Last:
    """The sample before."""

    watts: float
    at_seconds: float


@dataclass(slots=True)
class SamplerState:
    """What one sampler carries from sample to sample."""

    job: ActiveJob
    heartbeat: Heartbeat
    last: dict[GpuUuid, _Last] = field(default_factory=dict)
    last_meter: MeterReading | None = None
    host_power: "HostPower | None" = None
    """The node's power, where host energy comes from one; None: the processors' counters."""
    ticks: int = 0
    beat_seconds: float = 0.0
    devices_checked: bool = False
    """Whether the job's cgroup was compared with its GPUs, or has none to compare."""
    frozen: Heartbeat | None = None
    """The sums when the last step ended, while there is none."""
    counter: StepCounter | None = None
    """The steps that the job's program may count."""
    trials: "TrialRun | None" = None
    """Trials of clocks, where the job has any."""
    budget: "BudgetFollower | None" = None
    """Follows the cluster's power budget, where the node does."""

    @property
    def own_clock_mhz(self) -> int | None:
        """The clock that is locked without a budget; None: the default."""
        return self.job.gpus[0].target_clock_mhz if self.trials is None else self.trials.locked_mhz

    @property
    def is_lowered(self) -> bool:
        """Whether the budget holds the job below its own clock."""
        return self.budget is not None and self.budget.lowered_mhz is not None


def add_power(context: HookContext, state: SamplerState, device: Gpu, sums: GpuSamples, holders: int) -> None:
    """Add the power since the sample before to the sums; a longer gap, or an absurd reading, is left out."""
    uuid, now = device.identity.uuid, context.monotonic()
    watts = reading(device.power_watts)
    last = state.last.pop(uuid, None)
    if watts is None or not 0.0 <= watts <= MAX_WATTS_PER_GPU:
        return
    state.last[uuid] = _Last(watts=watts, at_seconds=now)
    sums.samples += 1
    if last is None:
        return
    wall_seconds = now - last.at_seconds
    interval = context.settings.node.sample_interval_seconds
    if not 0.0 < wall_seconds <= max(GAP_INTERVALS * interval, MIN_GAP_SECONDS):
        return
    seconds = wall_seconds * state.job.time_scale
    joules = 0.5 * (watts + last.watts) * seconds
    sums.polled_joules += joules
    sums.sampled_seconds += seconds
    sums.share_joules += joules / holders
    sums.shared_seconds += seconds if holders > 1 else 0.0


def add_use(device: Gpu, sums: GpuSamples, locked_mhz: int | None) -> None:
    """Add utilisation and clock; `locked_mhz` is the clock that should be in force, None for the default."""
    utilisation = reading(device.utilisation)
    if utilisation is None:
        return
    sums.utilisation_sum += utilisation
    sums.utilisation_samples += 1
    clock = reading(device.sm_clock_mhz) if utilisation >= BUSY_UTILISATION else None
    if clock is not None:
        sums.busy_clock_sum_mhz += clock
        sums.busy_samples += 1
    if clock is not None and locked_mhz is not None:
        sums.locked_samples += 1
        sums.above_lock_samples += clock > locked_mhz + CLOCK_STEP_MHZ


def add_counter(context: HookContext, device: Gpu, sums: GpuSamples, time_scale: float) -> None:
    """Add a reading of the energy counter, and note that it fell or stood."""
    now = context.monotonic()
    joules = reading(device.energy_joules)
    if joules is None:
        return
    before, at = sums.counter_joules, sums.counter_at_seconds
    sums.counter_fell = sums.counter_fell or (before is not None and joules < before)
    if joules == before and at is not None and (now - at) * time_scale > STUCK_SECONDS:
        sums.counter_stood = True
    sums.counter_joules = joules
    sums.counter_at_seconds = context.monotonic()


def add_host(context: HookContext, state: SamplerState, jobs: int) -> None:
    """Add the energy of the processors, whole and divided by the jobs that the node's hooks know."""
    host = state.heartbeat.host
    if host is not None and host.problem is not None:
        return
    if host is None:
        host = state.heartbeat.host = HostSamples()
    try:
        reading = read_meter(context) if state.host_power is None else state.host_power.look()
    except (DeviceError, SpoolError) as error:
        host.problem = str(error)
        return
    if state.host_power is not None:
        events = state.heartbeat.events
        events.extend(text for text in state.host_power.said if text not in events)
    if reading is None:
        return
    before, state.last_meter = state.last_meter, reading
    if before is None:
        host.meter_id, host.meter_start_joules, host.meter_end_joules = reading.meter_id, reading.joules, reading.joules
        return
    if before.meter_id != reading.meter_id:  # what was drawn in between is not known, and left out
        host.meter_id = None
        return
    joules = reading.joules - before.joules
    host.joules += joules / jobs
    host.node_joules = None if host.node_joules is None else host.node_joules + joules
    host.sampled_seconds += reading.at_seconds - before.at_seconds
    host.wrap_unobserved = host.wrap_unobserved or reading.doubtful_steps > before.doubtful_steps
    host.shared = host.shared or jobs > 1
    if host.meter_id is not None:
        host.meter_end_joules = reading.joules
