"""A sweep of a node's own boards over their clocks: what loads draw and how fast they are at each.

Only on GPUs that are certainly reserved: those of the job that runs it, or those of a node that Slurm has drained and
that runs no job. It is bounded in time. Clocks are given back on every end; each lock is recorded where `repair` looks,
as for a job, so that a sweep that is killed leaves no lock behind.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from slurm_energy.device.gpu import Gpu, SavedSettings, lock_clock, restore_settings, save_settings
from slurm_energy.domain.ids import MAX_JOB_ID, GpuUuid, JobId, parse_job_id
from slurm_energy.errors import DeviceError, SlurmEnergyError
from slurm_energy.node.clock_plan import site_clock_mhz
from slurm_energy.node.context import HookContext, Machine, reach_gpus
from slurm_energy.node.lock_records import LockRecord

MIN_CLOCKS, MAX_CLOCKS = 4, 20
LOWEST_SHARE = 0.5
"""Of the highest clock; below it work takes too long to be of use."""
MAX_DRIFT = 0.05
"""By which the load's speed at the default clock may differ between the beginning and the end of its sweep."""
_NO_JOB = JobId(MAX_JOB_ID)
"""Stands in records for a sweep outside a job: no job has it, so that `repair` gives the clock back."""


class RunningLoad(Protocol):
    """A program that keeps one GPU busy."""

    def units(self) -> tuple[float, float]:
        """Return monotonic seconds and units of work done until then, of the newest report.

        Raises:
            DeviceError: the program has ended.
        """
        ...

    def stop(self) -> None:
        """End it."""
        ...


StartLoad = Callable[[Gpu], RunningLoad]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """How long and where to measure."""

    clocks: int = 10
    settle_seconds: float = 3.0
    window_seconds: float = 10.0
    max_seconds: float = 1800.0
    """Of the whole sweep; what is not measured by then is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredClock:
    """One clock that was set."""

    sm_clock_mhz: int
    watts: float
    seconds: float
    """Of one unit of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSweep:
    """What was measured of one board."""

    uuid: GpuUuid
    device_name: str
    gpu_type: str | None
    supported_clocks_mhz: tuple[int, ...]
    power_limit_watts: float | None
    clocks_by_load: Mapping[str, tuple[MeasuredClock, ...]]
    problems: tuple[str, ...] = ()
    """Why a load or a clock is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedGpus:
    """GPUs that no other job may use now, and for which job."""

    uuids: frozenset[GpuUuid] | None
    """None for every GPU of the node."""
    job_id: JobId


def reserved_gpus(context: HookContext, environment: Mapping[str, str], node_state: Callable[[], str]) -> ReservedGpus:
    """Return the GPUs that may be swept.

    Args:
        context: The doors.
        environment: Of this process; inside a job Slurm has put the job's number there.
        node_state: Asks Slurm for the node's state, such as `IDLE+DRAIN`.

    Raises:
        DeviceError: none may; the message says what to do.
    """
    active = context.spool.active_jobs([])
    text = environment.get("SLURM_JOB_ID", "")
    if text:
        job_id = parse_job_id(text)
        own = [job for job in active if job.job_id == job_id]
        if not own:
            raise DeviceError(
                f"job {text} has no GPUs on this node by our prolog's record: run it with srun on the node itself, "
                "with --gres=gpu:N, on a node whose prolog is installed"
            )
        others = frozenset[GpuUuid]().union(*(job.uuids for job in active if job.job_id != job_id))
        uuids = own[0].alone_uuids - others
        if not uuids:
            raise DeviceError(f"job {text} has no GPU to itself (MIG, shard or MPS): ask for whole GPUs")
        return ReservedGpus(uuids=uuids, job_id=job_id)
    if active:
        numbers = ", ".join(str(job.job_id) for job in active[:5])
        raise DeviceError(f"job {numbers} runs on this node: wait until it has ended, with the node drained")
    state = node_state().upper()
    words = set(state.replace("*", "").split("+"))
    if "DRAIN" not in words and "DRAINED" not in words:
        raise DeviceError(
            f"node {context.settings.node_name} is {state or 'unknown to Slurm'} and not drained, so a job may start "
            f"at any moment: run scontrol update nodename={context.settings.node_name} state=drain reason=calibrate, "
            "wait until it is idle, or run this inside a job that holds the GPUs"
        )
    if not words & {"IDLE", "DRAINED"}:
        raise DeviceError(f"node {context.settings.node_name} is {state}: wait until its last job has ended")
    return ReservedGpus(uuids=None, job_id=_NO_JOB)


def swept_boards(
    context: HookContext,
    reservation: ReservedGpus,
    loads: Mapping[str, StartLoad],
    settings: SweepSettings,
    tell: Callable[[str], None],
) -> tuple[BoardSweep, ...]:
    """Return the sweeps of one board of each kind, with every load; clocks are as before when this returns or raises.

    Raises:
        DeviceError: no GPU can be reached, locked or measured.
        SpoolError: the spool cannot be used.
    """
    end_seconds = context.monotonic() + settings.max_seconds
    context.spool.prepare()
    with reach_gpus(context) as machine:
        boards = _one_of_each(machine, reservation)
        with context.spool.try_locks([gpu.identity.uuid for gpu in boards]) as held:
            if not held:
                raise DeviceError("a hook is setting one of the GPUs: try again in a minute")
            return tuple(_swept(context, gpu, reservation.job_id, loads, settings, end_seconds, tell) for gpu in boards)


def _one_of_each(machine: Machine, reservation: ReservedGpus) -> list[Gpu]:
    """Return the first board of each name and power limit."""
    found: dict[tuple[str, float | None], Gpu] = {}
    for uuid, gpu in machine.gpus.items():
        if (reservation.uuids is None or uuid in reservation.uuids) and not gpu.identity.mig_enabled:
            limit = save_settings(gpu, (), None).power_limit_watts
            found.setdefault((gpu.identity.name, limit), gpu)
    if not found:
        raise DeviceError(f"no GPU can be swept: {machine.problem or 'none is here, or all are in MIG mode'}")
    return list(found.values())


def _swept(  # noqa: PLR0913, PLR0917  # each is one fact of the sweep
    context: HookContext,
    gpu: Gpu,
    job_id: JobId,
    loads: Mapping[str, StartLoad],
    settings: SweepSettings,
    end_seconds: float,
    tell: Callable[[str], None],
) -> BoardSweep:
    identity = gpu.identity
    try:
        supported = tuple(gpu.supported_sm_clocks_mhz())
    except DeviceError as error:
        raise DeviceError(f"GPU {identity.uuid} names no clocks: {error}") from error
    site = site_clock_mhz(context.settings.node.site_locked_clocks_mhz, identity.gpu_type)
    saved = save_settings(gpu, supported, site)
    clocks = swept_clocks(supported, settings.clocks)
    problems: list[str] = []
    found: dict[str, tuple[MeasuredClock, ...]] = {}
    with _clock_given_back(context, gpu, saved, job_id, problems):
        for name, start in loads.items():
            if context.monotonic() >= end_seconds:
                problems.append(f"{name}: no time left")
                continue
            tell(f"GPU {identity.index} ({identity.name}): {name} at {len(clocks)} clocks")
            try:
                found[name] = _one_load(context, gpu, start, clocks, settings, end_seconds)
            except DeviceError as error:
                problems.append(f"{name}: {error}")
    return BoardSweep(
        uuid=identity.uuid,
        device_name=identity.name,
        gpu_type=identity.gpu_type,
        supported_clocks_mhz=supported,
        power_limit_watts=saved.power_limit_watts,
        clocks_by_load=found,
        problems=tuple(problems),
    )


def swept_clocks(supported_mhz: Sequence[int], count: int) -> tuple[int, ...]:
    """Return so many clocks from the highest down to half of it, evenly spread over those that are supported.

    Raises:
        DeviceError: there are too few.
    """
    above = [clock for clock in sorted(supported_mhz) if clock >= LOWEST_SHARE * max(supported_mhz, default=0)]
    if len(above) < MIN_CLOCKS:
        raise DeviceError(f"{len(above)} supported clocks above half of the highest: at least {MIN_CLOCKS} are needed")
    number = min(max(MIN_CLOCKS, min(MAX_CLOCKS, count)), len(above))
    step = (len(above) - 1) / (number - 1)
    return tuple(reversed([above[round(step * index)] for index in range(number)]))


@contextmanager
def _clock_given_back(
    context: HookContext, gpu: Gpu, saved: SavedSettings, job_id: JobId, problems: list[str]
) -> Iterator[None]:
    """Record that the clock may be locked, and give it back however the block ends."""
    uuid = gpu.identity.uuid
    highest = saved.highest_clock_mhz or 1
    context.lock_records.write([LockRecord(uuid=uuid, job_id=job_id, clock_mhz=highest)], context.boot_id)
    try:
        yield
    finally:
        outcome = restore_settings(gpu, saved, clock_changed=True, pause=context.pause)
        problems.extend(outcome.events)
        if outcome.restored:
            context.lock_records.forget(uuid)
        else:
            problems.append(f"the clock of GPU {uuid} was not given back: slurm-energy-node repair tries again")


def _one_load(  # as above
    context: HookContext,
    gpu: Gpu,
    start: StartLoad,
    clocks: Sequence[int],
    settings: SweepSettings,
    end_seconds: float,
) -> tuple[MeasuredClock, ...]:
    """Return one load's figures by clock, the default clock measured again at the end against drift.

    Raises:
        DeviceError: the load ended, did not work, or its speed drifted; time ran out.
    """
    lowest = min(gpu.supported_sm_clocks_mhz())
    load = start(gpu)
    try:
        found = [_one_clock(context, gpu, load, (lowest, clock), settings, end_seconds) for clock in clocks]
        again = _one_clock(context, gpu, load, (lowest, clocks[0]), settings, end_seconds)
    finally:
        load.stop()
    drift = abs(again.seconds / found[0].seconds - 1.0)
    if drift > MAX_DRIFT:
        raise DeviceError(f"at the default clock it was {drift:.0%} apart at the beginning and the end: not used")
    mean = MeasuredClock(
        sm_clock_mhz=clocks[0],
        watts=0.5 * (found[0].watts + again.watts),
        seconds=0.5 * (found[0].seconds + again.seconds),
    )
    return tuple(sorted((mean, *found[1:]), key=lambda one: one.sm_clock_mhz))


def _one_clock(  # as above
    context: HookContext,
    gpu: Gpu,
    load: RunningLoad,
    span_mhz: tuple[int, int],
    settings: SweepSettings,
    end_seconds: float,
) -> MeasuredClock:
    if context.monotonic() + settings.settle_seconds + settings.window_seconds > end_seconds:
        raise DeviceError("the time for the sweep is over (--max-minutes)")
    outcome = lock_clock(gpu, *span_mhz, context.pause)
    if outcome.applied_clock_mhz is None or outcome.flags:
        raise DeviceError(outcome.event or f"the clock cannot be locked at {span_mhz[1]} MHz")
    context.pause(settings.settle_seconds)
    before_seconds, before_joules = context.monotonic(), gpu.energy_joules()
    since, begun = load.units()
    context.pause(settings.window_seconds)
    after_seconds, after_joules = context.monotonic(), gpu.energy_joules()
    until, done = load.units()
    if done <= begun or until <= since:
        raise DeviceError(f"it did no work within {settings.window_seconds:g} s at {span_mhz[1]} MHz")
    scale = context.settings.node.time_scale  # above 1 in a laboratory alone
    watts = (after_joules - before_joules) / ((after_seconds - before_seconds) * scale)
    if not watts > 0.0:
        raise DeviceError(f"the energy counter stood still at {span_mhz[1]} MHz")
    return MeasuredClock(sm_clock_mhz=span_mhz[1], watts=watts, seconds=scale * (until - since) / (done - begun))


def node_state(name: str, bin_directory: str, slurm_conf: str) -> str:
    """Return Slurm's state of a node, such as `IDLE+DRAIN`; empty where Slurm cannot be asked."""
    from slurm_energy.slurm.command import run_command  # noqa: PLC0415  # hooks import this module's neighbours

    environment = {"PATH": os.environ.get("PATH") or "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    if slurm_conf:
        environment["SLURM_CONF"] = slurm_conf
    command = f"{bin_directory}/scontrol" if bin_directory else "scontrol"
    pieces: list[bytes] = []
    try:
        run_command(
            [command, "--oneliner", "show", "node", name], pieces.append, environment=environment, timeout_seconds=10.0
        )
    except (SlurmEnergyError, OSError):
        return ""
    words = b"".join(pieces).decode("utf-8", "replace").split()
    return next((word.removeprefix("State=") for word in words if word.startswith("State=")), "")
