"""Workloads by the name of their generator; files are read by `load_workload`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_energy.errors import ConfigError
from slurm_energy.forms import did_you_mean
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.engine.simulation import seldom_collected
from slurm_energy.twin.workloads.arrivals import (
    DailySettings,
    InferenceSettings,
    MixedSettings,
    PoissonSettings,
    daily_workload,
    inference_workload,
    mixed_workload,
    poisson_workload,
)
from slurm_energy.twin.workloads.compat import SharedStreamSource
from slurm_energy.twin.workloads.deadlines import DeadlineSettings, deadlines_workload
from slurm_energy.twin.workloads.formats import load_workload
from slurm_energy.twin.workloads.generating import Setting, filled_settings, setting_names
from slurm_energy.twin.workloads.matrix import GraphsSettings, MatrixSettings, graphs_workload, matrix_workload

__all__ = ["create_workload", "load_workload", "shared_stream_source", "workload_names", "workload_settings"]


@dataclass(frozen=True, slots=True)
class _Generator:
    settings_class: type[Any]
    make: Callable[[Any, int], Workload]
    """From settings and seed."""


_GENERATORS: dict[str, _Generator] = {
    "poisson": _Generator(PoissonSettings, poisson_workload),
    "daily": _Generator(DailySettings, daily_workload),
    "deadlines": _Generator(DeadlineSettings, deadlines_workload),
    "mixed": _Generator(MixedSettings, mixed_workload),
    "inference": _Generator(InferenceSettings, inference_workload),
    "matrix": _Generator(MatrixSettings, matrix_workload),
    "graphs": _Generator(GraphsSettings, graphs_workload),
}


def workload_names() -> tuple[str, ...]:
    """Return the names of the generators."""
    return tuple(_GENERATORS)


def workload_settings(name: str) -> dict[str, Setting]:
    """Return a generator's settings with their defaults.

    Raises:
        ConfigError: there is no generator of that name.
    """
    return setting_names(_generator(name).settings_class)


def create_workload(name: str, settings: Mapping[str, Setting], seed: int) -> Workload:
    """Return a generated workload; the same name, settings and seed give the same jobs.

    Raises:
        ConfigError: the name or a setting is unknown, or a value cannot be used; the message names it and its bound.
    """
    generator = _generator(name)
    filled = filled_settings(generator.settings_class, settings, name)
    with seldom_collected():
        return generator.make(filled, seed)


def shared_stream_source(settings: Mapping[str, Setting], seed: int) -> SharedStreamSource:
    """Return the Poisson workload as one stream shared with the policy, for published figures.

    Raises:
        ConfigError: a setting is unknown, or a value cannot be used.
    """
    return SharedStreamSource(filled_settings(PoissonSettings, settings, "poisson"), seed)


def _generator(name: str) -> _Generator:
    if name not in _GENERATORS:
        raise ConfigError(f"there is no workload generator {name[:64]!r}; {did_you_mean(name, _GENERATORS)}")
    return _GENERATORS[name]
