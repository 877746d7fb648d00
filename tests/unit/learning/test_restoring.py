"""A state that is not one: told as damage, whatever is wrong in it and whichever algorithm wrote it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_learner
import torch

from slurm_energy.errors import TrainingError
from slurm_energy.learning.algorithms import LearnerParts
from slurm_energy.learning.experience import Learner, alone
from slurm_energy.learning.round_training import train_in_rounds
from slurm_energy.learning.training_settings import TrainingSettings, resumed_settings, training_settings
from slurm_energy.learning.training_state import read_state, restore_learner
from slurm_energy.policy.gnn.network import create_network
from slurm_energy.settings import toml_text

TABLES: dict[str, dict[str, dict[str, Any]]] = {
    "chsac": {"learner": {"batch_size": 4, "warm_up_transitions": 3, "updates_per_transition": 0.3}},
    "policy-gradient": {"learner": {"epochs": 1, "minibatches": 2}},
    "prices": {"episodes": {"max_jobs": 5}, "learner": {"head_steps": 0}},
}
State = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a folder of each algorithm with the state after its first round."""
    return {name: trained(tmp_path_factory.mktemp(name), name) for name in TABLES}


def trained(folder: Path, name: str) -> Path:
    config = folder / "train.toml"
    tables: dict[str, dict[str, Any]] = {
        "training": {"algorithm": name, "world": "lab", "rounds": 1},
        "network": tiny_learner.NETWORK,
        "episodes": {"hours": 0.5, **TABLES[name].get("episodes", {})},
        "learner": TABLES[name]["learner"],
    }
    config.write_text(toml_text(tables), encoding="utf-8")
    train_in_rounds(training_settings(config, {}), folder / "made")
    return folder / "made"


def gone_on(whole: Path, folder: Path, change: Callable[[State], object]) -> None:
    """Change the state in a copy of a training's folder, and go on from it."""
    shutil.copytree(whole, folder, symlinks=True)
    document = torch.load(folder / "state.pt", weights_only=True)
    change(document["learners"][0])
    torch.save(document, folder / "state.pt")
    train_in_rounds(resumed_settings(folder, None, {"rounds": 2}), folder, resumes=True)


@pytest.fixture(scope="module")
def learners(made: dict[str, Path]) -> dict[str, Learner]:
    """Return a learner of each algorithm as it is before its state is restored."""
    return {name: learner_of(resumed_settings(folder, None, {"rounds": 2})) for name, folder in made.items()}


def learner_of(settings: TrainingSettings) -> Learner:
    network = create_network(settings.network, settings.run.seed)
    parts = LearnerParts(
        network=network,
        settings=settings.learner,
        episodes=settings.episodes,
        seed=settings.run.seed,
        averaging=alone,
    )
    return settings.algorithm.learner(parts)


def restored(learner: Learner, whole: Path, folder: Path, change: Callable[[State], object]) -> None:
    """Change the state in a copy of a training's folder, and restore the learner from it."""
    folder.mkdir()
    shutil.copy(whole / "state.previous.pt", folder)
    document = torch.load(whole / "state.pt", weights_only=True)
    change(document["learners"][0])
    torch.save(document, folder / "state.pt")
    restore_learner(learner, read_state(folder), 0, folder)


def weights(state: State) -> State:
    found: State = state["critics" if "critics" in state else "network"]
    return found


def optimiser(state: State) -> State:
    found: State = state["critic_optimiser" if "critic_optimiser" in state else "optimiser"]
    return found


def first_weight(value: torch.Tensor) -> Callable[[State], object]:
    return lambda state: weights(state).update({next(iter(weights(state))): value})


OF_ALL: dict[str, Callable[[State], object]] = {
    "nothing": lambda state: state.clear(),
    "a weight less": lambda state: weights(state).popitem(),
    "another shape": first_weight(torch.zeros(3, 3, 3)),
    "no weights": lambda state: state.update({"critics" if "critics" in state else "network": None}),
    "no numbers": lambda state: weights(state).update({key: one * torch.nan for key, one in weights(state).items()}),
    "an empty optimiser": lambda state: optimiser(state).clear(),
    "no groups": lambda state: optimiser(state).update(param_groups=[]),
    "moments of no parameter": lambda state: optimiser(state)["state"].update({10_000: {}}),
    "moments of another shape": lambda state: optimiser(state)["state"][0].update(exp_avg=torch.zeros(7)),
    "moments of no numbers": lambda state: optimiser(state)["state"][0].update(exp_avg_sq="x"),
    "huge number": lambda state: state.update(rounds=10**30),
}
OF_ONE: dict[tuple[str, str], Callable[[State], object]] = {
    ("prices", "no generator"): lambda state: state.pop("generator"),
    ("prices", "odd generator"): lambda state: state.update(generator={"state": {"state": "x", "inc": "1"}}),
    ("prices", "centre of seven"): lambda state: state.update(centre=torch.zeros(7)),
    ("prices", "no centre"): lambda state: state.update(centre=None),
    ("prices", "spread of 0"): lambda state: state.update(spread=torch.zeros(2)),
    ("prices", "rounds as text"): lambda state: state.update(rounds="x"),
    ("prices", "other rounds"): lambda state: state.update(rounds=7),
    ("policy-gradient", "other rounds"): lambda state: state.update(rounds=-1),
    ("policy-gradient", "scale of one"): lambda state: state.update(scale=[1.0]),
    ("policy-gradient", "scale of 0"): lambda state: state.update(scale=[0.0, 0.0]),
    ("policy-gradient", "scale of no numbers"): lambda state: state.update(scale=[torch.nan, 1.0]),
    ("chsac", "endless updates"): lambda state: state.update(owed=1e300),
    ("chsac", "updates as text"): lambda state: state.update(updates="many"),
    ("chsac", "temperature"): lambda state: state["temperature"].update(log=torch.tensor(torch.inf)),
    ("chsac", "multipliers"): lambda state: state["multipliers"].update(values=torch.tensor(-1.0)),
    ("chsac", "closed option"): lambda state: state["replay"]["rows"][:, 1].fill_(999),
    ("chsac", "reward"): lambda state: state["replay"]["figures"].fill_(torch.nan),
}


@pytest.mark.parametrize("how", OF_ALL)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "prices" else pytest.mark.long) for name in TABLES]
)
def test_a_state_that_is_none_is_told_as_damage(
    name: str, how: str, made: dict[str, Path], learners: dict[str, Learner], tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=r"state\.pt is damaged: .*ends after round 0: `cp .*state\.previous\.pt "):
        restored(learners[name], made[name], tmp_path / "copy", OF_ALL[how])


@pytest.mark.parametrize(("name", "how"), OF_ONE)
def test_what_an_algorithm_keeps_beside_weights_is_looked_at(
    name: str, how: str, made: dict[str, Path], learners: dict[str, Learner], tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=r"state\.pt is damaged: "):
        restored(learners[name], made[name], tmp_path / "copy", OF_ONE[name, how])


@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_state_leaves_log_and_settings_as_they_are(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="is damaged"):
        gone_on(made[name], tmp_path / "copy", OF_ALL["a weight less"])
    for file in ("log.csv", "settings.toml"):
        assert (tmp_path / "copy" / file).read_bytes() == (made[name] / file).read_bytes()


@pytest.mark.parametrize("name", TABLES)
def test_a_whole_state_is_gone_on_from(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    gone_on(made[name], tmp_path / "copy", lambda _: None)
    assert len((tmp_path / "copy" / "log.csv").read_text(encoding="utf-8").splitlines()) == 3
