"""Everything a hook reaches outside itself, so that tests can put something else in its place."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.device.gpu import Gpu, GpuDriver
from slurm_energy.domain.ids import GpuUuid, JobId, NodeName, Sluid
from slurm_energy.errors import DeviceError
from slurm_energy.node.allocation import device_minor
from slurm_energy.node.gpu_order import GpuOrder
from slurm_energy.node.lock_records import LockRecords
from slurm_energy.node.log import HookLog
from slurm_energy.node.settings import HookSettings
from slurm_energy.node.spool import BootMoment, Spool


def _not_asked(_job_id: JobId, _node: NodeName) -> str | None:
    """Return None: Slurm is not asked."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HookContext:
    """The doors of one hook run."""

    settings: HookSettings
    spool: Spool
    driver: Callable[[], GpuDriver]
    log: HookLog
    boot_id: str
    now: Callable[[], float]
    """Unix time."""
    monotonic: Callable[[], float]
    """Time since boot, the same for all processes."""
    pause: Callable[[float], None]
    stage: Callable[[str], None]
    """Called with what is being done, so that a deadline can say where it struck."""
    start_sampler: Callable[[JobId], None]
    live_jobs: Callable[[], frozenset[JobId | Sluid]]
    gpu_order: Callable[[str | None], GpuOrder]
    """Slurm's order of the GPUs, given the slurm.conf that slurmd named."""
    device_minor: Callable[[str], int | None] = field(default=device_minor)
    job_state: Callable[[JobId, NodeName], str | None] = field(default=_not_asked)
    """Asks Slurm for a job's state on its node: empty when there is no such job; None when Slurm cannot be asked."""
    lock_records: LockRecords = field(default_factory=lambda: LockRecords(None))
    start_flush: Callable[[], None] = field(default=lambda: None)
    """Start the delivery of reports in a process of its own."""
    devices_root: Path | None = None
    """Where the jobs' device lists are; None: where Linux has them."""
    rapl_root: Path | None = None
    """Where the processors' counters are; None: where Linux has them."""

    def moment(self) -> BootMoment:
        """Return the present, as marks in the spool tell it."""
        return BootMoment(boot_id=self.boot_id, monotonic_seconds=self.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The GPUs that could be reached; `problem` says why there are none when the driver cannot be opened."""

    gpus: dict[GpuUuid, Gpu]
    mig_parent: Callable[[str], GpuUuid]
    mig_share: Callable[[str], float]
    problem: str | None = None


@contextmanager
def reach_gpus(context: HookContext) -> Iterator[Machine]:
    """Open the driver; without one the machine has no GPUs and a problem."""
    context.stage("opening the GPU driver")
    try:
        driver = context.driver().__enter__()
    except DeviceError as error:
        yield Machine(gpus={}, mig_parent=_no_driver, mig_share=_no_share, problem=str(error))
        return
    try:
        try:
            gpus = {gpu.identity.uuid: gpu for gpu in driver.gpus()}
            machine = Machine(gpus=gpus, mig_parent=driver.mig_parent, mig_share=driver.mig_share)
        except DeviceError as error:
            machine = Machine(gpus={}, mig_parent=_no_driver, mig_share=_no_share, problem=str(error))
        yield machine
    finally:
        driver.__exit__(None, None, None)


def _no_driver(mig_uuid: str) -> GpuUuid:
    raise DeviceError(f"MIG device {mig_uuid[:64]}: the GPU driver cannot be opened")


def _no_share(mig_uuid: str) -> float:
    raise DeviceError(f"MIG device {mig_uuid[:64]}: the GPU driver cannot be opened")
