"""Slices of a GPU (MIG) as devices of a world: jobs on neighbouring slices do not slow each other down."""

from dataclasses import replace
from math import inf
from statistics import geometric_mean

from slurm_energy.energy_model.mig import WHOLE_SLICES, slice_curves, slice_watts
from slurm_energy.errors import ValueRangeError
from slurm_energy.twin.device_model import DeviceModel, Load

MEMORY_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Memory of a slice by its compute slices, in eighths of the GPU's (NVIDIA's profiles of A100 and H100)."""


def slice_speed(compute_slices: int) -> float:
    """Return the speed on a slice relative to the whole GPU: the geometric mean over the measured models and batches.

    Source: MISO (SoCC 2022), A100-40GB; the spread over models is in the coefficients' fit errors.
    """
    return geometric_mean(curve.speed(compute_slices) for curve in slice_curves())


def mig_slice(device: DeviceModel, compute_slices: int) -> DeviceModel:
    """Return the device that one slice of a GPU is.

    Idle power is shared by compute slices, so that seven of them draw what the GPU draws; busy power is the share that
    `energy_model.mig.slice_watts` gives. All slices of a GPU really have one clock and one temperature: here each keeps
    the clock of its own job, and heat is left out.

    Args:
        device: The whole GPU.
        compute_slices: 1, 2, 3, 4 or 7 of 7.

    Raises:
        ValueRangeError: there is no such slice.
    """
    if compute_slices not in MEMORY_EIGHTHS:
        raise ValueRangeError(
            f"device {device.name}: {compute_slices} MIG compute slices are not one of "
            f"{', '.join(map(str, MEMORY_EIGHTHS))}"
        )
    speed = slice_speed(compute_slices)
    share = compute_slices / WHOLE_SLICES
    return replace(
        device,
        loads={kind: _sliced(load, compute_slices, speed, device.free_watts) for kind, load in device.loads.items()},
        free_watts=device.free_watts * share,
        context_watts=device.context_watts * share,
        power_limit_watts=inf,
        memory_gib=device.memory_gib * MEMORY_EIGHTHS[compute_slices] / 8,
        thermal=None,
        pairs={},
    )


def _sliced(load: Load, compute_slices: int, speed: float, idle_watts: float) -> Load:
    return replace(
        load,
        watts=tuple(slice_watts(compute_slices, speed, watts, min(idle_watts, watts)) for watts in load.watts),
        seconds_per_unit=tuple(seconds / speed for seconds in load.seconds_per_unit),
    )
