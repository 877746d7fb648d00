"""One rank trains alone: seeds, checkpoints, and settings that cannot be."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from part_cases import parts_file, small_graph
from safetensors import safe_open
from safetensors.torch import save_file

from slurm_energy.errors import CheckpointError, ConfigError, TrainingError
from slurm_energy.hyperscale.lost_ranks import RankPresence
from slurm_energy.hyperscale.training import CHECKPOINT_FILE, EpochReport, TrainedRun, TrainEnd, TrainSettings, train
from slurm_energy.rendezvous import Rendezvous

SETTINGS = TrainSettings(hidden_channels=8, epochs=4, evaluate_every=2, checkpoint_every=2)
ALONE = RankPresence(Rendezvous(number=0, count=1, address="127.0.0.1", port=1), None)


def trained(folder: Path, settings: TrainSettings = SETTINGS, **more: object) -> tuple[TrainEnd, list[EpochReport]]:
    reports: list[EpochReport] = []
    path = folder / "parts.safetensors"
    if not path.exists():
        parts_file(folder, small_graph(), 2)
    run = TrainedRun(parts_file=path, folder=folder, presence=ALONE, rank_of_part=(0, 0), on_epoch=reports.append)
    return train(settings, replace(run, **more)), reports  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(tmp_path: Path) -> None:
    first, reports = trained(tmp_path)
    second, _ = trained(tmp_path)
    other, _ = trained(tmp_path, replace(SETTINGS, seed=1))
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)
    assert not all(torch.equal(first.weights[name], other.weights[name]) for name in first.weights)
    assert [report.accuracy is not None for report in reports] == [False, True, False, True]
    assert first.is_complete
    assert first.accuracy == reports[-1].accuracy


def test_a_training_resumes_from_its_checkpoint_and_refuses_that_of_another(tmp_path: Path) -> None:
    trained(tmp_path, replace(SETTINGS, epochs=2))
    resumed, reports = trained(tmp_path, resumes=True)
    assert [report.epoch for report in reports] == [3, 4]
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    through, _ = trained(fresh)
    assert all(torch.equal(resumed.weights[name], through.weights[name]) for name in through.weights)
    with pytest.raises(ConfigError, match=r"was trained with dropout 0\.5, not 0\.1"):
        trained(tmp_path, replace(SETTINGS, dropout=0.1), resumes=True)
    parts_file(tmp_path, {**small_graph(), "edge_index": torch.zeros(2, 1, dtype=torch.int64)}, 2)
    with pytest.raises(ConfigError, match=r"is of a graph with \[vertices, edges, features, classes\]"):
        trained(tmp_path, resumes=True)


def test_a_complete_training_that_is_resumed_is_evaluated_once_more(tmp_path: Path) -> None:
    first, _ = trained(tmp_path)
    second, reports = trained(tmp_path, resumes=True)
    assert reports == []
    assert second.accuracy == first.accuracy


@pytest.mark.parametrize("damage", ["cut", "other", "header", "shape"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: str) -> None:
    trained(tmp_path)
    path = tmp_path / CHECKPOINT_FILE
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif damage == "other":
        save_file(tensors, path)
    elif damage == "header":
        save_file(tensors, path, metadata={**header, "best": json.dumps(["a", "b", "c"])})
    else:
        tensors["model.convs.0.bias"] = torch.zeros(3)
        save_file(tensors, path, metadata=header)
    with pytest.raises(CheckpointError, match=str(path)):
        trained(tmp_path, resumes=True)


def test_a_loss_that_is_not_finite_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="lower learning_rate"):
        trained(tmp_path, replace(SETTINGS, learning_rate=1e30, epochs=50))


def test_parts_and_ranks_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 parts are given a rank"):
        trained(tmp_path, rank_of_part=(0, 0, 0))
    with pytest.raises(ConfigError, match="a part is given to rank 1: there are ranks 0 to 0"):
        trained(tmp_path, rank_of_part=(0, 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "mlp"),
        ("hidden_channels", 0),
        ("epochs", 0),
        ("dropout", 1.0),
        ("smoothing", -0.1),
        ("learning_rate", float("nan")),
        ("weight_decay", -1.0),
        ("heads", 0),
        ("seed", 2**31),
    ],
)
def test_settings_out_of_their_bounds_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(SETTINGS, **{name: value})  # type: ignore[arg-type]


def test_heads_must_divide_the_channels() -> None:
    with pytest.raises(ConfigError, match="must be a multiple of heads"):
        TrainSettings(model="gat", hidden_channels=12)
