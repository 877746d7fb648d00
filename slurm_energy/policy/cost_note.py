"""What options would cost as notes of a decision: written by a policy of prices, read again by whoever shows decisions.

A note has room for one option, so each has its own: `option cost {"partition":"a100","mhz":1275,"energy":…}`, in J.
"""

import json
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

OPTION_PREFIX = "option cost "
FACTORS_PREFIX = "price factors "
PARTS = ("energy", "time", "slowdown", "waking", "scarcity")
"""Of an option's cost, J each."""
_OPTION_KEYS = frozenset({"partition", "mhz", *PARTS})
_MOST_FACTORS = 12
_MOST_OPTIONS = 16
_MAX_NAME_LENGTH = 64


def option_note(partition: str, clock_mhz: int | None, parts: Mapping[str, float]) -> str:
    """Return the cost of an option as a note, the dearest parts in whole joules.

    Args:
        partition: Its name, printable.
        clock_mhz: The clock of the least cost; None where no clock is known, or several GPU types have their own.
        parts: J by part.
    """
    costs = {name: round(parts[name]) if parts[name] >= 100.0 else round(parts[name], 3) for name in PARTS}
    return OPTION_PREFIX + _compact({"partition": partition, "mhz": clock_mhz, **costs})


def factors_note(factors: Mapping[str, float]) -> str:
    """Return by what prices were multiplied as a note."""
    return FACTORS_PREFIX + _compact({name: round(factor, 4) for name, factor in factors.items()})


def is_cost_note(note: str) -> bool:
    """Return whether a note is one that can be read, and so for programs."""
    return costs_among((note,)) is not None


def costs_among(notes: Iterable[str]) -> dict[str, Any] | None:
    """Return factors and options among some notes, the cheapest option first; None when there are none.

    A note may have been cut or forged: one that cannot be read is left out.
    """
    factors: dict[str, Any] | None = None
    options: list[dict[str, Any]] = []
    for note in notes:
        if note.startswith(FACTORS_PREFIX):
            factors = factors or _factors(_table(note, FACTORS_PREFIX))
        elif note.startswith(OPTION_PREFIX) and len(options) < _MOST_OPTIONS:
            option = _option(_table(note, OPTION_PREFIX))
            options += [] if option is None else [option]
    return None if factors is None and not options else {"factors": factors, "options": options}


def _compact(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def _table(note: str, prefix: str) -> dict[str, Any]:
    try:
        found = json.loads(note.removeprefix(prefix))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _factors(found: dict[str, Any]) -> dict[str, Any] | None:
    good = 0 < len(found) <= _MOST_FACTORS and all(map(_is_cost, found.values()))
    return {name: float(factor) for name, factor in found.items()} if good else None


def _option(found: dict[str, Any]) -> dict[str, Any] | None:
    if found.keys() != _OPTION_KEYS or not all(_is_cost(found[name]) for name in PARTS):
        return None
    name, clock_mhz = found["partition"], found["mhz"]
    if not isinstance(name, str) or len(name) > _MAX_NAME_LENGTH:
        return None
    if clock_mhz is not None and not _is_cost(clock_mhz):
        return None
    return {**found, **{part: float(found[part]) for part in PARTS}}


def _is_cost(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0.0 <= value <= 1e300 and isfinite(value)
