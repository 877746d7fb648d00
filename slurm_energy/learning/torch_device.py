"""Where a learner works: on a GPU or on the CPU. Episodes run on the CPU either way."""

import re

import torch

from slurm_energy.errors import ConfigError

CPU = torch.device("cpu")
AUTO = "auto"
_FORM = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


def check_device_name(name: str) -> None:
    """Raise ConfigError for what is no name of a device."""
    if not _FORM.fullmatch(name):
        raise ConfigError(
            f"setting training.device is {name[:64]!r}, it must be auto, cpu, cuda or cuda:N with N from 0 to 999"
        )


def torch_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device of a name on this machine.

    Args:
        name: `auto`: a GPU if there is one, else the CPU; `cpu`; `cuda`; or `cuda:N`.
        local_rank: Of this process among those of the training on this machine. Each takes the next GPU where no number
            says which; when there are more of them than GPUs, they share.

    Raises:
        ConfigError: it is no name of a device, or there is no such GPU.
    """
    check_device_name(name)
    gpus = torch.cuda.device_count() if name != "cpu" and torch.cuda.is_available() else 0
    if name == "cpu" or (name == AUTO and not gpus):
        return CPU
    if not gpus:
        raise ConfigError(
            f"setting training.device is {name!r}, but torch {torch.__version__} finds no GPU here: ask Slurm for one "
            "(--gpus-per-task=1), install a torch that is built for CUDA, or give --device auto or cpu"
        )
    device = torch.device(name) if ":" in name else torch.device("cuda", local_rank % gpus)
    if device.index >= gpus:
        raise ConfigError(
            f"setting training.device is {name!r}, but this process sees {gpus} GPUs, cuda:0 to cuda:{gpus - 1}: give "
            "one of them, or cuda for any"
        )
    return device


def device_words(device: torch.device) -> str:
    """Return a device with its model, as people are told: `cuda:0 (NVIDIA H200)`."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
