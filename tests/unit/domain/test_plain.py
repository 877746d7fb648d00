import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.ids import JobId
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest
from slurm_energy.domain.plain import from_plain, to_plain
from slurm_energy.errors import ValueRangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    size: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    job: JobId
    mode: EnergyMode | None
    inner: tuple[Inner, ...]
    table: Mapping[str, int]
    word: Literal["a", "b"] = "a"
    on: bool = False


WHOLE = Outer(job=JobId(7), mode=EnergyMode.SAVER, inner=(Inner(size=1.5),), table={"x": 1})


def test_value_comes_back_equal_through_json() -> None:
    assert from_plain(Outer, json.loads(json.dumps(to_plain(WHOLE)))) == WHOLE


@given(
    st.text(), st.lists(st.builds(GpuDemand, count=st.integers(0, 10), slurm_type=st.none() | st.text())), st.booleans()
)
def test_any_request_comes_back_equal(name: str, gpus: list[GpuDemand], exclusive: bool) -> None:
    request = JobRequest(
        user_id=1, name=name, gpus=tuple(gpus), exclusive=exclusive, options=EnergyOptions(max_slowdown=0.1)
    )
    assert from_plain(JobRequest, json.loads(json.dumps(to_plain(request)))) == request


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    held: tuple[tuple[str, tuple[int, ...]], ...] = ()


def test_a_tuple_of_unlike_items_comes_back_equal() -> None:
    value = Pairs(held=(("n1", (0, 3)), ("n2", ())))
    assert from_plain(Pairs, json.loads(json.dumps(to_plain(value)))) == value


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        ([["n1"]], r"Pairs\.held\[0\] has 1 items, 2 are needed"),
        ([["n1", [0], 5]], r"Pairs\.held\[0\] has 3 items, 2 are needed"),
        ([["n1", ["0"]]], r"Pairs\.held\[0\]\[1\]\[0\] is '0', int is needed"),
    ],
)
def test_a_wrong_tuple_of_unlike_items_is_named(held: object, complaint: str) -> None:
    with pytest.raises(ValueRangeError, match=complaint):
        from_plain(Pairs, {"held": held})


def test_keys_of_a_newer_writer_are_left_out() -> None:
    assert from_plain(Outer, {**to_plain(WHOLE), "added_later": 1}) == WHOLE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job": "7"}, "Outer.job is '7', int is needed"),
        ({"job": True}, "Outer.job is True, int is needed"),
        ({"mode": "fast"}, "Outer.mode is 'fast', which is no EnergyMode"),
        ({"inner": [{}]}, r"Outer.inner\[0\] lacks size"),
        ({"inner": [{"size": None}]}, r"Outer.inner\[0\].size is None, float is needed"),
        ({"inner": [{"size": float("nan")}]}, "a finite number is needed"),
        ({"inner": [{"size": 10**400}]}, "a finite number is needed"),
        ({"inner": "ab"}, "Outer.inner is 'ab', a list is needed"),
        ({"table": {"x": "y"}}, "Outer.table.x is 'y', int is needed"),
        ({"table": []}, r"Outer.table is \[\], an object is needed"),
        ({"word": "c"}, "Outer.word is 'c', allowed: a, b"),
        ({"on": 1}, "Outer.on is 1, bool is needed"),
    ],
)
def test_wrong_value_is_refused_with_its_place(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        from_plain(Outer, {**to_plain(WHOLE), **change})


@pytest.mark.parametrize("value", [None, 3, "x", []])
def test_other_than_an_object_is_refused(value: object) -> None:
    with pytest.raises(ValueRangeError, match=r"Outer is .*, an object is needed"):
        from_plain(Outer, value)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), object(), b"x"])
def test_what_json_lacks_is_refused(value: object) -> None:
    with pytest.raises(ValueRangeError):
        to_plain(value)
