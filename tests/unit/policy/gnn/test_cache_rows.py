"""Rows that are used again: whatever is put in and taken out, the sums are those of what is there."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slurm_energy.policy.gnn.cache import RowPool
from slurm_energy.policy.gnn.embeddings import Contributions

HIDDEN, HEADS = 4, 2
Row = tuple[int, float, float]
"""Partition, a number from which weight and value are made, critical path."""

rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 9).map(float), st.sampled_from((0.0, 0.25, 0.5))), max_size=3
)
tasks = st.integers(0, 6)


def contributions(numbers: list[float]) -> Contributions:
    column = torch.tensor(numbers)[:, None]
    return Contributions(column * torch.tensor([[1.0, 2.0]]), column * torch.tensor([[1.0, -1.0, 3.0, 0.5]]))


class Model(RuleBasedStateMachine):
    """The pool beside a plain dictionary of rows by job."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = 3
        self.pool = RowPool(HIDDEN, HEADS)
        self.pool.clear(self.partitions)
        self.known: dict[int, list[Row]] = {}

    @rule(found=st.dictionaries(tasks, rows, max_size=3))
    def put(self, found: dict[int, list[Row]]) -> None:
        flat = [(place, row) for place, own in enumerate(found.values()) for row in own]
        self.pool.put(
            list(found),
            [place for place, _ in flat],
            torch.tensor([row[0] % self.partitions for _, row in flat], dtype=torch.int64),
            contributions([row[1] for _, row in flat]),
            torch.tensor([row[2] for _, row in flat]),
        )
        self.known |= {task: [(row[0] % self.partitions, *row[1:]) for row in own] for task, own in found.items()}

    @rule(gone=st.sets(tasks, max_size=3))
    def remove(self, gone: set[int]) -> None:
        self.pool.remove(gone)
        self.known = {task: own for task, own in self.known.items() if task not in gone}

    @rule(partitions=st.integers(1, 3))
    def clear(self, partitions: int) -> None:
        self.pool.clear(partitions)
        self.partitions, self.known = partitions, {}

    @invariant()
    def sums_are_those_of_the_rows_that_are_there(self) -> None:
        sums, critical = self.pool.sums()
        there = [row for own in self.known.values() for row in own]
        for partition in range(self.partitions):
            total = sum(row[1] for row in there if row[0] == partition)
            expected = contributions([float(total)])
            assert torch.allclose(sums.weight[partition], expected.weight[0])
            assert torch.allclose(sums.value[partition], expected.value[0])
            assert float(critical[partition]) == max([row[2] for row in there if row[0] == partition], default=0.0)
        assert sums.weight.shape == (self.partitions, HEADS)


TestRowPool = Model.TestCase
TestRowPool.settings = settings(stateful_step_count=12)


def put(pool: RowPool, task: int, numbers: list[float]) -> None:
    owner = torch.zeros(len(numbers), dtype=torch.int64)
    pool.put([task], [0] * len(numbers), owner, contributions(numbers), torch.zeros(len(numbers)))


def test_a_job_that_comes_and_goes_a_thousand_times_leaves_no_trace() -> None:
    pool = RowPool(HIDDEN, HEADS)
    pool.clear(1)
    put(pool, 1, [0.1])
    before = pool.sums()[0]
    for number in range(1000):
        put(pool, 2, [1e6 + number, 3.0])
        pool.remove([2])
    after = pool.sums()[0]
    assert torch.equal(after.value, before.value)
    assert len(pool._owner) <= 4  # rows were used again


def test_the_longest_path_falls_when_its_job_leaves() -> None:
    pool = RowPool(HIDDEN, HEADS)
    pool.clear(1)
    zero = torch.zeros(1, dtype=torch.int64)
    for task, path in ((1, 0.5), (2, 0.75)):
        pool.put([task], [0], zero, contributions([1.0]), torch.tensor([path]))
    assert pool.sums()[1].tolist() == [0.75]
    pool.remove([2, 99])
    assert pool.sums()[1].tolist() == [0.5]


def test_an_empty_pool_has_zeros() -> None:
    pool = RowPool(HIDDEN, HEADS)
    pool.clear(2)
    sums, critical = pool.sums()
    assert sums.value.tolist() == [[0.0] * HIDDEN] * 2
    assert critical.tolist() == [0.0, 0.0]
