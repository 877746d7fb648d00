"""Conversion at the doors: inside there are W, J, MHz and s; outside mW, mJ, µJ, minutes and Slurm's marks."""

from typing import Final

from slurm_energy.errors import ValueRangeError

SLURM_NO_VAL: Final = 0xFFFFFFFE
SLURM_INFINITE: Final = 0xFFFFFFFF
SLURM_NO_VAL64: Final = 0xFFFFFFFFFFFFFFFE
SLURM_INFINITE64: Final = 0xFFFFFFFFFFFFFFFF
JOULES_PER_KWH: Final = 3.6e6
_NOT_NUMBERS: Final = frozenset({SLURM_NO_VAL, SLURM_INFINITE, SLURM_NO_VAL64, SLURM_INFINITE64, -1, -2})


def watts_from_milliwatts(milliwatts: int) -> float:
    """Return W from NVML's mW."""
    return milliwatts / 1000.0


def joules_from_millijoules(millijoules: int) -> float:
    """Return J from NVML's mJ."""
    return millijoules / 1000.0


def joules_from_microjoules(microjoules: int) -> float:
    """Return J from RAPL's µJ."""
    return microjoules / 1_000_000.0


def slurm_number(value: int | None) -> int | None:
    """Return None for Slurm's NO_VAL and INFINITE marks of 32 and 64 bits, and for -1 and -2; else the value."""
    return None if value is None or value in _NOT_NUMBERS else value


def slurm_joules(value: int | None) -> float | None:
    """Return joules from a Slurm energy figure; its marks of an unknown value are None, never joules."""
    number = slurm_number(value)
    return None if number is None or number < 0 else float(number)


def minutes_from_slurm_time(text: str) -> float | None:
    """Return minutes from Slurm's time text; None for UNLIMITED, INFINITE, Partition_Limit, NONE and 0.

    Accepts `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S` (sbatch(1), --time); 0 asks for no limit there.

    Raises:
        ValueRangeError: the text is none of these.
    """
    word = text.strip()
    if word.lower() in {"unlimited", "infinite", "partition_limit", "none", "n/a", "invalid", "not_set"}:
        return None
    try:
        days_text, separator, rest = word.partition("-")
        days = int(days_text) if separator else 0
        parts = [int(part) for part in (rest if separator else word).split(":")]
        if (
            not word.isascii()
            or days < 0
            or min(parts) < 0
            or len(parts) > 3
            or "+" in word
            or " " in word
            or "_" in word
        ):
            raise ValueError
    except ValueError:
        raise ValueRangeError(
            f"time {text[:64]!r} is not minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S or UNLIMITED"
        ) from None
    if separator:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, parts[0], parts[1] if len(parts) == 2 else 0
    total = days * 1440 + hours * 60 + minutes + seconds / 60
    return total or None
