"""Runs every learner on the pretended device and prints a line of JSON for each: a process of its own for the tests."""

import json
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import tiny_learner
import torch
from device_updates import CASES, CPU, learned, same
from pretend_device import PRETEND, Pretending
from torch import distributed

from slurm_energy.learning.experience import Weights
from slurm_energy.learning.ranks import Ranks
from slurm_energy.learning.round_training import train_in_rounds
from slurm_energy.learning.training_settings import resumed_settings, training_settings
from slurm_energy.learning.training_state import read_state
from slurm_energy.policy.gnn.checkpoint import read_checkpoint
from slurm_energy.settings import toml_text


def _on(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, device=PRETEND)


def _grown() -> None:
    weight = torch.ones(2, 2).to(PRETEND).requires_grad_()
    weight.square().sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    optimiser = torch.optim.Adam([weight])
    optimiser.step()
    for state in optimiser.state.values():
        state["exp_avg"] = state["exp_avg"].cpu()
    optimiser.step()


REFUSED: dict[str, Callable[[], object]] = {
    "a sum": lambda: _on([1.0, 2.0]) + torch.ones(2),
    "a product of matrices": lambda: torch.ones(2, 2).to(PRETEND) @ torch.ones(2, 2),
    "a row of numbers behind another": lambda: torch.cat([_on([1.0]), torch.ones(1)]),
    "a number behind a row": lambda: torch.stack([_on([1.0])[0], torch.tensor(1.0)]),
    "an index": lambda: _on([1.0, 2.0])[torch.tensor([0])],
    "a mask": lambda: torch.where(torch.tensor([True, False]), _on([1.0, 2.0]), 0.0),
    "an index to add at": lambda: _on([1.0, 2.0]).index_add_(0, torch.tensor([0]), _on([1.0])),
    "a layer left behind": lambda: torch.nn.Linear(2, 2)(_on([1.0, 2.0])),
    "numpy": lambda: _on([1.0]).numpy(),
    "an optimiser's mean left behind": _grown,
}
"""What an update must not do."""
LET_THROUGH: dict[str, Callable[[], object]] = {
    "a number of Python": lambda: _on([1.0]) * 2.0,
    "a number as a tensor": lambda: _on([1.0]) * torch.tensor(2.0),
    "a copy to the CPU": lambda: _on([1.0]).cpu().numpy(),
    "a look": lambda: float(_on([1.0])[0]) + sum(_on([1.0]).tolist()),
}


def _all_reduced(flat: torch.Tensor, **_: object) -> None:
    """Stand for two ranks with the same gradients, who talk through the CPU's memory."""
    assert flat.device == CPU, f"gradients on {flat.device} cannot be sent"
    flat.mul_(2.0)


def _learn(algorithm: str, network: str, wanted: Weights) -> None:
    """Learn on the device as was learned on the CPU; with one network from one to the other, too."""
    moves = ((PRETEND, CPU), (CPU, PRETEND)) if network == "vector" else ()
    for devices in ((PRETEND, PRETEND), *moves):
        found = learned(algorithm, network, devices, Ranks(0, 2).average)
        assert {tensor.device for tensor in found.values()} == {CPU}
        assert same(found, wanted), f"learned something else than on the CPU, on {devices}"


def _in_rounds(folder: Path) -> None:
    """Train a round on the device, one on the CPU, one on the device; what collectors and files get is the CPU's."""
    config = folder / "train.toml"
    tables = {
        "training": {"algorithm": "policy-gradient", "world": "lab", "rounds": 1},
        "network": tiny_learner.NETWORK,
        "episodes": {"hours": 0.2},
        "learner": {"epochs": 1, "minibatches": 2},
    }
    config.write_text(toml_text(tables), encoding="utf-8")
    made = folder / "made"
    train_in_rounds(training_settings(config, {}), made, device=PRETEND)
    for rounds, device in ((2, CPU), (3, PRETEND)):
        settings = resumed_settings(made, None, {"rounds": rounds})
        train_in_rounds(settings, made, resumes=True, device=device)
        assert f'learned_on = "{device}"' in (made / "settings.toml").read_text(encoding="utf-8")
    alone = folder / "alone"
    train_in_rounds(training_settings(config, {"rounds": 3}), alone)
    assert same(read_checkpoint(made / "last").tensors, read_checkpoint(alone / "last").tensors)
    assert read_state(made).rounds == 3


def _report(case: str, work: Callable[[], object]) -> None:
    error = None
    with Pretending() as pretending:
        try:
            work()
        except Exception:  # whatever it is, the test tells of it
            error = traceback.format_exc()
    print(json.dumps({"case": case, "error": error, "operations": pretending.operations}), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    distributed.all_reduce = _all_reduced  # type: ignore[assignment]  # it lacks what is not used
    for name, refused in (REFUSED | LET_THROUGH).items():
        _report(name, refused)
    for algorithm, network in CASES:
        wanted = learned(algorithm, network, (CPU, CPU))
        _report(f"{algorithm} {network}", partial(_learn, algorithm, network, wanted))
    with TemporaryDirectory() as folder:
        _report("in rounds", partial(_in_rounds, Path(folder)))


if __name__ == "__main__":
    main()
