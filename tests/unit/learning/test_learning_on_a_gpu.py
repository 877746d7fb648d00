"""Learners on a real GPU, where there is one: gradients are those of the CPU up to rounding."""

import pytest
import torch
from device_updates import ALGORITHMS, CPU, LEARNERS, NETWORKS, first_gradients, learned, same, state_of

from slurm_energy.learning.torch_device import torch_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here that torch can use")


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gradients_on_a_gpu_are_those_on_the_cpu(algorithm: str, network: str) -> None:
    found = first_gradients(algorithm, network, torch_device("cuda"))
    wanted = first_gradients(algorithm, network, CPU)
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).norm()) <= 1e-3 * float(other.norm())


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_a_state_is_the_same_after_a_move_from_one_device_to_another(algorithm: str) -> None:
    gpu = torch_device("cuda")
    for before, after in ((gpu, CPU), (CPU, gpu)):
        state = state_of(algorithm, "hierarchical", before)
        assert same(state_of(algorithm, "hierarchical", after, state), state)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_learner_goes_on_on_another_device(algorithm: str) -> None:
    gpu = torch_device("cuda")
    for devices in ((gpu, gpu), (gpu, CPU), (CPU, gpu)):
        weights = learned(algorithm, "hierarchical", devices)
        assert all(tensor.device == CPU and bool(torch.isfinite(tensor).all()) for tensor in weights.values())
