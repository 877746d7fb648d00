"""Readings of one GPU at the start and the end of a job."""

from dataclasses import dataclass

from slurm_energy.device.base import Gpu
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.energy_model.catalog import gpu_type
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied
from slurm_energy.node.state import SavedGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterReading:
    """The energy counter, or why there is none."""

    joules: float | None
    problem: str | None = None
    flags: tuple[QualityFlag, ...] = ()


def read_counter(device: Gpu | None, absence: str | None) -> CounterReading:
    """Return the counter; `absence` says why there is no device."""
    if device is None:
        return CounterReading(joules=None, problem=absence or "the GPU is gone")
    try:
        return CounterReading(joules=device.energy_joules())
    except DeviceNotSupported as error:
        return CounterReading(joules=None, problem=str(error), flags=(QualityFlag.COUNTER_UNSUPPORTED,))
    except DevicePermissionDenied as error:
        return CounterReading(joules=None, problem=str(error), flags=(QualityFlag.NO_PERMISSION,))
    except DeviceError as error:
        return CounterReading(joules=None, problem=str(error))


def board_watts(gpu: SavedGpu) -> float | None:
    """Return the most that the board can draw, by the catalogue or its own limit; None when neither tells."""
    known = None if gpu.gpu_type is None else gpu_type(gpu.gpu_type)
    figures = (gpu.saved.power_limit_watts, None if known is None else known.power_limit_watts)
    return max((watts for watts in figures if watts), default=None)
