"""A stand-in for `dataclasses`, whose methods are closures.

What the package uses of it behaves the same (tests compare the two); what it does not use raises TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Missing:
    """No default."""


MISSING = _Missing()
_FIELDS = "__dataclass_fields__"
_KNOWN_OPTIONS = frozenset({"frozen", "slots", "kw_only"})


class FrozenInstanceError(AttributeError):
    """A field of a frozen object was to be set."""


class Field:
    """One field: its name, type, default and metadata."""

    __slots__ = ("compare", "default", "default_factory", "kw_only", "metadata", "name", "repr", "type")

    def __init__(
        self, default: Any, default_factory: Any, metadata: Any, *, repr_: bool = True, compare: bool = True
    ) -> None:
        self.name = ""
        self.type: Any = None
        self.default = default
        self.default_factory = default_factory
        self.metadata = metadata or {}
        self.repr = repr_
        self.compare = compare
        self.kw_only = False


def field(
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    metadata: Any = None,
    repr: bool = True,  # noqa: A002  # the library's own name
    compare: bool = True,
) -> Any:
    """Return a field with more than a plain default."""
    return Field(default, default_factory, metadata, repr_=repr, compare=compare)


def dataclass(cls: Any = None, /, **options: bool) -> Any:
    """Return the class with the methods of a data class."""
    if unknown := options.keys() - _KNOWN_OPTIONS:
        raise TypeError(f"dataclass option {sorted(unknown)} is not one of {sorted(_KNOWN_OPTIONS)}")
    frozen, kw_only = options.get("frozen", False), options.get("kw_only", False)

    def wrap(cls: Any) -> Any:
        return _make(cls, frozen=frozen, kw_only=kw_only)

    return wrap if cls is None else wrap(cls)


def fields(thing: Any) -> tuple[Field, ...]:
    """Return the fields of a data class or of an object of one."""
    return tuple(getattr(thing, _FIELDS).values())


def is_dataclass(thing: Any) -> bool:
    """Return whether it is a data class or an object of one."""
    return hasattr(thing if isinstance(thing, type) else type(thing), _FIELDS)


def replace(thing: Any, /, **changes: Any) -> Any:
    """Return a copy with other values for some fields."""
    return type(thing)(**{**{name: getattr(thing, name) for name in getattr(thing, _FIELDS)}, **changes})


def asdict(thing: Any) -> dict[str, Any]:
    """Return the fields as a dictionary, objects of data classes inside too."""
    return {name: _plain(getattr(thing, name)) for name in getattr(thing, _FIELDS)}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _make(cls: Any, *, frozen: bool, kw_only: bool) -> Any:
    found: dict[str, Field] = {}
    for base in cls.__mro__[-1:0:-1]:
        found.update(getattr(base, _FIELDS, {}))
    for name, kind in cls.__annotations__.items():
        if getattr(kind, "__name__", None) == "ClassVar" or getattr(kind, "_name", None) == "ClassVar":
            continue
        default = cls.__dict__.get(name, MISSING)
        item = default if isinstance(default, Field) else Field(default, MISSING, None)
        item.name, item.type, item.kw_only = name, kind, kw_only
        found[name] = item
        if item.default is not MISSING:
            setattr(cls, name, item.default)
        elif name in cls.__dict__:
            delattr(cls, name)
    setattr(cls, _FIELDS, found)
    own = cls.__dict__
    if "__init__" not in own:
        cls.__init__ = _initialiser(cls, found)
    compared = tuple(item.name for item in found.values() if item.compare)
    if "__eq__" not in own:
        cls.__eq__ = _equality(compared)
        if not frozen:
            cls.__hash__ = None
        elif "__hash__" not in own or own["__hash__"] is None:
            cls.__hash__ = _hash(compared)
    if "__repr__" not in own:
        cls.__repr__ = _representation([item.name for item in found.values() if item.repr])
    if frozen:
        cls.__setattr__, cls.__delattr__ = _refuse_to_set, _refuse_to_set
    return cls


def _initialiser(cls: Any, found: dict[str, Field]) -> Callable[..., None]:
    positional = [item.name for item in found.values() if not item.kw_only]
    defaults = {item.name: item.default for item in found.values() if item.default is not MISSING}
    factories = {item.name: item.default_factory for item in found.values() if item.default_factory is not MISSING}
    names = frozenset(found)
    after = getattr(cls, "__post_init__", None)

    def initialise(self: Any, /, *given: Any, **named: Any) -> None:
        if given:
            if len(given) > len(positional):
                raise TypeError(f"{cls.__name__} takes {len(positional)} positional arguments, {len(given)} were given")
            for name, value in zip(positional, given, strict=False):
                if name in named:
                    raise TypeError(f"{cls.__name__} got two values for {name!r}")
                named[name] = value
        values = defaults | named
        for name, make in factories.items():
            if name not in named:
                values[name] = make()
        if values.keys() != names:
            wrong = sorted(values.keys() - names) or sorted(names - values.keys())
            raise TypeError(f"{cls.__name__} has unknown or missing arguments: {', '.join(wrong)}")
        self.__dict__.update((name, values[name]) for name in found)
        if after is not None:
            after(self)

    return initialise


def _equality(names: Iterable[str]) -> Callable[[Any, Any], Any]:
    def equal(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names)

    return equal


def _hash(names: Iterable[str]) -> Callable[[Any], int]:
    return lambda self: hash(tuple(getattr(self, name) for name in names))


def _representation(names: Iterable[str]) -> Callable[[Any], str]:
    def represent(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return represent


def _refuse_to_set(_self: Any, name: str, *_value: Any) -> None:
    raise FrozenInstanceError(f"cannot set field {name!r}")
