"""Strict reading of JSON objects that others wrote: each value has a type and a bound, nothing is guessed."""

import json
import math
from collections.abc import Mapping

from slurm_energy.errors import WireError

MAX_TEXT = 4096


class Fields:
    """The members of one JSON object; `thing` names it in messages."""

    def __init__(self, value: object, thing: str) -> None:
        if not isinstance(value, dict):
            raise WireError(f"{thing} is {type(value).__name__}, an object is needed")
        self._members: Mapping[str, object] = value
        self.thing = thing

    def get(self, key: str) -> object:
        """Return the raw member, None when it is absent."""
        return self._members.get(key)

    def refuse_others(self, known: frozenset[str]) -> None:
        """Raise WireError when the object has a member that is not known."""
        for key in self._members:
            if key not in known:
                raise WireError(f"{self.thing} has an unknown member {key[:64]!r}")

    def optional_text(self, key: str, longest: int = MAX_TEXT) -> str | None:
        """Return a text or None."""
        value = self._members.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > longest or "\x00" in value:
            raise WireError(f"{self.thing}.{key} is not a text of at most {longest} characters without NUL")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise WireError(f"{self.thing}.{key} is not valid Unicode") from None
        return value

    def text(self, key: str, longest: int = MAX_TEXT) -> str:
        """Return a text that must be there and not be empty."""
        value = self.optional_text(key, longest)
        if not value:
            raise WireError(f"{self.thing}.{key} is missing")
        return value

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """Return a finite number between the bounds, or None."""
        value = self._members.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WireError(f"{self.thing}.{key} is {type(value).__name__}, a number is needed")
        if not (low <= value <= high) or not math.isfinite(value):
            raise WireError(f"{self.thing}.{key} is {value!r:.40}, it must be between {low:g} and {high:g}")
        return float(value)

    def number(self, key: str, low: float, high: float) -> float:
        """Return a finite number that must be there."""
        value = self.optional_number(key, low, high)
        if value is None:
            raise WireError(f"{self.thing}.{key} is missing")
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        """Return a whole number between the bounds, or None."""
        value = self._members.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise WireError(f"{self.thing}.{key} is {type(value).__name__}, a whole number is needed")
        if not low <= value <= high:
            raise WireError(f"{self.thing}.{key} is {str(value)[:40]}, it must be between {low} and {high}")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        """Return a whole number that must be there."""
        value = self.optional_integer(key, low, high)
        if value is None:
            raise WireError(f"{self.thing}.{key} is missing")
        return value

    def flag(self, key: str) -> bool:
        """Return a truth value; absent is False."""
        value = self._members.get(key, False)
        if not isinstance(value, bool):
            raise WireError(f"{self.thing}.{key} is {type(value).__name__}, true or false is needed")
        return value

    def sequence(self, key: str, longest: int) -> list[object]:
        """Return a list of at most `longest` members; absent is empty."""
        value = self._members.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > longest:
            raise WireError(f"{self.thing}.{key} is not a list of at most {longest} members")
        return value

    def texts(self, key: str, longest: int) -> tuple[str, ...]:
        """Return a list of texts."""
        values = self.sequence(key, longest)
        if not all(isinstance(value, str) and len(value) <= MAX_TEXT and "\x00" not in value for value in values):
            raise WireError(f"{self.thing}.{key} is not a list of texts of at most {MAX_TEXT} characters")
        return tuple(str(value).encode("utf-8", "replace").decode() for value in values)


def loads(text: str | bytes, thing: str, limit_bytes: int) -> object:
    """Return the value of a JSON text.

    Raises:
        WireError: too long, not JSON, NaN or Infinity in it, nested too deep.
    """
    if len(text) > limit_bytes:
        raise WireError(f"{thing} of {len(text)} bytes is over {limit_bytes}")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{thing} is not JSON: {str(error)[:200]}") from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number that JSON has")
