"""Frozen dataclasses to plain JSON values and back, checked field by field."""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from slurm_energy.errors import ValueRangeError

Value = TypeVar("Value")


def to_plain(value: object) -> Any:
    """Return numbers, texts, lists and dicts that `from_plain` turns back into an equal value.

    Raises:
        ValueRangeError: a number is not finite (JSON has none) or a type is not plain.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return _finite(value)  # type: ignore[arg-type]  # its type was just looked at
    names = _FIELD_NAMES.get(kind)
    if names is not None:
        return {name: to_plain(getattr(value, name)) for name in names}
    return _other_to_plain(value)


_PLAIN = frozenset({NoneType, bool, int, str})
_FIELD_NAMES: dict[type, tuple[str, ...]] = {}
"""Of each dataclass that was written once: a burst of decisions is written field by field."""


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueRangeError(f"{value} is not a finite number")
    return value


def _other_to_plain(value: object) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, tuple | list | frozenset | set):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        names = _FIELD_NAMES[type(value)] = tuple(item.name for item in fields(value))
        return {name: to_plain(getattr(value, name)) for name in names}
    raise ValueRangeError(f"{type(value).__name__} has no plain form")


def from_plain(kind: type[Value], value: object, thing: str = "") -> Value:
    """Return an instance of `kind`; unknown keys are left out, so that a newer writer can add some.

    Raises:
        ValueRangeError: a field is missing, of another type or outside its bound; the message names it.
    """
    try:
        read: _Reader = _reader(kind)  # type: ignore[arg-type]  # types are hashable
        result: Value = read(value)
    except _Misfit as misfit:
        raise ValueRangeError(f"{thing or kind.__name__}{misfit.place} {misfit.fault}") from None
    return result


class _Misfit(Exception):
    """A value that does not fit its kind; its place is completed on the way out, and costs nothing otherwise."""

    def __init__(self, fault: str, place: str = "") -> None:
        super().__init__(fault)
        self.fault = fault
        self.place = place

    def within(self, place: str) -> "_Misfit":
        """Return the same fault, seen from the value around it."""
        return _Misfit(self.fault, f"{place}{self.place}")


_Reader = Callable[[object], Any]


@cache
def _reader(kind: Any) -> _Reader:
    """Return the function that reads values of a kind."""
    if isinstance(kind, NewType):
        return _reader(kind.__supertype__)
    maker = _MAKERS.get(get_origin(kind))
    if maker is not None:
        return maker(kind)
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_reader(kind)
    return _float_reader if kind is float else _scalar_reader(kind)


def _enum_reader(kind: type[Enum]) -> _Reader:
    def read(value: object) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _Misfit(f"is {_short(value)}, which is no {kind.__name__}") from None

    return read


def _float_reader(value: object) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**63 else math.inf
    if not isinstance(value, float):
        raise _Misfit(f"is {_short(value)}, float is needed")
    if not math.isfinite(value):
        raise _Misfit(f"is {value}, a finite number is needed")
    return value


def _scalar_reader(kind: Any) -> _Reader:
    def read(value: object) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _Misfit(f"is {_short(value)}, {getattr(kind, '__name__', kind)} is needed")
        if isinstance(value, float):
            return _float_reader(value)
        return value

    return read


def _dataclass_reader(kind: Any) -> _Reader:
    hints = get_type_hints(kind)
    known = [
        (item.name, _Later(hints[item.name]), item.default is MISSING and item.default_factory is MISSING)
        for item in fields(kind)
    ]

    def read(value: object) -> Any:
        if not isinstance(value, dict):
            raise _Misfit(f"is {_short(value)}, an object is needed")
        given: dict[str, Any] = {}
        for name, later, needed in known:
            if name in value:
                try:
                    given[name] = later.read(value[name])
                except _Misfit as misfit:
                    raise misfit.within(f".{name}") from None
            elif needed:
                raise _Misfit(f"lacks {name}")
        return kind(**given)

    return read


class _Later:
    """A reader that is made at its first use: kinds may hold themselves."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.read: _Reader = self._first

    def _first(self, value: object) -> Any:
        self.read = _reader(self._kind)
        return self.read(value)


def _union_reader(kind: Any) -> _Reader:
    members = [member for member in get_args(kind) if member is not NoneType]
    optional = len(members) < len(get_args(kind))
    read_member = _Later(members[0])

    def read(value: object) -> Any:
        return None if value is None and optional else read_member.read(value)

    return read


def _sequence_reader(kind: Any) -> _Reader:
    made = get_origin(kind)
    kinds = get_args(kind)
    readers = [_Later(item) for item in kinds if item is not Ellipsis]
    is_fixed = made is tuple and kinds[-1] is not Ellipsis

    def read(value: object) -> Any:
        if not isinstance(value, list | tuple):
            raise _Misfit(f"is {_short(value)}, a list is needed")
        if is_fixed and len(value) != len(kinds):
            raise _Misfit(f"has {len(value)} items, {len(kinds)} are needed")
        items: list[Any] = []
        try:
            for at, item in enumerate(value):
                items.append((readers[at] if is_fixed else readers[0]).read(item))
        except _Misfit as misfit:
            raise misfit.within(f"[{len(items)}]") from None
        return made(items)

    return read


def _mapping_reader(kind: Any) -> _Reader:
    key_kind, item_kind = get_args(kind)
    read_key, read_item = _Later(key_kind), _Later(item_kind)

    def read(value: object) -> Any:
        if not isinstance(value, dict):
            raise _Misfit(f"is {_short(value)}, an object is needed")
        found: dict[Any, Any] = {}
        for key, item in value.items():
            place = " key"
            try:
                known_key = read_key.read(key)
                place = f".{key}"
                found[known_key] = read_item.read(item)
            except _Misfit as misfit:
                raise misfit.within(place) from None
        return found

    return read


def _literal_reader(kind: Any) -> _Reader:
    allowed = get_args(kind)

    def read(value: object) -> Any:
        if value not in allowed:
            raise _Misfit(f"is {_short(value)}, allowed: {', '.join(map(str, allowed))}")
        return value

    return read


_MAKERS: dict[Any, Callable[[Any], _Reader]] = {
    Union: _union_reader,
    UnionType: _union_reader,
    tuple: _sequence_reader,
    frozenset: _sequence_reader,
    dict: _mapping_reader,
    Mapping: _mapping_reader,
    Literal: _literal_reader,
}


def _short(value: object) -> str:
    return repr(value)[:64]
