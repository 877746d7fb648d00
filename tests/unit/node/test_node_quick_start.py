"""The stand-in for `dataclasses` does what the library does, for every class that the hooks use."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from slurm_energy.node.quick_start import data_classes

MAKERS = [dataclasses, data_classes]


def make(library: Any) -> tuple[Any, Any, Any]:
    """Return the same three classes made by one of the two."""

    @library.dataclass(frozen=True, slots=True, kw_only=True)
    class Base:
        first: int
        second: str = "two"
        third: dict[str, int] = library.field(default_factory=dict)
        hidden: int = library.field(default=4, repr=False, compare=False)
        common: ClassVar[int] = 9

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError("first is negative")

    @library.dataclass(frozen=True, kw_only=True)
    class Child(Base):
        fourth: float = 0.5

    @library.dataclass(slots=True)
    class Open:
        name: str
        items: list[int] = library.field(default_factory=list)

    return Base, Child, Open


def outcome(act: Callable[[], object]) -> object:
    """Return what came of it: a value, or the kind of error."""
    try:
        return act()
    except (TypeError, ValueError, AttributeError) as error:
        kind = type(error)
        return "frozen" if kind.__name__ == "FrozenInstanceError" else kind.__name__


QUESTIONS: dict[str, Callable[[Any, Any, Any, Any], object]] = {
    "repr": lambda library, base, child, open_: repr(child(first=1)).replace("make.<locals>.", ""),
    "default": lambda library, base, child, open_: (base(first=1).second, child(first=1).fourth),
    "factory": lambda library, base, child, open_: base(first=1).third is not base(first=1).third,
    "equal": lambda library, base, child, open_: base(first=1) == base(first=1, hidden=5),
    "unequal": lambda library, base, child, open_: base(first=1) == base(first=2),
    "other class": lambda library, base, child, open_: base(first=1) == child(first=1),
    "hash": lambda library, base, child, open_: hash(child(first=1, third=())) == hash(child(first=1, third=())),
    "hash of an open one": lambda library, base, child, open_: hash(open_("x")),
    "set frozen": lambda library, base, child, open_: setattr(base(first=1), "first", 2),
    "delete frozen": lambda library, base, child, open_: delattr(base(first=1), "first"),
    "set open": lambda library, base, child, open_: setattr(open_("x"), "name", "y"),
    "after": lambda library, base, child, open_: base(first=-1),
    "after in a child": lambda library, base, child, open_: child(first=-1),
    "missing": lambda library, base, child, open_: base(),
    "unknown": lambda library, base, child, open_: base(first=1, fifth=5),
    "positional refused": lambda library, base, child, open_: base(1),
    "positional": lambda library, base, child, open_: open_("x", [1]) == open_(name="x", items=[1]),
    "too many": lambda library, base, child, open_: open_("x", [1], 2),
    "twice": lambda library, base, child, open_: open_("x", name="y"),
    "replace": lambda library, base, child, open_: library.replace(child(first=1), first=3).first,
    "replace checks": lambda library, base, child, open_: library.replace(base(first=1), first=-3),
    "fields": lambda library, base, child, open_: [item.name for item in library.fields(child)],
    "fields of an object": lambda library, base, child, open_: [item.name for item in library.fields(open_("x"))],
    "types": lambda library, base, child, open_: [item.type for item in library.fields(base)],
    "no default": lambda library, base, child, open_: library.fields(base)[0].default is library.MISSING,
    "no factory": lambda library, base, child, open_: library.fields(base)[0].default_factory is library.MISSING,
    "is one": lambda library, base, child, open_: [library.is_dataclass(thing) for thing in (base, open_("x"), 3)],
    "asdict": lambda library, base, child, open_: library.asdict(open_("x", [1, open_("y")])),
    "class variable": lambda library, base, child, open_: (base.common, base(first=1).common),
    "unknown option": lambda library, base, child, open_: library.dataclass(ordered=True)(open_),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_stand_in_answers_as_the_library_does(question: str) -> None:
    asked = QUESTIONS[question]
    usual, light = (outcome(lambda library=library: asked(library, *make(library))) for library in MAKERS)  # type: ignore[misc]
    assert light == usual


def test_field_option_that_is_not_known_is_an_error_in_both() -> None:
    for library in MAKERS:
        with pytest.raises(TypeError):
            library.field(nonsense=True)
