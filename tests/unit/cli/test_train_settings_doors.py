"""`slurm-energy train` and `config check` on files that are none: a sentence and an exit code, whatever is in them."""

from pathlib import Path

import pytest

from slurm_energy.cli.main import main

HOSTILE = {
    "5001 digits": f"[training]\nseed = 1{'0' * 5000}\n",
    "5000 lists": f"[training]\nseed = {'[' * 5000}\n",
    "training is no table": "training = 3\n",
    "episodes is no table": "episodes = 3\n",
    "learner is no table": "learner = 3\n",
    "learner is a list": "[[learner]]\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize(
    "words",
    [
        ["--teacher", "greedy", "--hours", "1", "--world", "lab"],
        ["--algorithm", "prices", "--world", "lab"],
        ["--world", "lab"],
    ],
    ids=["imitation", "rounds", "as the file says"],
)
def test_a_hostile_file_of_a_training_is_refused(
    words: list[str], text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.toml"
    file.write_text(text, encoding="utf-8")
    assert main(["train", "--config", str(file), *words, "--output", str(tmp_path / "made")]) in {1, 2}
    assert "Traceback" not in capfd.readouterr().err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "value", [f"1{'0' * 400}", f"1{'0' * 5000}", "[" * 5000], ids=["401 digits", "5001 digits", "5000 lists"]
)
def test_a_hostile_value_of_the_daemon_is_refused(
    value: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "slurm-energy.toml"
    file.write_text(f"[policy]\nmax_slowdown = {value}\n", encoding="utf-8")
    assert main(["config", "check", str(file)]) == 1
    assert str(file) in capfd.readouterr().err


@pytest.mark.parametrize("device", ["cuda:9999", "gpu"])
def test_a_device_that_is_none_is_refused_with_the_bound(
    device: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--algorithm", "chsac", "--world", "lab", "--device", device, "--output", str(tmp_path / "made")]
    assert main(["train", *words]) == 1
    assert "cuda:N with N from 0 to 999" in capfd.readouterr().err
