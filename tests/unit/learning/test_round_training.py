"""Trainings in rounds: the same twice, the same after a stop, and refused where they could not go on."""

import csv
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny_learner
import torch
from small_networks import small_checkpoint
from torch import Tensor

from slurm_energy.errors import CheckpointError, ConfigError, SlurmEnergyError, TrainingError
from slurm_energy.learning import round_training
from slurm_energy.learning.algorithms import ALGORITHMS
from slurm_energy.learning.experience import episode_seed
from slurm_energy.learning.ranks import Ranks
from slurm_energy.learning.round_training import TrainingEnd, train_in_rounds
from slurm_energy.learning.rounds import RoundReport
from slurm_energy.learning.training_settings import TrainingSettings, resumed_settings, training_settings
from slurm_energy.learning.training_state import read_state
from slurm_energy.policy.gnn.checkpoint import read_checkpoint
from slurm_energy.settings import toml_text


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "tiny", tiny_learner.ALGORITHM)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


def write_config(folder: Path, **tables: Mapping[str, Any]) -> Path:
    path = folder / "train.toml"
    base: dict[str, Any] = {
        "training": {"algorithm": "tiny", "world": "lab", "save_every_rounds": 2, "rounds": 5},
        "network": tiny_learner.NETWORK,
        "episodes": {},
        "learner": {},
    }
    for name, table in tables.items():
        base[name] = {**base[name], **table}
    path.write_text(toml_text(base), encoding="utf-8")
    return path


def run(
    config: Path, folder: Path, *, told: list[RoundReport] | None = None, **options: Any
) -> tuple[TrainingEnd, dict[str, Tensor]]:
    end = train_in_rounds(training_settings(config, options), folder, report=(told if told is not None else []).append)
    return end, weights(folder)


def go_on(folder: Path, **options: Any) -> dict[str, Tensor]:
    train_in_rounds(resumed_settings(folder, None, options), folder, resumes=True)
    return weights(folder)


def weights(folder: Path) -> dict[str, Tensor]:
    return dict(read_checkpoint(folder / "last").tensors)


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "log.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def without_times(found: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if not name.endswith("_seconds")} for row in found]


def test_the_same_seed_gives_the_same_weights_and_another_one_others(config: Path, tmp_path: Path) -> None:
    _, first = run(config, tmp_path / "first")
    _, again = run(config, tmp_path / "again")
    _, other = run(config, tmp_path / "other", seed=1)
    assert equal(first, again)
    assert not equal(first, other)
    assert without_times(rows(tmp_path / "first")) == without_times(rows(tmp_path / "again"))


@pytest.mark.slow
@pytest.mark.parametrize("stopped_after", [2, 3])
def test_a_training_that_goes_on_ends_as_one_that_was_never_stopped(
    stopped_after: int, config: Path, tmp_path: Path
) -> None:
    _, whole = run(config, tmp_path / "whole")
    _, part = run(config, tmp_path / "part", rounds=stopped_after)
    gone_on = go_on(tmp_path / "part", rounds=5)
    assert not equal(part, gone_on)
    assert equal(gone_on, whole)
    assert without_times(rows(tmp_path / "part")) == without_times(rows(tmp_path / "whole"))
    for link in ("best", "last"):
        mine, theirs = (read_checkpoint(tmp_path / name / link) for name in ("part", "whole"))
        assert equal(mine.tensors, theirs.tensors)
        assert mine.metadata.version == theirs.metadata.version


def test_rounds_that_were_not_saved_are_run_again_and_stand_in_the_log_once(config: Path, tmp_path: Path) -> None:
    _, whole = run(config, tmp_path / "whole")
    run(config, tmp_path / "killed", rounds=3)
    killed = tmp_path / "killed"
    shutil.copy(killed / "state.previous.pt", killed / "state.pt")  # as if it had been killed before the last state
    assert read_state(killed).rounds == 2
    assert equal(go_on(killed, rounds=5), whole)
    assert [row["round"] for row in rows(killed)] == ["1", "2", "3", "4", "5"]
    assert without_times(rows(killed)) == without_times(rows(tmp_path / "whole"))
    assert sorted(path.name for path in (killed / "checkpoints").iterdir()) == ["best-000003", "last-000005"]


def test_two_collectors_learn_from_more_than_one_does(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slurm_energy.learning.collectors import InOrder

    monkeypatch.setattr(round_training, "create_episode_runner", lambda collector, count: InOrder(collector))
    _, in_order = run(config, tmp_path / "order", collectors=2, rounds=2)
    _, one = run(config, tmp_path / "one", collectors=1, rounds=2)
    assert not equal(in_order, one)


def test_the_folder_holds_what_was_used_and_what_was_made(config: Path, tmp_path: Path) -> None:
    told: list[RoundReport] = []
    end, _ = run(config, tmp_path / "made", told=told)
    folder = tmp_path / "made"
    assert (end.rounds, end.is_complete, sorted(end.checkpoints)) == (5, True, ["best", "last"])
    assert [report.number for report in told] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in folder.iterdir()) == [
        "best", "checkpoints", "last", "log.csv", "settings.toml", "state.previous.pt", "state.pt",
    ]  # fmt: skip
    again = training_settings(folder / "settings.toml", {})
    assert again.document() == training_settings(config, {}).document()
    found = rows(folder)
    assert [float(row["loss"]) for row in found] == pytest.approx([report.figures["loss"] for report in told])
    assert [row["late"] for row in found] == ["", "2", "3", "4", "5"]


def test_the_best_checkpoint_has_the_weights_that_earned_the_score(config: Path, tmp_path: Path) -> None:
    run(config, tmp_path / "made")
    best = read_checkpoint(tmp_path / "made" / "best")
    assert best.metadata.version == "tiny-seed0-round3"
    assert (best.metadata.metrics["score"], best.metadata.metrics["round"]) == (0.0, 3.0)
    _, after_two = run(config, tmp_path / "two", rounds=2)
    assert equal(best.tensors, after_two)  # those acted in round 3


def test_training_begins_with_the_weights_of_a_checkpoint(tmp_path: Path) -> None:
    config = write_config(tmp_path, learner={"learning_rate": 1e-12}, training={"rounds": 1})
    start = small_checkpoint(tmp_path / "start", seed=7)
    _, found = run(config, tmp_path / "made", start_from=str(start))
    given = read_checkpoint(start).tensors
    assert all(torch.allclose(found[name], tensor) for name, tensor in given.items())
    _, fresh = run(config, tmp_path / "fresh")
    assert not all(torch.allclose(fresh[name], tensor) for name, tensor in given.items())


def test_a_checkpoint_says_how_the_network_is_made_and_a_file_that_contradicts_is_refused(tmp_path: Path) -> None:
    start = small_checkpoint(tmp_path / "start")
    file = tmp_path / "short.toml"
    file.write_text('[training]\nalgorithm = "tiny"\nworld = "lab"\nrounds = 1\n', encoding="utf-8")
    run(file, tmp_path / "made", start_from=str(start))
    assert read_checkpoint(tmp_path / "made" / "last").metadata.architecture.hidden == 12
    go_on(tmp_path / "made", rounds=2)
    contradicting = write_config(tmp_path, network={"hidden": 24})
    with pytest.raises(ConfigError, match=r"\[network\] is not the network of checkpoint"):
        run(contradicting, tmp_path / "other", start_from=str(start))
    assert not (tmp_path / "other").exists()


def test_the_file_that_a_checkpoint_s_training_began_with_goes_on_with_it(tmp_path: Path) -> None:
    """As the batch script does: it gives --config with --resume, and the file leaves the network to the checkpoint."""
    start = small_checkpoint(tmp_path / "start")
    file = tmp_path / "short.toml"
    text = f'[training]\nalgorithm = "tiny"\nworld = "lab"\nrounds = 2\nstart_from = "{start}"\n'
    file.write_text(text, encoding="utf-8")
    run(file, tmp_path / "made", rounds=1)
    train_in_rounds(resumed_settings(tmp_path / "made", file, {}), tmp_path / "made", resumes=True)
    _, whole = run(file, tmp_path / "whole")
    assert equal(weights(tmp_path / "made"), whole)
    file.write_text(f"{text}[network]\nhidden = 24\n", encoding="utf-8")
    with pytest.raises(TrainingError, match=r"network\.hidden: 24, was 12"):
        resumed_settings(tmp_path / "made", file, {"rounds": 3})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, r"training\.seed: 1, was 0"),
        ({"collectors": 2}, r"training\.collectors: 2, was 1"),
        ({"world": "chsac"}, r"training\.world: \"chsac\", was \"lab\""),
    ],
)
def test_other_settings_than_the_trainings_own_are_refused(
    options: dict[str, Any], message: str, config: Path, tmp_path: Path
) -> None:
    run(config, tmp_path / "made", rounds=1)
    with pytest.raises(TrainingError, match=message):
        resumed_settings(tmp_path / "made", None, {**options, "rounds": 3})


def test_a_training_may_go_on_on_another_device(config: Path, tmp_path: Path) -> None:
    run(config, tmp_path / "made", rounds=1, device="cpu")
    settings = resumed_settings(tmp_path / "made", None, {"device": "cuda:1", "rounds": 2})
    assert (settings.run.device, settings.run.learned_on) == ("cuda:1", "")
    go_on(tmp_path / "made", rounds=2, device="cuda:1")  # where it does is an argument: the CPU without one
    kept = (tmp_path / "made" / "settings.toml").read_text(encoding="utf-8")
    assert 'device = "cuda:1"' in kept
    assert 'learned_on = "cpu"' in kept


def test_a_gpu_without_memory_left_is_told_of(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absorb(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tiny_learner.TinyLearner, "absorb", absorb)
    with pytest.raises(TrainingError, match="memory ran out in round 1: give the learner smaller batches"):
        run(config, tmp_path / "made")


class MixedRanks(Ranks):
    """Two ranks of which the other one has whatever this one has not."""

    def any_of(self, flag: bool) -> bool:
        return True


def test_ranks_on_the_cpu_and_on_gpus_are_not_mixed(config: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="some ranks learn on the CPU and some on a GPU"):
        train_in_rounds(training_settings(config, {}), tmp_path / "made", ranks=MixedRanks())
    assert not (tmp_path / "made").exists()


def test_a_file_with_other_tables_is_refused_with_every_difference(config: Path, tmp_path: Path) -> None:
    run(config, tmp_path / "made", rounds=1)
    other = write_config(tmp_path, learner={"noise": 0.5}, episodes={"length": 9})
    with pytest.raises(TrainingError, match=r"(?s)episodes\.length: 9, was 4.*learner\.noise: 0\.5, was 0\.1"):
        resumed_settings(tmp_path / "made", other, {})


def test_a_world_that_changed_is_refused(tmp_path: Path) -> None:
    from slurm_energy.twin.world.file import shipped_world
    from slurm_energy.twin.world.writer import world_to_toml

    world = tmp_path / "mine.toml"
    world.write_text(world_to_toml(shipped_world("lab")), encoding="utf-8")
    config = write_config(tmp_path, training={"world": str(world), "rounds": 1})
    run(config, tmp_path / "made")
    world.write_text(world.read_text(encoding="utf-8").replace("nodes = 4", "nodes = 5"), encoding="utf-8")
    with pytest.raises(TrainingError, match=r"training\.world_sha256: "):
        resumed_settings(tmp_path / "made", None, {"rounds": 2})


def test_settings_that_were_edited_in_the_folder_are_refused(config: Path, tmp_path: Path) -> None:
    run(config, tmp_path / "made", rounds=1)
    file = tmp_path / "made" / "settings.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("noise = 0.1", "noise = 0.2"), encoding="utf-8")
    with pytest.raises(TrainingError, match=r"settings\.toml says: the file was changed"):
        go_on(tmp_path / "made", rounds=2)


def test_a_training_that_is_done_says_how_to_go_on(config: Path, tmp_path: Path) -> None:
    run(config, tmp_path / "made")
    with pytest.raises(TrainingError, match="has done 5 of 5 rounds: give --rounds"):
        go_on(tmp_path / "made")


@pytest.mark.parametrize("left", ["nothing", "an earlier one", "half of one"])
def test_what_was_ended_between_its_last_state_and_its_last_checkpoint_is_finished(
    left: str, config: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    run(config, made, rounds=2)
    shutil.copytree(made / "last", tmp_path / "earlier")
    found = go_on(made, rounds=5)
    (made / "last").unlink()
    if left != "nothing":
        (made / "last").symlink_to(tmp_path / "earlier")
    if left == "half of one":
        next((tmp_path / "earlier").glob("*.safetensors")).unlink()
    again = go_on(made)
    assert all(torch.equal(tensor, found[name]) for name, tensor in again.items())
    with pytest.raises(TrainingError, match="has done 5 of 5 rounds"):
        go_on(made)


def test_folders_that_are_in_the_way_or_hold_nothing_are_refused(config: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(TrainingError, match="exists: resume with --resume"):
        run(config, tmp_path / "there")
    with pytest.raises(TrainingError, match="none of made does not exist"):
        run(config, tmp_path / "none" / "made")
    with pytest.raises(TrainingError, match="holds no training"):
        resumed_settings(tmp_path / "there", None, {})


def test_a_name_that_no_checkpoint_can_have_is_refused_before_the_work(config: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'a b-round0'"):
        run(config, tmp_path / "made", version="a b")
    assert not (tmp_path / "made").exists()


def test_an_episode_that_fails_leaves_a_training_that_goes_on(tmp_path: Path) -> None:
    third = episode_seed(0, 3, 0)
    config = write_config(
        tmp_path, episodes={"fault": "raises", "faulty_seed": third}, training={"save_every_rounds": 50}
    )
    with pytest.raises(TrainingError, match=f"episode of seed {third}: ValueError: nothing comes of {third}"):
        run(config, tmp_path / "made")
    assert read_state(tmp_path / "made").rounds == 2


def test_a_training_that_fails_in_its_first_round_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    unlucky = write_config(tmp_path, episodes={"fault": "raises"})
    with pytest.raises(TrainingError, match="nothing comes of"):
        run(unlucky, tmp_path / "made")
    assert not (tmp_path / "made").exists()
    run(write_config(tmp_path), tmp_path / "made", rounds=1)
    with pytest.raises(TrainingError, match=r"no longer finite after round 1 \(.*lower the learning rate$"):
        run(write_config(tmp_path, learner={"breaks_at": 1}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_training_that_goes_on_and_fails_keeps_its_folder(tmp_path: Path) -> None:
    third = episode_seed(0, 3, 0)
    config = write_config(tmp_path, episodes={"fault": "raises", "faulty_seed": third})
    run(config, tmp_path / "made", rounds=2)
    with pytest.raises(TrainingError, match="nothing comes of"):
        go_on(tmp_path / "made", rounds=5)
    assert read_state(tmp_path / "made").rounds == 2


def test_a_folder_that_was_there_before_is_kept_whatever_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_config(tmp_path, episodes={"fault": "raises"})
    monkeypatch.setattr(Ranks, "any_of", lambda self, flag: True)  # asked to stop before the first round
    monkeypatch.setattr(round_training, "_check_alike", lambda device, ranks: None)
    assert train_in_rounds(training_settings(config, {}), tmp_path / "made").rounds == 0
    monkeypatch.undo()
    monkeypatch.setitem(ALGORITHMS, "tiny", tiny_learner.ALGORITHM)
    with pytest.raises(TrainingError, match="nothing comes of"):
        go_on(tmp_path / "made")
    assert read_state(tmp_path / "made").rounds == 0


def test_weights_that_are_no_numbers_end_the_training_and_leave_the_state_before(tmp_path: Path) -> None:
    config = write_config(tmp_path, learner={"breaks_at": 3})
    with pytest.raises(TrainingError, match="no longer finite after round 3"):
        run(config, tmp_path / "made")
    assert read_state(tmp_path / "made").rounds == 2


def test_a_signal_between_rounds_stops_with_a_state_to_resume_from(config: Path, tmp_path: Path) -> None:
    _, whole = run(config, tmp_path / "whole")

    def told(report: RoundReport) -> None:
        if report.number == 3:
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    end = train_in_rounds(training_settings(config, {}), tmp_path / "made", report=told)
    assert (end.rounds, end.is_complete, set(end.checkpoints)) == (3, False, {"best"})
    assert signal.getsignal(signal.SIGTERM) is before
    assert equal(go_on(tmp_path / "made"), whole)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"learner": {"learning_rat": 0.1}}, r"\[learner\] has no 'learning_rat'; did you mean learning_rate\?"),
        ({"episodes": {"lenght": 3}}, r"\[episodes\] has no 'lenght'; did you mean length\?"),
        ({"network": {"hiden": 3}}, r"\[network\] has no 'hiden'; did you mean hidden\?"),
        ({"training": {"round": 3}}, r"\[training\] has no 'round'; did you mean rounds\?"),
        ({"learner": {"updates": 1.5}}, r"learner\.updates is 1\.5, it must be a whole number"),
        ({"learner": {"learning_rate": 2}}, r"learning rate 2\.0 is not between"),
        ({"episodes": {"fault": "burns"}}, r"episodes\.fault is 'burns', allowed: none, raises"),
        ({"episodes": {"world": "lab"}}, "said once"),
        ({"training": {"rounds": 0}}, r"training\.rounds is 0, it must be between 1"),
        ({"training": {"algorithm": "chsak"}}, r"no algorithm 'chsak' learns in rounds; did you mean chsac\?"),
        ({"training": {"world": "labb"}}, "labb"),
        ({"training": {"collectors": 1010}}, r"training\.collectors is 1010"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    tables: dict[str, dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SlurmEnergyError, match=message):
        training_settings(write_config(tmp_path, **tables), {})


def test_a_table_that_is_unknown_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text("[learners]\nnoise = 1.0\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"train\.toml: has no 'learners'; did you mean learner\?"):
        training_settings(path, {"algorithm": "tiny", "world": "lab"})


def test_options_go_before_the_file_and_those_not_given_do_not(tmp_path: Path) -> None:
    config = write_config(tmp_path, training={"seed": 4})
    found: TrainingSettings = training_settings(config, {"rounds": 7, "seed": None}, episode_options={"length": 2})
    assert (found.run.rounds, found.run.seed, found.episodes.length) == (7, 4, 2)


def test_without_world_or_algorithm_it_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match="needs its algorithm: give --algorithm"):
        training_settings(None, {"world": "lab"})
    with pytest.raises(ConfigError, match="needs its world: give --world"):
        training_settings(None, {"algorithm": "chsac"})
