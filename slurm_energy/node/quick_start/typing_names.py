"""A stand-in for `typing`: names for annotations, which nothing looks at, and the choices of a setting.

Any other name comes from the real module, which is then imported after all.
"""

import sys
from types import ModuleType, UnionType

TYPE_CHECKING = False


class _Form:
    """A special form: subscripted, joined with others or called it stays a form."""

    def __getitem__(self, _: object) -> "_Form":
        return self

    def __or__(self, _: object) -> "_Form":
        return self

    def __ror__(self, _: object) -> "_Form":
        return self


class _Choices(_Form):
    """`Literal[...]` with its values."""

    def __init__(self, values: tuple[object, ...]) -> None:
        self.__origin__ = Literal
        self.__args__ = values


class _Literal(_Form):
    """`Literal`."""

    def __getitem__(self, values: object) -> _Choices:
        return _Choices(values if isinstance(values, tuple) else (values,))


class NewType(_Form):
    """A name for a type; called, it returns the value as it is."""

    def __init__(self, name: str, supertype: object) -> None:
        self.__name__ = name
        self.__supertype__ = supertype

    def __call__(self, value: object) -> object:
        """Return the value."""
        return value


class TypeVar(_Form):
    """A variable of generic functions."""

    def __init__(self, name: str, *_constraints: object, **_options: object) -> None:
        self.__name__ = name


class Protocol:
    """The base of protocols: a plain class."""


Any = _Form()
Final = _Form()
Literal = _Literal()
Union = _Form()


def get_origin(kind: object) -> object:
    """Return the generic type or form that was subscripted, None for any other type."""
    return UnionType if isinstance(kind, UnionType) else getattr(kind, "__origin__", None)


def get_args(kind: object) -> tuple[object, ...]:
    """Return what it was subscripted with."""
    args: tuple[object, ...] = getattr(kind, "__args__", ())
    return args


def __getattr__(name: str) -> object:
    """Return a name from the real module, which all later imports then have.

    Raises:
        AttributeError: that has none of this name.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_real_typing(), name)


def _real_typing() -> ModuleType:
    if sys.modules.get("typing") is sys.modules[__name__]:
        del sys.modules["typing"]
    import typing  # noqa: PLC0415  # only when more is asked for than is here

    return typing
