"""What every file of fitted coefficients has in common: rounding, errors, text, and comparison of two of them."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_energy.energy_model.coefficients import FORMAT, FitError

Document = dict[str, Any]
Vector = npt.NDArray[np.float64]
Tell = Callable[[str, int, int], None]
"""Called with what is being fitted, how many fits are done, and of how many."""

_SHORT_LIST = re.compile(r"\[\s+([^\[\]{}]+?)\s+\]")
_LINE_BREAK = re.compile(r"\s*\n\s*")


def silent(what: str, done: int, of: int) -> None:
    """Show no progress."""


def document(source: str, errors: Sequence[FitError], parts: Mapping[str, Any]) -> Document:
    """Return the document of one file of coefficients, numbers rounded to six digits."""
    stated = [{key: value for key, value in asdict(error).items() if value is not None} for error in errors]
    rounded: Document = six_digits({"source": source, "fit_errors": stated, **parts})
    return {"format": FORMAT, **rounded}


def six_digits(value: Any) -> Any:
    """Return a value of a document with every float in it rounded to six significant digits."""
    if isinstance(value, Mapping):
        return {str(key): six_digits(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [six_digits(item) for item in value]
    if isinstance(value, float):
        return float(f"{float(value):.6g}")
    return value


def text_of(content: Mapping[str, Any]) -> str:
    """Return a document as JSON; a list of plain values stands on one line."""
    text = json.dumps(content, indent=1, sort_keys=True)
    return _SHORT_LIST.sub(lambda found: f"[{_LINE_BREAK.sub(' ', found[1])}]", text) + "\n"


def mean_relative_error(fitted: Vector, measured: Vector) -> float:
    """Return the mean of |fitted / measured - 1|; nothing measured may be 0."""
    return float(np.mean(np.abs(fitted / measured - 1.0)))


def differences(packaged: Any, fresh: Any, tolerance: float, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield place, packaged and fresh value of every difference; numbers may differ by the relative tolerance."""
    if isinstance(packaged, Mapping) and isinstance(fresh, Mapping):
        for key in sorted({*packaged, *fresh}):
            yield from differences(packaged.get(key), fresh.get(key), tolerance, f"{where}/{key}")
    elif isinstance(packaged, list) and isinstance(fresh, list) and len(packaged) == len(fresh):
        for index, (old, new) in enumerate(zip(packaged, fresh, strict=True)):
            yield from differences(old, new, tolerance, f"{where}/{index}")
    elif _is_number(packaged) and _is_number(fresh):
        if abs(packaged - fresh) > tolerance * max(abs(packaged), abs(fresh)):
            yield where, packaged, fresh
    elif packaged != fresh:
        yield where, packaged, fresh


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
