"""`slurm-energy train`: imitation as before, rounds with their folder, and an end by Ctrl-C that is no loss."""

from pathlib import Path

import pytest
import tiny_learner
import torch

from slurm_energy.cli.main import main
from slurm_energy.cli.progress import main_figures
from slurm_energy.cli.train import ALGORITHMS as NAMED
from slurm_energy.cli.train import IMITATION
from slurm_energy.learning.algorithms import ALGORITHMS
from slurm_energy.policy.checkpoint_files import check_files

LEARNING_TESTS = Path(__file__).parents[1] / "learning"
NETWORK = """
hidden = 12
heads = 3
device_layers = 1
task_layers = 1
top_layers = 1
chebyshev_order = 2
pooled_vertices = 1
quantiles = 4
"""


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(LEARNING_TESTS))
    monkeypatch.setitem(ALGORITHMS, "tiny", tiny_learner.ALGORITHM)
    path = tmp_path / "train.toml"
    path.write_text(
        f'[training]\nalgorithm = "tiny"\nworld = "lab"\nrounds = 4\nsave_every_rounds = 50\n[network]{NETWORK}'
    )
    return path


def test_the_command_names_the_algorithms_that_there_are() -> None:
    assert set(NAMED) == {IMITATION, *ALGORITHMS}


def test_a_training_in_rounds_prints_its_checkpoints_and_nothing_else_on_stdout(
    config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--config", str(config), "--output", str(tmp_path / "made"), "--seed", "3"]) == 0
    said = capfd.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"training {tmp_path / 'made'}: 4 rounds of tiny on lab"
    assert f"checkpoint {tmp_path / 'made' / 'best'}: gnn tiny-seed3-round3" in lines
    assert f"checkpoint {tmp_path / 'made' / 'last'}: gnn tiny-seed3-round4" in lines
    told = [line for line in said.err.splitlines() if "round " in line]
    assert [line.split()[2] for line in told] == ["1/4", "2/4", "3/4", "4/4"]
    assert "score=-2 loss=" in told[0]
    assert main(["train", "--resume", str(tmp_path / "made"), "--rounds", "5"]) == 0
    assert check_files(tmp_path / "made" / "last").version == "tiny-seed3-round5"


def test_a_training_that_never_learned_says_so_and_calls_nothing_best(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "short.toml"
    file.write_text(
        '[training]\nalgorithm = "chsac"\nworld = "lab"\nrounds = 2\n[episodes]\nhours = 0.2\n'
        f"[learner]\nwarm_up_transitions = 10000\n[network]{NETWORK}"
    )
    assert main(["train", "--config", str(file), "--output", str(tmp_path / "made")]) == 0
    said = capfd.readouterr()
    assert "nothing was learned: the replay came to " in said.err
    assert "steps, fewer than learner.warm_up_transitions" in said.err
    assert not (tmp_path / "made" / "best").exists()
    assert "best" not in said.out


def test_where_it_learns_is_said_and_kept(config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    assert main(["train", "--config", str(config), "--output", str(made), "--rounds", "1", "--device", "cpu"]) == 0
    assert capfd.readouterr().err.startswith("slurm-energy: learns on cpu\n")
    settings = (made / "settings.toml").read_text(encoding="utf-8")
    assert 'device = "cpu"' in settings
    assert 'learned_on = "cpu"' in settings


@pytest.mark.parametrize("way", ["in rounds", "by imitation"])
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_made(
    way: str, config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (
        ["--config", str(config)] if way == "in rounds" else ["--world", "lab", "--teacher", "oracle", "--hours", "1"]
    )
    assert main(["train", *words, "--output", str(tmp_path / "made"), "--device", "cuda:1"]) == 1
    assert "setting training.device is 'cuda:1', but torch" in capfd.readouterr().err
    assert not (tmp_path / "made").exists()


def test_options_go_before_the_file(config: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    words = ["--rounds", "1", "--world", "chsac", "--version", "v2", "--collectors", "1", "--threads", "1"]
    assert main(["train", "--config", str(config), "--output", str(made), *words]) == 0
    text = (made / "settings.toml").read_text()
    assert 'world = "chsac"' in text and "rounds = 1\n" in text
    assert check_files(made / "last").version == "v2-round1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--world", "lab", "--output", "x"], "--algorithm is missing"),
        (["--algorithm", "chsac", "--world", "lab"], "--output with a new folder is missing"),
        (["--algorithm", "chsac", "--output", "x", "--teacher", "greedy"], "--teacher is no option of"),
        (["--algorithm", "chsac", "--output", "x", "--epochs", "3"], "--epochs is no option of"),
        (["--teacher", "greedy", "--output", "x", "--rounds", "3"], "--rounds is no option of the algorithm imitation"),
        (["--teacher", "greedy", "--output", "x", "--start-from", "y"], "--start-from is no option"),
        (["--resume", "y", "--output", "x"], "leave --output out"),
        (["--teacher", "greedy", "--output", "x", "--distributed"], "--distributed is no option"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    assert message in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--algorithm", "chsak", "--world", "lab", "--output", "x"], "did you mean chsac?"),
        (
            ["--algorithm", "imitation", "--world", "lab", "--output", "x"],
            "imitation needs its teacher: give --teacher",
        ),
        (["--teacher", "greedy", "--world", "lab", "--output", "x"], "imitation needs its hours: give --hours"),
        (["--resume", "nothing"], "nothing holds no training"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 1
    assert message in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_imitation_by_options_and_by_a_file_gives_the_same_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    network, file = tmp_path / "network.toml", tmp_path / "train.toml"
    network.write_text(NETWORK)
    file.write_text(
        f'[training]\nalgorithm = "imitation"\nworld = "lab"\nseed = 2\n[network]{NETWORK}'
        '[episodes]\nteacher = "greedy"\nhours = 0.3\n[learner]\nepochs = 9\nbatch_size = 32\n'
    )
    words = ["--world", "lab", "--teacher", "greedy", "--hours", "0.3", "--epochs", "1", "--seed", "2"]
    assert main(["train", *words, "--network", str(network), "--output", str(tmp_path / "one")]) == 0
    assert f"checkpoint {tmp_path / 'one'}: gnn 1\n" in capfd.readouterr().out
    assert main(["train", "--config", str(file), "--epochs", "1", "--output", str(tmp_path / "two")]) == 0
    one, two = check_files(tmp_path / "one"), check_files(tmp_path / "two")
    assert one.weights_sha256 == two.weights_sha256
    assert one.metrics["decisions"] > 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[training]\nworld = "lab"\nrounds = 3\n', r"\[training\] has no 'rounds'"),
        ('[training]\nworld = "lab"\n[learner]\nseed = 3\n', "said once"),
        ('[training]\nworld = "lab"\n[learner]\nepoch = 3\n', "did you mean epochs?"),
        ('[training]\nworld = "lab"\n[episodes]\nruns = 0\n', "episodes.runs is 0"),
    ],
)
def test_a_file_that_imitation_cannot_use_is_refused(
    text: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.toml"
    file.write_text(text)
    words = ["--teacher", "greedy", "--hours", "0.3", "--output", str(tmp_path / "made")]
    assert main(["train", "--config", str(file), *words]) == 1
    assert message.replace("\\", "") in capfd.readouterr().err


def test_the_score_is_shown_before_other_figures_and_times_are_not() -> None:
    figures = {"loss": 0.123456, "collect_seconds": 9.0, "a": 1.0, "b": 2.0, "score": -7.0, "experience": 5.0}
    assert main_figures(figures) == "score=-7 loss=0.1235 a=1"


def test_settings_of_the_package_go_by_name_and_others_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--config", "no-such", "--output", str(tmp_path / "new")]) == 2
    assert "no-such is neither a file nor one of the package's: shipped" in " ".join(capsys.readouterr().err.split())
    assert main(["train", "--config", "shipped", "--output", str(tmp_path / "no" / "parent")]) == 1
