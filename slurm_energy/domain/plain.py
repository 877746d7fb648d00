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
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueRangeError(f"{value} is not a finite number")
        return value
    if isinstance(value, tuple | list | frozenset | set):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in fields(value)}
    raise ValueRangeError(f"{type(value).__name__} has no plain form")


def from_plain(kind: type[Value], value: object, thing: str = "") -> Value:
    """Return an instance of `kind`; unknown keys are left out, so that a newer writer can add some.

    Raises:
        ValueRangeError: a field is missing, of another type or outside its bound; the message names it.
    """
    result: Value = _read(kind, value, thing or kind.__name__)
    return result


def _read(kind: Any, value: object, thing: str) -> Any:
    if isinstance(kind, NewType):
        return _read(kind.__supertype__, value, thing)
    origin = get_origin(kind)
    reader = _READERS.get(origin)
    if reader is not None:
        return reader(kind, value, thing)
    if is_dataclass(kind):
        return _read_dataclass(kind, value, thing)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise ValueRangeError(f"{thing} is {_short(value)}, which is no {kind.__name__}") from None
    return _read_scalar(kind, value, thing)


def _read_scalar(kind: Any, value: object, thing: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**63 else math.inf
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueRangeError(f"{thing} is {_short(value)}, {getattr(kind, '__name__', kind)} is needed")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueRangeError(f"{thing} is {value}, a finite number is needed")
    return value


def _read_dataclass(kind: Any, value: object, thing: str) -> Any:
    if not isinstance(value, dict):
        raise ValueRangeError(f"{thing} is {_short(value)}, an object is needed")
    hints = _hints(kind)
    given: dict[str, Any] = {}
    for item in fields(kind):
        if item.name in value:
            given[item.name] = _read(hints[item.name], value[item.name], f"{thing}.{item.name}")
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ValueRangeError(f"{thing} lacks {item.name}")
    return kind(**given)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _read_union(kind: Any, value: object, thing: str) -> Any:
    members = [member for member in get_args(kind) if member is not NoneType]
    if value is None and len(members) < len(get_args(kind)):
        return None
    return _read(members[0], value, thing)


def _read_sequence(kind: Any, value: object, thing: str) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueRangeError(f"{thing} is {_short(value)}, a list is needed")
    kinds = get_args(kind)
    if get_origin(kind) is tuple and kinds[-1] is not Ellipsis:
        if len(value) != len(kinds):
            raise ValueRangeError(f"{thing} has {len(value)} items, {len(kinds)} are needed")
        return tuple(
            _read(item_kind, item, f"{thing}[{index}]")
            for index, (item_kind, item) in enumerate(zip(kinds, value, strict=True))
        )
    item_kind = kinds[0]
    return get_origin(kind)(_read(item_kind, item, f"{thing}[{index}]") for index, item in enumerate(value))


def _read_mapping(kind: Any, value: object, thing: str) -> Any:
    if not isinstance(value, dict):
        raise ValueRangeError(f"{thing} is {_short(value)}, an object is needed")
    key_kind, item_kind = get_args(kind)
    return {
        _read(key_kind, key, f"{thing} key"): _read(item_kind, item, f"{thing}.{key}") for key, item in value.items()
    }


def _read_literal(kind: Any, value: object, thing: str) -> Any:
    if value not in get_args(kind):
        raise ValueRangeError(f"{thing} is {_short(value)}, allowed: {', '.join(map(str, get_args(kind)))}")
    return value


_READERS: dict[Any, Callable[[Any, object, str], Any]] = {
    Union: _read_union,
    UnionType: _read_union,
    tuple: _read_sequence,
    frozenset: _read_sequence,
    dict: _read_mapping,
    Mapping: _read_mapping,
    Literal: _read_literal,
}


def _short(value: object) -> str:
    return repr(value)[:64]
