"""GPUs, clock and context for tests of the hooks; state can live in a file to survive a kill."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy.config import NodeConfig
from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, GpuUuid, JobId, NodeName, Sluid
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import DeviceError, DeviceNotSupported
from slurm_energy.node.context import HookContext
from slurm_energy.node.gpu_order import GpuOrder, SlurmGpu
from slurm_energy.node.lock_records import LockRecords
from slurm_energy.node.log import HookLog
from slurm_energy.node.settings import HookSettings
from slurm_energy.node.spool import BootMoment, Spool
from slurm_energy.slurm.hook_env import HookEnvironment, parse_hook_environment
from slurm_energy.wire.report import decode_report

A100 = "NVIDIA A100-SXM4-80GB"
A100_CLOCKS = tuple(range(210, 1411, 15))
DECISION = DecisionId("abcdef0123456789")


@dataclass
class Clock:
    """Time that only tests move."""

    now: float = 1_800_000_000.0
    monotonic: float = 5_000.0

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.monotonic += seconds

    def read_now(self) -> float:
        return self.now

    def read_monotonic(self) -> float:
        return self.monotonic


@dataclass
class FakeGpu:
    """One GPU that counts energy as its power says; `faults` maps a method to the errors of its next calls."""

    clock: Clock
    index: int = 0
    minor: int | None = 0
    name: str = A100
    gpu_type: str | None = "a100-sxm4-80gb"
    mig: bool = False
    watts: float = 200.0
    busy: float = 1.0
    memory_busy: float = 0.5
    pcie: float = 1e8
    free_clock_mhz: int = 1410
    limit_watts: float = 400.0
    lock: tuple[int, int] | None = None
    time_scale: float = 1.0
    counter_base: float = 1000.0
    counter_since: float = 5_000.0
    counter_stuck: bool = False
    clocks: tuple[int, ...] = A100_CLOCKS
    faults: dict[str, list[DeviceError] | DeviceError] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    on_call: Callable[[str], None] | None = None
    on_change: Callable[[], None] | None = None

    @property
    def identity(self) -> GpuIdentity:
        return GpuIdentity(
            index=self.index,
            uuid=GpuUuid(f"GPU-{self.index:04d}"),
            name=self.name,
            minor_number=self.minor,
            gpu_type=None if self.gpu_type is None else GpuTypeName(self.gpu_type),
            mig_enabled=self.mig,
        )

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.on_call is not None:
            self.on_call(name)
        fault = self.faults.get(name)
        if isinstance(fault, list):
            if fault:
                raise fault.pop(0)
        elif fault is not None:
            raise fault

    def energy_joules(self) -> float:
        self._called("energy_joules")
        if self.counter_stuck:
            return self.counter_base
        return self.counter_base + self.watts * self.time_scale * (self.clock.monotonic - self.counter_since)

    def reset_counter(self, joules: float = 0.0) -> None:
        self.counter_base, self.counter_since = joules, self.clock.monotonic

    def power_watts(self) -> float:
        self._called("power_watts")
        return self.watts

    def sm_clock_mhz(self) -> int:
        self._called("sm_clock_mhz")
        return min(self.free_clock_mhz, self.lock[1]) if self.lock else self.free_clock_mhz

    def utilisation(self) -> float:
        self._called("utilisation")
        return self.busy

    def instant_power_watts(self) -> float:
        self._called("instant_power_watts")
        return self.watts

    def memory_utilisation(self) -> float:
        self._called("memory_utilisation")
        return self.memory_busy

    def pcie_received_bytes_per_second(self) -> float:
        self._called("pcie_received_bytes_per_second")
        return self.pcie

    def activity(self) -> Mapping[str, float]:
        self._called("activity")
        raise DeviceNotSupported("no GPM counters")

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        self._called("supported_sm_clocks_mhz")
        return self.clocks

    def application_clock_mhz(self) -> int:
        self._called("application_clock_mhz")
        return 1410

    def power_limit_watts(self) -> float:
        self._called("power_limit_watts")
        return self.limit_watts

    def set_power_limit(self, watts: float) -> None:
        self._called("set_power_limit")
        self.limit_watts = watts
        self._changed()

    def lock_sm_clock(self, low_mhz: int, high_mhz: int) -> None:
        self._called("lock_sm_clock")
        self.lock = (low_mhz, high_mhz)
        self._changed()

    def unlock_sm_clock(self) -> None:
        self._called("unlock_sm_clock")
        self.lock = None
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()


class FakeDriver:
    """A driver over fake GPUs; `broken` makes opening fail."""

    def __init__(self, gpus: list[FakeGpu], broken: DeviceError | None = None) -> None:
        self._gpus = gpus
        self._broken = broken
        self.opened = 0
        self.shares: dict[str, float] = {}
        """Of MIG devices; of others the driver does not tell."""

    def __enter__(self) -> "FakeDriver":
        self.opened += 1
        if self._broken is not None:
            raise self._broken
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def gpus(self) -> tuple[FakeGpu, ...]:
        return tuple(self._gpus)

    def mig_parent(self, mig_uuid: str) -> GpuUuid:
        for gpu in self._gpus:
            if gpu.mig:
                return gpu.identity.uuid
        raise DeviceError(f"no GPU has the slice {mig_uuid}")

    def mig_share(self, mig_uuid: str) -> float:
        if mig_uuid not in self.shares:
            raise DeviceError(f"nothing is known of the slice {mig_uuid}")
        return self.shares[mig_uuid]


def order_of(*minors: int, shares: bool = False, problem: str = "") -> GpuOrder:
    """Slurm's order of GPUs by their minor numbers, as slurmd told it."""
    gpus = tuple(SlurmGpu(gpu_type=None, device_file=f"/dev/nvidia{minor}") for minor in minors)
    return GpuOrder(gpus=gpus, ways=("slurmd -G",), shares_gpus=shares, problem=problem)


class Bench:
    """A node with GPUs, a spool and a clock, and shortcuts to run its hooks."""

    def __init__(self, root: Path, gpus: int = 4, node: NodeConfig | None = None) -> None:
        self.clock = Clock()
        self.node = node or NodeConfig(spool_directory=str(root / "spool"), log_path="")
        self.gpus = [FakeGpu(clock=self.clock, index=index, minor=index) for index in range(gpus)]
        for gpu in self.gpus:
            gpu.time_scale = self.node.time_scale
        self.driver = FakeDriver(self.gpus)
        self.order = order_of(*range(gpus))
        self.spool = Spool(root / "spool")
        self.slurm_conf = root / "slurm.conf"
        self.samplers: list[int] = []
        self.flushes = 0
        self.pauses: list[float] = []
        self.lines: list[str] = []
        self.live: frozenset[JobId | Sluid] = frozenset()
        self.slurm_states: dict[int, str | None] = {}
        """What Slurm answers; None, the default: nothing."""
        self.lock_records = LockRecords(root / "run" / "n1")
        self.boot_id = "boot-1"
        self.root = root

    def moment(self, seconds_ago: float = 0.0) -> BootMoment:
        return BootMoment(boot_id=self.boot_id, monotonic_seconds=self.clock.monotonic - seconds_ago)

    def context(self) -> HookContext:
        settings = HookSettings(
            node=self.node,
            cluster=ClusterName("test"),
            node_name=NodeName("n1"),
            spool_directory=self.spool.root,
            log_path="",
        )
        return HookContext(
            settings=settings,
            spool=self.spool,
            driver=lambda: self.driver,
            log=HookLog("", "test", self.lines.append),
            boot_id=self.boot_id,
            now=self.clock.read_now,
            monotonic=self.clock.read_monotonic,
            pause=self.pauses.append,
            stage=lambda text: None,
            start_sampler=self.samplers.append,
            live_jobs=lambda: self.live,
            gpu_order=lambda slurm_conf: self.order,
            device_minor=lambda path: int(path.removeprefix("/dev/nvidia")),
            job_state=lambda job_id, node: self.slurm_states.get(job_id) if node == "n1" else "",
            lock_records=self.lock_records,
            start_flush=self._count_flush,
            devices_root=self.root / "devices",
            rapl_root=self.root / "powercap",
        )

    def _count_flush(self) -> None:
        self.flushes += 1

    def hook(self, job_id: int, gpus: str = "0", entry: str | None = None, **more: str) -> HookEnvironment:
        environment = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_GPUS": gpus,
            "SLURM_JOB_UID": "1000",
            "SLURM_JOB_PARTITION": "a100",
            "SLURM_JOB_RESTART_COUNT": "0",
            "SLURM_CLUSTER_NAME": "test",
            "SLURMD_NODENAME": "n1",
            "SLURM_CONF": str(self.slurm_conf),
            **more,
        }
        if entry is not None:
            environment["SPANK_ENERGY_DECISION"] = entry
        return parse_hook_environment({key: value for key, value in environment.items() if value != ""})

    def reports(self) -> list[Any]:
        return [decode_report(json.loads(path.read_bytes())) for path in self.spool.waiting_reports()]

    def recorded(self) -> dict[str, int | None]:
        """The second record of locked clocks: each GPU's job."""
        return {record.uuid: record.job_id for record in self.lock_records.read(self.boot_id, [])}

    def locks(self) -> list[tuple[int, int] | None]:
        return [gpu.lock for gpu in self.gpus]


def entry(
    clocks: Mapping[str, int] | None = None,
    mode: EnergyMode = EnergyMode.BALANCED,
    time_limit_minutes: int | None = None,
    watts: Mapping[str, int] | None = None,
    trials: Mapping[str, float] | None = None,
) -> str:
    """A decision as it travels; by default 1275 MHz for the A100."""
    chosen = {"a100-sxm4-80gb": 1275} if clocks is None else clocks
    return DecisionEntry(
        decision_id=DECISION,
        mode=mode,
        clocks_mhz={GpuTypeName(name): mhz for name, mhz in chosen.items()},
        assumed_watts={GpuTypeName(name): limit for name, limit in (watts or {}).items()},
        time_limit_minutes=time_limit_minutes,
        trial_bounds={GpuTypeName(name): bound for name, bound in (trials or {}).items()},
    ).encode()
