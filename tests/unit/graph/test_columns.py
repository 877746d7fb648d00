import numpy as np
import pytest

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.columns import ColumnStore


def make_store() -> ColumnStore:
    return ColumnStore({"x": (np.float32, 3), "number": (np.int64, 0)})


def test_a_freed_slot_is_given_out_again_with_zeros() -> None:
    store = make_store()
    first, second = store.take(), store.take()
    store["x"][first] = 7.0
    store.free(first)
    assert store.take() == first
    assert not store["x"][first].any()
    assert store.slots.tolist() == [first, second]


def test_rows_stay_where_they_are_while_the_store_grows() -> None:
    store = make_store()
    slots = [store.take() for _ in range(3)]
    store["number"][slots] = [10, 11, 12]
    more = [store.take() for _ in range(100)]
    assert store["number"][slots].tolist() == [10, 11, 12]
    assert len({*slots, *more}) == len(store) == 103


def test_a_slot_that_is_not_in_use_is_refused() -> None:
    store = make_store()
    slot = store.take()
    store.free(slot)
    with pytest.raises(ValueRangeError, match="slot 0 is not in use, 0 of 1 are"):
        store.free(slot)
    for bad in (slot, -1, 99):
        with pytest.raises(ValueRangeError, match=f"slot {bad} "):
            store.checked([bad])
    assert store.checked([]).tolist() == []
