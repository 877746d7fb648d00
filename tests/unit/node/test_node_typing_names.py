"""The stand-in for `typing` says of what hooks ask what the library says, and has the rest from it."""

import typing

import pytest

from slurm_energy.node.quick_start import typing_names


def test_choices_of_a_literal_are_those_of_the_library() -> None:
    for library in (typing, typing_names):
        kind = library.Literal["off", "on"]
        assert library.get_origin(kind) is library.Literal
        assert library.get_args(kind) == ("off", "on")
        assert library.get_args(library.Literal["one"]) == ("one",)


@pytest.mark.parametrize("kind", [int, dict[str, int], tuple[str, ...], str | None])
def test_types_that_are_not_of_typing_are_told_alike(kind: object) -> None:
    assert typing_names.get_origin(kind) is typing.get_origin(kind)
    assert typing_names.get_args(kind) == typing.get_args(kind)


def test_names_for_annotations_can_be_joined_and_subscripted() -> None:
    name = typing_names.NewType("name", str)
    variable = typing_names.TypeVar("variable", bound=object)
    assert name("x") == "x"
    for kind in (name | None, None | name, typing_names.Any | int, typing_names.Final[int], variable | None):
        assert isinstance(kind, typing_names._Form)
    assert str(dict[name, tuple[variable, ...]]).startswith("dict[")  # type: ignore[valid-type]  # for annotations


def test_a_name_that_it_lacks_is_the_librarys_and_a_wrong_one_an_error() -> None:
    assert typing_names.NamedTuple is typing.NamedTuple
    with pytest.raises(AttributeError):
        _ = typing_names.NoSuchName
