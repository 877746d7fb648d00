"""Sums of contributions: in parts or at once, by owner, and the means that they stand for."""

import numpy as np
import pytest
import torch

from slurm_energy.policy.gnn.embeddings import Contributions, add_up, floats, indices, largest_by, mean_of

HEADS, HIDDEN = 3, 6
OWNER = torch.tensor([0, 2, 2, 0, 2])


def members(count: int = 5, seed: int = 1) -> tuple[Contributions, torch.Tensor, torch.Tensor]:
    """Return contributions with the weights and plain values that they are made of."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(count, HEADS, generator=generator) + 0.1
    plain = torch.randn(count, HIDDEN, generator=generator)
    value = plain * weight.repeat_interleave(HIDDEN // HEADS, dim=1)
    return Contributions(weight, value), weight, plain


def test_the_mean_is_the_weighted_mean_of_each_head() -> None:
    contributions, weight, plain = members()
    found = mean_of(add_up(contributions, OWNER, 4))
    width = HIDDEN // HEADS
    for owner in (0, 2):
        own = [row for row in range(5) if int(OWNER[row]) == owner]
        for head in range(HEADS):
            for channel in range(head * width, (head + 1) * width):
                above = sum(float(weight[row, head]) * float(plain[row, channel]) for row in own)
                below = sum(float(weight[row, head]) for row in own)
                assert float(found[owner, channel]) == pytest.approx(above / below, rel=1e-5)


def test_who_has_no_member_gets_zeros() -> None:
    found = mean_of(add_up(members()[0], OWNER, 4))
    assert found.shape == (4, HIDDEN)
    assert torch.equal(found[1], torch.zeros(HIDDEN))
    assert torch.equal(found[3], torch.zeros(HIDDEN))


def test_sums_of_parts_added_up_are_the_sums_at_once() -> None:
    contributions = members()[0]
    parts = [
        add_up(Contributions(contributions.weight[rows], contributions.value[rows]), OWNER[rows], 4)
        for rows in (torch.tensor([3, 1]), torch.tensor([0, 2, 4]))
    ]
    together = add_up(contributions, OWNER, 4)
    assert torch.allclose(parts[0].weight + parts[1].weight, together.weight)
    assert torch.allclose(parts[0].value + parts[1].value, together.value)


def test_a_member_of_two_owners_counts_at_both() -> None:
    contributions = members(2)[0]
    member, owner = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    sums = add_up(contributions, owner, 2, member)
    assert torch.allclose(sums.weight[0], contributions.weight[0])
    assert torch.allclose(sums.value[1], contributions.value[0] + contributions.value[1])


def test_the_largest_is_taken_by_owner_and_is_never_below_zero() -> None:
    values = torch.tensor([0.2, -3.0, -1.0, 0.7, -2.0])
    assert largest_by(values, OWNER, 4).tolist() == pytest.approx([0.7, 0.0, 0.0, 0.0])
    assert largest_by(values[:0], OWNER[:0], 2).tolist() == [0.0, 0.0]


def test_arrays_become_tensors_of_the_same_memory() -> None:
    numbers, places = np.zeros(3, dtype=np.float32), np.zeros(3, dtype=np.int64)
    floats(numbers)[1] = 5.0
    indices(places)[2] = 7
    assert numbers.tolist() == [0.0, 5.0, 0.0]
    assert places.tolist() == [0, 0, 7]
