"""How a job that ran somewhere becomes work: its run time is taken as that at the default clock of one device type."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from slurm_energy.errors import ConfigError
from slurm_energy.twin.world.device_model import DeviceModel, Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayKind:
    """A kind of work, and what one unit of it takes on the reference device at its default clock."""

    name: str = "replay"
    seconds_per_unit: float = 1.0
    """On one device."""
    scaling: Scaling = field(default_factory=Scaling)

    def __post_init__(self) -> None:
        if not self.name or not 0.0 < self.seconds_per_unit < inf:
            raise ConfigError(
                f"kind {self.name!r} with {self.seconds_per_unit} s per unit needs a name, and seconds above 0"
            )

    def units(self, run_seconds: float, gpus: int) -> float:
        """Return the work that takes so long on so many reference devices at their default clock."""
        return run_seconds / self.scaling.seconds(self.seconds_per_unit, gpus)


REPLAY = ReplayKind()
"""Units are seconds at the default clock of one reference device; speed grows with the number of devices."""


def kinds_of_device(device: DeviceModel, names: Sequence[str] = ()) -> tuple[ReplayKind, ...]:
    """Return a device's kinds, for a replay in a world that has them; with names, those.

    Raises:
        ConfigError: the device does not run a kind.
    """
    missing = [name for name in names if name not in device.loads]
    if missing:
        raise ConfigError(f"device {device.name} has no kind {missing[0]!r}; it has {', '.join(sorted(device.loads))}")
    return tuple(
        ReplayKind(name=name, seconds_per_unit=load.seconds_per_unit[-1], scaling=load.scaling)
        for name, load in ((name, device.loads[name]) for name in names or sorted(device.loads))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of a loader; a format uses what it needs."""

    skip_bad: bool = False
    """Count rows that cannot be used instead of refusing the file."""
    kinds: tuple[ReplayKind, ...] = (REPLAY,)
    """Where a trace does not say what a job computes: one for all, or drawn for each job; else looked up by name."""
    kind_by_label: Mapping[str, str] = field(default_factory=dict)
    """Kind by job name, partition, application or model of the trace; `kinds` has it."""
    seed: int = 0
    """Of what has to be drawn: kinds, time limits."""
    part: str = ""
    """Which of a file's traces; empty for all, or the first of those that exclude each other."""
    time_limits: bool = True
    """Whether limits are drawn for a trace that never has them."""
    processors_per_device: int = 0
    """Processors that count as one device, for jobs without GPUs. 0 leaves such jobs of an accounting aside; a standard
    workload file, which knows processors only, then counts each as one."""
    kinds_by_gpu_type: Mapping[str, tuple[ReplayKind, ...]] = field(default_factory=dict)
    """Kinds for jobs that held GPUs of one GRES type, where that is another device than the reference."""
    device_by_gpu_type: Mapping[str, str] = field(default_factory=dict)
    """Devices that stand for GRES types; jobs that keep their partitions ask for those, where there are any."""
    devices_by_partition: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Devices of the world's partitions."""
    keep_partitions: bool = False
    """Whether jobs ask for the partitions that they ran in; the world must have them."""

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ConfigError("a replay needs at least one kind of work")
        if self.processors_per_device < 0:
            raise ConfigError(f"processors per device {self.processors_per_device} is not 0 or more")
        if self.seed < 0:
            raise ConfigError(f"workload seed {self.seed} is not 0 or more")
        unknown = [name for name in self.kind_by_label.values() if name not in {kind.name for kind in self.kinds}]
        if unknown:
            raise ConfigError(f"a label is mapped to kind {unknown[0]!r}, which is not among the kinds of the replay")

    def kind_of(self, *labels: str, gpu_type: str = "") -> ReplayKind:
        """Return the kind of the first label that is mapped, or that is a kind's name; else the first kind."""
        kinds = self.kinds_by_gpu_type.get(gpu_type, self.kinds)
        by_name = {kind.name: kind for kind in kinds}
        for label in labels:
            name = self.kind_by_label.get(label, label)
            if name in by_name:
                return by_name[name]
        return by_name.get(self.kinds[0].name, kinds[0])

    def devices_of(self, gpu_types: Sequence[str], partitions: Sequence[str]) -> tuple[str, ...]:
        """Return the devices that a job asks for which held GPUs of some types; none where it may not have them."""
        found = dict.fromkeys(self.device_by_gpu_type[name] for name in gpu_types if name in self.device_by_gpu_type)
        there = {device for name in partitions for device in self.devices_by_partition.get(name, ())}
        return tuple(found) if self.keep_partitions and there.issuperset(found) else ()

    def kind_named(self, name: str) -> ReplayKind:
        """Return the kind for a trace's own name of its work: one of `kinds`, else a new one of 1 s per unit."""
        found = self.kind_by_label.get(name, name)
        return next((kind for kind in self.kinds if kind.name == found), ReplayKind(name=found))
