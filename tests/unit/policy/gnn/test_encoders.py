import pytest
import torch
from torch import nn

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.gnn.levels import VertexEncoder


def make_encoder(features: int = 5, hidden: int = 8, seed: int = 1) -> VertexEncoder:
    torch.manual_seed(seed)
    return VertexEncoder(features, hidden)


def test_the_embedding_is_that_of_the_formula() -> None:
    encoder = make_encoder().double()
    first, _, second, _ = encoder.layers
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    x = torch.randn(6, 5, dtype=torch.float64)

    raw = (x @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    centred = raw - raw.mean(1, keepdim=True)
    expected = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()

    assert torch.allclose(encoder(x), expected)


def test_each_vertex_is_encoded_by_itself() -> None:
    encoder = make_encoder()
    x = torch.randn(6, 5)

    together = encoder(x)

    assert torch.allclose(together, torch.cat([encoder(x[row : row + 1]) for row in range(6)]), atol=1e-6)
    assert not torch.allclose(together[0], together[1])


def test_no_vertices_give_no_embeddings() -> None:
    assert make_encoder()(torch.empty(0, 5)).shape == (0, 8)


@pytest.mark.parametrize(("features", "hidden"), [(0, 8), (5, 0)])
def test_an_encoder_of_nothing_or_to_nothing_is_refused(features: int, hidden: int) -> None:
    with pytest.raises(ValueRangeError, match=f"encoder of {features} features to {hidden} channels"):
        VertexEncoder(features, hidden)


def test_another_number_of_columns_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="vertices have 4 features, this encoder takes 5"):
        make_encoder()(torch.zeros(2, 4))


def test_gradient_reaches_every_parameter() -> None:
    encoder = make_encoder()

    encoder(torch.randn(6, 5)).square().mul(torch.arange(8.0)).sum().backward()

    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())


def test_gradients_are_those_of_finite_differences() -> None:
    encoder = make_encoder().double()

    assert torch.autograd.gradcheck(encoder, torch.randn(3, 5, dtype=torch.float64, requires_grad=True))


def test_the_same_seed_gives_the_same_embeddings() -> None:
    x = torch.randn(6, 5)

    assert torch.equal(make_encoder(seed=3)(x), make_encoder(seed=3)(x))
    assert not torch.equal(make_encoder(seed=3)(x), make_encoder(seed=4)(x))


def test_weights_are_drawn_anew() -> None:
    x = torch.randn(6, 5)
    encoder = make_encoder(seed=3)
    fresh = encoder(x)

    encoder.reset_parameters()
    other = encoder(x)
    torch.manual_seed(3)
    encoder.reset_parameters()

    assert not torch.equal(other, fresh)
    assert torch.equal(encoder(x), fresh)
