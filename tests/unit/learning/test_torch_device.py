"""Which device a training takes: the one that is named, or the next GPU for each rank of a machine."""

import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.learning.torch_device import torch_device


class Cards:
    """Stands for `torch.cuda` with some GPUs."""

    def __init__(self, count: int) -> None:
        self.count = count

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count


@pytest.mark.parametrize(
    ("gpus", "name", "local_rank", "found"),
    [
        (0, "auto", 0, "cpu"),
        (2, "auto", 0, "cuda:0"),
        (2, "cuda", 1, "cuda:1"),
        (2, "auto", 3, "cuda:1"),
        (2, "cuda:1", 0, "cuda:1"),
        (2, "cpu", 1, "cpu"),
    ],
)
def test_each_rank_of_a_machine_takes_the_next_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, name: str, local_rank: int, found: str
) -> None:
    monkeypatch.setattr("torch.cuda", Cards(gpus))
    assert str(torch_device(name, local_rank)) == found


@pytest.mark.parametrize(
    ("gpus", "name", "words"),
    [
        (0, "cuda", r"training.device is 'cuda', but torch .* finds no GPU here: ask Slurm for one"),
        (0, "cuda:1", "finds no GPU here"),
        (2, "cuda:2", r"training.device is 'cuda:2', but this process sees 2 GPUs, cuda:0 to cuda:1"),
        (2, "gpu", "training.device is 'gpu', it must be auto, cpu, cuda or cuda:N"),
        (2, "cuda:-1", "it must be auto, cpu, cuda or cuda:N"),
    ],
)
def test_a_gpu_that_there_is_not_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, gpus: int, name: str, words: str
) -> None:
    monkeypatch.setattr("torch.cuda", Cards(gpus))
    with pytest.raises(ConfigError, match=words):
        torch_device(name)
