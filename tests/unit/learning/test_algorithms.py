"""Every algorithm that is named: trains on a shipped world, the same twice, and the same after a stop."""

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_learner
import torch
from short_trainings import LEARNERS, write_config

from slurm_energy.errors import ConfigError
from slurm_energy.learning import algorithms
from slurm_energy.learning.algorithms import ALGORITHMS, find_algorithm
from slurm_energy.learning.round_training import train_in_rounds
from slurm_energy.learning.training_settings import resumed_settings, training_settings
from slurm_energy.policy.gnn.checkpoint import read_checkpoint
from slurm_energy.twin.world.file import find_world

NAMES = [pytest.param(name, marks=pytest.mark.long if name != "prices" else ()) for name in LEARNERS]


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_goes_on_as_if_it_had_not_been_stopped(name: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, name)
    whole, part = tmp_path / "whole", tmp_path / "part"
    end = train_in_rounds(training_settings(config, {}), whole)
    train_in_rounds(training_settings(config, {"rounds": 2}), part)
    before = read_checkpoint(part / "last").tensors
    train_in_rounds(resumed_settings(part, None, {"rounds": 3}), part, resumes=True)
    mine, theirs = read_checkpoint(part / "last").tensors, read_checkpoint(whole / "last").tensors
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in mine.items())
    assert not all(torch.equal(tensor, before[key]) for key, tensor in mine.items())
    assert end.checkpoints["last"].name == "gnn"
    assert end.checkpoints["best"].metrics["score"] >= end.checkpoints["last"].metrics["score"]


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_one_run_and_another_another(name: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, name)
    # Where jobs have a choice, so that what the second round does follows from the weights of the first.
    changes, trained = {"rounds": 2, "world": "lab-open"}, []
    for folder, seed in (("first", 0), ("again", 0), ("other", 1)):
        train_in_rounds(training_settings(config, {**changes, "seed": seed}), tmp_path / folder)
        trained.append(read_checkpoint(tmp_path / folder / "last").tensors)
    first, again, other = trained
    assert all(torch.equal(tensor, again[key]) for key, tensor in first.items())
    assert not all(torch.equal(tensor, other[key]) for key, tensor in first.items())


def test_an_algorithm_sets_what_it_needs_of_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needy = replace(tiny_learner.ALGORITHM, network=lambda network: replace(network, quantiles=7))
    monkeypatch.setitem(ALGORITHMS, "chsac", needy)
    path = tmp_path / "train.toml"
    path.write_text('[training]\nalgorithm = "chsac"\nworld = "lab"\n[network]\nhidden = 12\n', encoding="utf-8")
    found = training_settings(path, {})
    assert (found.network.hidden, found.network.quantiles) == (12, 7)
    assert "quantiles = 7" in found.text()


def test_each_name_leads_to_the_algorithm_of_this_name() -> None:
    assert [find_algorithm(name).name for name in ALGORITHMS] == list(ALGORITHMS)


def test_a_name_that_is_none_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean policy-gradient"):
        find_algorithm("policy_gradient")
    with pytest.raises(ConfigError, match="there are chsac, policy-gradient, prices"):
        find_algorithm("zzz")


def test_the_recipe_of_the_shipped_policy_can_be_followed() -> None:
    folder = Path(algorithms.__file__).resolve().parent / "recipes"
    settings = training_settings(folder / "shipped.toml", {})
    assert settings.run.algorithm == "prices"
    assert settings.network.policy == "prices"
    worlds = [settings.episodes.in_turn(turn) for turn in range(len(settings.episodes.worlds))]
    assert len({one.world for one in worlds}) == settings.run.collectors == len(worlds)
    for one in worlds:
        assert find_world(one.world).workload
