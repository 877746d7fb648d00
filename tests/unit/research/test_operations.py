"""The count of operations against counts by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from research.benchmarks.operations import OperationCounter, count_operations


def test_a_matrix_product_costs_a_multiplication_and_an_addition_for_each_of_its_terms() -> None:
    left, right = torch.ones(3, 4), torch.ones(4, 5)
    assert count_operations(lambda: left @ right) == 2 * 3 * 4 * 5


def test_a_batched_product_costs_as_many_as_its_products() -> None:
    left, right = torch.ones(7, 3, 4), torch.ones(7, 4, 5)
    assert count_operations(lambda: torch.bmm(left, right)) == 7 * 2 * 3 * 4 * 5


def test_a_product_with_a_sparse_matrix_costs_what_is_stored_in_it() -> None:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 50], [1, 0, 99]]), torch.ones(3), (100, 100), check_invariants=True
    )
    x = torch.ones(100, 8)
    assert count_operations(lambda: sparse @ x) == 2 * 3 * 8
    assert count_operations(lambda: torch.sparse.addmm(x, sparse, x)) == 2 * 3 * 8 + 100 * 8


@pytest.mark.parametrize("inference", [False, True], ids=["with gradients", "inference mode"])
def test_a_linear_layer_costs_its_product_and_its_bias(inference: bool) -> None:
    layer, x = nn.Linear(4, 5), torch.ones(3, 4)
    with torch.inference_mode(inference):
        assert count_operations(lambda: layer(x)) == 2 * 3 * 4 * 5 + 3 * 5


@pytest.mark.parametrize("inference", [False, True], ids=["with gradients", "inference mode"])
def test_a_linear_layer_on_a_batch_of_sets_costs_the_same_as_on_its_rows(inference: bool) -> None:
    layer, x = nn.Linear(4, 5), torch.ones(2, 3, 4)
    with torch.inference_mode(inference):
        assert count_operations(lambda: layer(x)) == count_operations(lambda: layer(x.view(6, 4)))


def test_index_add_costs_its_source_and_not_what_it_adds_to() -> None:
    target, index, source = torch.zeros(100, 8), torch.tensor([0, 1, 1]), torch.ones(3, 8)
    assert count_operations(lambda: target.index_add_(0, index, source)) == 3 * 8
    assert count_operations(lambda: torch.index_add(target, dim=0, index=index, source=source)) == 3 * 8


def test_a_scatter_reduction_costs_its_source() -> None:
    target, index, source = torch.zeros(100), torch.tensor([0, 1, 1]), torch.ones(3)
    assert count_operations(lambda: target.scatter_reduce_(0, index, source, "amax")) == 3


def test_index_put_costs_the_values_that_it_writes() -> None:
    target, index, rows = torch.zeros(100, 8), torch.tensor([5, 7]), torch.ones(2, 8)
    assert count_operations(lambda: target.index_put((index,), rows)) == 2 * 8


def test_a_gather_costs_its_result_and_not_what_it_reads_from() -> None:
    table, index = torch.ones(1000, 8), torch.tensor([3, 5])
    assert count_operations(lambda: table[index]) == 2 * 8
    assert count_operations(lambda: table.index_select(0, index)) == 2 * 8


def test_a_softmax_costs_five_passes() -> None:
    x = torch.ones(3, 4)
    by_parts = count_operations(lambda: x.amax(1))  # the largest of each row
    by_parts += count_operations(lambda: x - 1.0) + count_operations(x.exp)
    by_parts += count_operations(lambda: x.sum(1)) + count_operations(lambda: x / 2.0)
    assert count_operations(lambda: x.softmax(1)) == by_parts == 5 * 12


def test_a_layer_norm_costs_eight_passes() -> None:
    norm, x = nn.LayerNorm(4), torch.ones(3, 4)
    assert count_operations(lambda: norm(x)) == 8 * 12


def test_an_elementwise_operator_costs_its_broadcast_result_and_a_reduction_its_input() -> None:
    column, row = torch.ones(3, 1), torch.ones(1, 4)
    assert count_operations(lambda: column * row) == 12
    assert count_operations(lambda: torch.ones(3, 4).sum()) == 12
    assert count_operations(lambda: torch.cat([column, column])) == 6


def test_a_sort_costs_n_log_n() -> None:
    x = torch.arange(16.0)
    assert count_operations(x.sort) == 16 * 4


def test_views_allocation_and_constants_cost_nothing() -> None:
    x = torch.ones(3, 4)
    assert count_operations(lambda: (x.view(12), x.t(), x[1:], x.detach(), x.new_zeros(50), torch.arange(9))) == 0


def test_attention_costs_its_two_products() -> None:
    query, key = torch.ones(1, 2, 3, 8), torch.ones(1, 2, 5, 8)
    counted = count_operations(lambda: functional.scaled_dot_product_attention(query, key, key))
    assert counted == 2 * (2 * 2 * 3 * 5 * 8)


def test_a_backward_pass_is_counted_when_it_runs_inside() -> None:
    weight, x = torch.ones(4, 5, requires_grad=True), torch.ones(3, 4)
    forward = count_operations(lambda: x @ weight)
    both = count_operations(lambda: torch.autograd.grad((x @ weight).sum(), weight))
    assert both >= 2 * forward  # the gradient of the weight is a product as large as the forward one


def test_the_result_is_the_same_as_without_counting() -> None:
    layer, x = nn.Linear(4, 5), torch.linspace(0, 1, 12).view(3, 4)
    with OperationCounter() as counter:
        counted = layer(x)
    assert torch.equal(counted, layer(x))
    assert counter.operations == 2 * 3 * 4 * 5 + 3 * 5
