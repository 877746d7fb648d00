"""Where an environment's jobs come from: a fresh workload from every seed, or the same one each time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slurm_energy.errors import ConfigError
from slurm_energy.twin.job import Workload
from slurm_energy.twin.workloads.registry import create_workload, workload_settings
from slurm_energy.twin.world import World

WorkloadFactory = Callable[[int], Workload]
"""Makes a workload from a seed; must be picklable for environments in processes of their own."""
WorkloadSource = Workload | WorkloadFactory | str | None
"""A workload, a factory, a generator's name, or None for the world's own generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """A source together with what it needs."""

    world: World
    workload: WorkloadSource = None
    settings: Mapping[str, float | int | str] = field(default_factory=dict)
    """Of the generator, over those of the world."""
    horizon_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.workload is None and not self.world.workload:
            raise ConfigError(
                f"world {self.world.name} has no workload of its own: name a generator, or give a workload"
            )
        if self.settings and not self.is_generated:
            raise ConfigError("workload settings belong to a generator, and the workload here is not made by one")

    @property
    def is_generated(self) -> bool:
        """Whether a generator by name makes the jobs."""
        return self.workload is None or isinstance(self.workload, str)

    @property
    def run_seconds(self) -> float | None:
        """When runs end: the horizon, else that of the world for generated jobs; None runs until no job is left."""
        if self.horizon_seconds is not None:
            return self.horizon_seconds
        return self.world.horizon_seconds if self.is_generated else None

    def make(self, seed: int) -> Workload:
        """Return the workload of a seed.

        Raises:
            ConfigError: the generator or one of its settings is unknown or out of its bound.
        """
        if isinstance(self.workload, Workload):
            return self.workload
        if callable(self.workload):
            return self.workload(seed)
        name = self.workload or self.world.workload
        settings = dict(self.world.workload_settings) if name == self.world.workload else {}
        if self.run_seconds is not None and "hours" in workload_settings(name):
            settings["hours"] = self.run_seconds / 3600.0
        return create_workload(name, {**settings, **self.settings}, seed)
