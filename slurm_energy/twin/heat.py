"""First-order heat of a job's devices: when it reaches the limit, and which power keeps it there."""

from math import exp, inf, log

from slurm_energy.twin.device_model import Thermal


def steady_celsius(thermal: Thermal, ambient_celsius: float, watts: float) -> float:
    """Return the temperature that one device at constant power tends to: ambient + resistance x power."""
    return ambient_celsius + thermal.resistance_kelvin_per_watt * watts


def temperature_after(thermal: Thermal, start_celsius: float, steady: float, seconds: float) -> float:
    """Return the temperature after a time at constant power: exponential approach with the time constant."""
    return steady + (start_celsius - steady) * exp(-seconds / thermal.time_constant_seconds)


def seconds_to_limit(thermal: Thermal, start_celsius: float, steady: float) -> float:
    """Return when the limit is reached, 0 when it is already, infinite when it never is."""
    if steady <= thermal.limit_celsius:
        return inf
    if start_celsius >= thermal.limit_celsius:
        return 0.0
    return thermal.time_constant_seconds * log((steady - start_celsius) / (steady - thermal.limit_celsius))


def sustainable_watts(thermal: Thermal, ambient_celsius: float) -> float:
    """Return the power of one device at which the limit is just held; 0 when even the air is too hot."""
    return max(0.0, (thermal.limit_celsius - ambient_celsius) / thermal.resistance_kelvin_per_watt)
