"""Numbers as people read them, with unit and error."""

from datetime import datetime

from slurm_energy.domain.report import EnergySum
from slurm_energy.domain.units import JOULES_PER_KWH

UNKNOWN = "unknown"
_MASSES = ((1e6, "t"), (1e3, "kg"), (1.0, "g"))
_STEPS = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"))


def energy_text(joules: float | None, error_share: float | None = None) -> str:
    """Return `12.3 kJ ± 1 %`; `unknown` for None, never 0. An error that has no bound is left out."""
    if joules is None:
        return UNKNOWN
    # A value that rounds to 1000 of a unit is 1.00 of the next.
    scale, unit = next((step for step in _STEPS if abs(joules) >= step[0] * 0.9995), _STEPS[-1])
    text = f"{_three_digits(joules / scale)} {unit}"
    return text if error_share is None else f"{text} ± {error_text(error_share)}"


def kwh_text(joules: float) -> str:
    """Return `12.3 kWh`."""
    return f"{_three_digits(joules / JOULES_PER_KWH)} kWh"


def mass_text(grams: float) -> str:
    """Return `350 g`, `12.3 kg` or `4.56 t`."""
    scale, unit = next((step for step in _MASSES if abs(grams) >= step[0] * 0.9995), _MASSES[-1])
    return f"{_three_digits(grams / scale)} {unit}"


def error_text(share: float) -> str:
    """Return the error in per cent, rounded up so that it stays a bound."""
    percent = share * 100.0
    if percent < 0.1:
        return "0.1 %"
    if percent < 1.0:
        return f"{_rounded_up(percent, 10):.1f} %"
    return f"{_rounded_up(percent, 1):.0f} %"


def _rounded_up(value: float, steps_per_unit: int) -> float:
    scaled = value * steps_per_unit
    whole = int(scaled)
    return (whole if scaled - whole < 1e-9 else whole + 1) / steps_per_unit


def sum_text(energy: EnergySum) -> str:
    """Return a sum with its error, and how many of its readings are unknown."""
    if energy.readings == 0:
        return "no reading"
    text = energy_text(energy.joules, energy.error_share)
    if energy.unknown_readings and energy.joules is not None:
        text += f" + {energy.unknown_readings} of {energy.readings} unknown"
    return text


def error_note(energy: EnergySum) -> str:
    """Return what the error behind a sum covers, part by part, and what it does not."""
    timing, calibration = energy.timing_error_share, energy.calibration_error_share
    if timing is None or calibration is None:
        return ""
    return (
        f"± bounds the counters' timing ({error_text(timing)}; readings are independent: quadrature) and the boards' "
        f"power sensors ({error_text(calibration)}; common to boards of a type: added up, cancels between runs on one "
        "GPU). GPU energy is that of the whole board with its memory, without host, fans and network."
    )


def moment_text(seconds: float) -> str:
    """Return a time on this machine's clock with its offset from UTC: `2026-03-01 12:00:00+01:00`."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return UNKNOWN


def percent_text(share: float | None) -> str:
    """Return `87 %`; `-` for None."""
    return "-" if share is None else f"{share * 100.0:.0f} %"


def signed_percent_text(share: float | None) -> str:
    """Return `+5.0 %`; `-` for None."""
    return "-" if share is None else f"{share * 100.0:+.1f} %"


def duration_text(seconds: float | None) -> str:
    """Return `45 s`, `12:05` (minutes), `3:12:05` or `2-03:12:05`; `-` for None."""
    if seconds is None:
        return "-"
    if abs(seconds) < 60:
        return f"{seconds:.1f} s" if abs(seconds) < 9.95 else f"{seconds:.0f} s"
    sign, whole = ("-" if seconds < 0 else ""), round(abs(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{sign}{days}-{hours:02d}:{minutes:02d}:{left:02d}"
    return f"{sign}{hours}:{minutes:02d}:{left:02d}" if hours else f"{sign}{minutes}:{left:02d}"


def clock_text(mhz: float | None) -> str:
    """Return `1275 MHz`; `-` for None."""
    return "-" if mhz is None else f"{mhz:.0f} MHz"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95 or magnitude == 0.0:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 0.9995 else f"{value:.3g}"
