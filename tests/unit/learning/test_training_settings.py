"""Settings of a training before it begins: bounds by name, worlds that are there, and options before everything."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_learner

from slurm_energy.cli.train import train as train_command
from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.learning.imitation_training import imitation_plan
from slurm_energy.learning.round_training import train_in_rounds
from slurm_energy.learning.settings_file import HOURS
from slurm_energy.learning.training_settings import resumed_settings, training_settings
from slurm_energy.settings import toml_text
from slurm_energy.twin.world.file import shipped_world
from slurm_energy.twin.world.writer import world_to_toml

PRICES: dict[str, Any] = {"training": {"algorithm": "prices", "world": "lab", "rounds": 1}}
NUMBERS = ["-1", "nan", "inf", "1e308", f"1{'0' * 400}", f"0x{'f' * 5000}", f"1{'0' * 5000}", "true", '"x"', "[[[1]]]"]
NO_TABLE = r"\[{}\] is 3, it must be a table: write \[{}\] on a line of its own"


def written(folder: Path, text: str) -> Path:
    path = folder / "train.toml"
    path.write_text(text, encoding="utf-8")
    return path


def with_worlds(folder: Path, *worlds: str, **episodes: Any) -> Path:
    tables = {**PRICES, "network": tiny_learner.NETWORK, "episodes": {**episodes, "worlds": list(worlds)}}
    return written(folder, toml_text(tables))


def own_world(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.toml"
    path.write_text(world_to_toml(replace(shipped_world("lab"), **changes)), encoding="utf-8")
    return path


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: value[:9])
@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("chsac", ["learner.capacity", "learner.updates_per_transition", "learner.discount", "episodes.hours"]),
        ("policy-gradient", ["learner.minibatches", "learner.clip", "learner.value_weight", "episodes.job_weights"]),
        ("prices", ["learner.epochs", "learner.clip", "episodes.hours", "training.threads", "network.sampling_rate"]),
    ],
)
def test_no_value_leaves_more_than_a_sentence_that_names_the_key(
    algorithm: str, keys: list[str], value: str, tmp_path: Path
) -> None:
    for key in keys:
        table, name = key.split(".")
        rest = f'algorithm = "{algorithm}"\nworld = "lab"\n'
        tables = f"[{table}]\n{name} = {value}\n" + (rest if table == "training" else f"[training]\n{rest}")
        with pytest.raises(ConfigError, match=f"{name}|is no TOML: Exceeds the limit"):
            training_settings(written(tmp_path, tables), {})


@pytest.mark.parametrize(
    "key",
    [
        *("training.seed", "training.threads", "episodes.hours", "episodes.runs", "episodes.most", "learner.epochs"),
        *("learner.batch_size", "learner.learning_rate", "learner.final_learning_rate_share", "learner.gradient_norm"),
        *("learner.clock_weight", "learner.objective_weight", "learner.pooling_weight"),
    ],
)
def test_imitation_has_bounds_too(key: str, tmp_path: Path) -> None:
    table, name = key.split(".")
    options = {"teacher": "greedy", "hours": None if name == "hours" else 1.0}
    for value in NUMBERS:
        path = written(tmp_path, f"[{table}]\n{name} = {value}\n")
        with pytest.raises(ConfigError, match=f"{table}.{name}|is no TOML: Exceeds the limit"):
            imitation_plan(path, {"world": "lab"}, options)


def test_imitation_refuses_an_empty_version_by_name() -> None:
    with pytest.raises(ConfigError, match=r"training\.version is empty.*leave it out"):
        imitation_plan(None, {"world": "lab", "version": ""}, {"teacher": "greedy", "hours": 1.0})


@pytest.mark.parametrize("table", ["training", "network", "episodes", "learner"])
def test_what_is_no_table_is_refused_as_such(table: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"{table} = 3\n")
    message = NO_TABLE.format(table, table)
    with pytest.raises(ConfigError, match=message):
        training_settings(path, {"algorithm": "prices", "world": "lab"})
    with pytest.raises(ConfigError, match=message):
        imitation_plan(path, {"world": "lab"}, {"teacher": "greedy", "hours": 1.0})


@pytest.mark.parametrize("deep", ["[" * 5000, f"{{a = {'[' * 40}{']' * 40}}}", "1\nworld" + ".a" * 5000 + " = 1"])
def test_a_file_that_is_nested_too_deeply_is_refused(deep: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no TOML|nested deeper than 32"):
        training_settings(written(tmp_path, f"[training]\nseed = {deep}\n"), {"algorithm": "prices", "world": "lab"})


@pytest.mark.parametrize("name", ["nosuch", "", "/nowhere.toml", "/dev/zero"])
def test_every_world_of_the_episodes_is_looked_at_before_the_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"setting episodes\.worlds: "):
        training_settings(with_worlds(tmp_path, "lab", f"{name}:hours=2"), {})


def test_a_world_without_a_generator_is_refused_before_the_work(tmp_path: Path) -> None:
    world = own_world(tmp_path, workload="", workload_settings={})
    with pytest.raises(ConfigError, match=r"episodes\.worlds: world .*mine\.toml has no workload of its own"):
        training_settings(with_worlds(tmp_path, "lab", str(world)), {})


def test_a_training_does_not_go_on_when_any_of_its_worlds_changed(tmp_path: Path) -> None:
    world = own_world(tmp_path)
    config = with_worlds(tmp_path, "lab", f"{world}:time_watts=1", hours=0.3, max_jobs=5)
    train_in_rounds(training_settings(config, {}), tmp_path / "made")
    resumed_settings(tmp_path / "made", None, {"rounds": 2})
    world.write_text(world.read_text(encoding="utf-8").replace("nodes = 4", "nodes = 5"), encoding="utf-8")
    with pytest.raises(TrainingError, match=r"training\.world_sha256: "):
        resumed_settings(tmp_path / "made", None, {"rounds": 2})


def test_a_training_in_one_world_has_the_hash_that_it_had(tmp_path: Path) -> None:
    alone = training_settings(None, {"algorithm": "chsac", "world": "lab"}).run.world_sha256
    assert training_settings(None, {"algorithm": "prices", "world": "lab"}).run.world_sha256 == alone
    assert training_settings(with_worlds(tmp_path, "lab", "lab:hours=2"), {}).run.world_sha256 == alone
    assert training_settings(with_worlds(tmp_path, "lab", "chsac"), {}).run.world_sha256 != alone


def test_settings_under_their_former_names_are_read_and_written_under_the_present_ones(tmp_path: Path) -> None:
    config = with_worlds(tmp_path, "lab:most_jobs=5", "lab", most_jobs=7)
    config.write_text(config.read_text(encoding="utf-8") + "[learner]\nmost_advantage = 2.0\n", encoding="utf-8")
    settings = training_settings(config, {})
    assert [settings.episodes.in_turn(turn).max_jobs for turn in range(2)] == [5, 7]
    assert settings.learner.max_advantage == 2.0
    assert "\nmax_jobs = 7\n" in settings.text()
    assert "\nmax_advantage = 2.0\n" in settings.text()


def test_a_setting_under_both_of_its_names_is_refused(tmp_path: Path) -> None:
    config = with_worlds(tmp_path, most_jobs=7, max_jobs=7)
    with pytest.raises(ConfigError, match=r"\[episodes\] has both most_jobs and max_jobs"):
        training_settings(config, {})


@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [
        ("policy-gradient", "d1aaa7ead101b16f1bbb383541dd828a65cc256d66299d6366a694581c6e4bfa"),
        ("prices", "52bd0a8910ceb43b25c29ff9f63fc405610fd48f5abf7125bc89978f80ae443d"),
    ],
)
def test_new_names_of_settings_leave_the_hash_by_which_a_training_is_resumed(algorithm: str, digest: str) -> None:
    settings = training_settings(None, {"algorithm": algorithm, "world": "lab"})
    assert replace(settings, run=replace(settings.run, world_sha256="")).sha256() == digest


def test_hours_as_an_option_go_before_those_of_single_worlds(tmp_path: Path) -> None:
    config = with_worlds(tmp_path, "lab:hours=24,noise=0.5", "chsac: hours=12", "tum128:noise=0.4", hours=36.0)
    as_written = training_settings(config, {}).episodes
    assert [as_written.in_turn(turn).hours for turn in range(3)] == [24.0, 12.0, 36.0]
    found = training_settings(config, {}, episode_options={"hours": 2.0}).episodes
    assert [found.in_turn(turn).hours for turn in range(3)] == [2.0] * 3
    assert [found.in_turn(turn).noise for turn in range(3)] == [0.5, 0.3, 0.4]
    assert found.worlds == ("lab:noise=0.5", "chsac", "tum128:noise=0.4")


def test_a_world_as_an_option_beside_others_of_the_episodes_is_refused(tmp_path: Path) -> None:
    config = with_worlds(tmp_path, "lab", "chsac")
    with pytest.raises(ConfigError, match=r"--world tum128 is no world of an episode: \[episodes\] worlds names"):
        training_settings(config, {"world": "tum128"})
    assert training_settings(config, {"seed": 3}).run.seed == 3
    assert training_settings(with_worlds(tmp_path), {"world": "tum128"}).episodes.in_turn(0).world == "tum128"


@pytest.mark.parametrize("algorithm", ["chsac", "policy-gradient", "prices"])
def test_the_option_of_hours_has_the_bounds_of_every_algorithm(algorithm: str) -> None:
    (option,) = (one for one in train_command.params if one.name == "hours")
    assert (option.type.min, option.type.max) == HOURS  # type: ignore[attr-defined]  # a click.FloatRange
    for hours in HOURS:
        options = {"algorithm": algorithm, "world": "lab"}
        assert training_settings(None, options, episode_options={"hours": hours}).episodes.hours == hours
