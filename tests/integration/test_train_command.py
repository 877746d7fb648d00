"""`slurm-energy train` and what becomes of its checkpoint: in the arena, and in the daemon's list of policies."""

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.cli.main import main

NETWORK = "hidden = 12\nheads = 3\ndevice_layers = 1\ntask_layers = 1\ntop_layers = 1\nquantiles = 4\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint that the command wrote; what it printed lies beside it."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "network.toml").write_text(NETWORK, encoding="utf-8")
    assert main(words(folder / "first", "--network", str(folder / "network.toml"))) == 0
    return folder / "first"


def words(output: Path, *more: str) -> list[str]:
    command = ["train", "--world", "lab", "--teacher", "price:V=20", "--hours", "0.5", "--epochs", "1"]
    return [*command, "--device", "cpu", "--version", "7.1", "--output", str(output), *more]


def test_help_ends_with_an_example(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("Usage: slurm-energy train [OPTIONS]")
    assert " ".join(printed.split()).endswith(
        "Example: slurm-energy train --world lab --algorithm chsac --config train.toml --rounds 200 --output first"
    )
    for option in ("--world", "--teacher", "--hours", "--output", "--runs", "--epochs", "--network", "--threads"):
        assert option in printed


def test_a_training_prints_its_checkpoint_and_what_was_measured(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again"
    assert main(words(again, "--network", str(trained.parent / "network.toml"))) == 0
    captured = capfd.readouterr()
    first, *figures = captured.out.splitlines()
    assert first == f"checkpoint {again}: gnn 7.1"
    named = {line.split()[0]: float(line.split()[1]) for line in figures}
    document = json.loads((again / "checkpoint.json").read_text(encoding="utf-8"))
    assert named == pytest.approx(document["metrics"], rel=1e-4)
    assert set(named) == {"loss", "agreement", "clock_agreement", "decisions"}
    assert captured.err == "slurm-energy: learns on cpu\n"
    one, two = ((folder / "weights.safetensors").read_bytes() for folder in (trained, again))
    assert one == two


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--teacher", "prise"], 1, "prise"),
        (["--world", "nowhere"], 1, "not in the package"),
        (["--hours", "0"], 2, "--hours"),
        (["--network", "/nowhere.toml"], 2, "does not exist"),
        (["--version", "7 1"], 1, "checkpoint's version is '7 1'"),
        (["--output", "/nowhere/first"], 1, "folder /nowhere of checkpoint first does not exist"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(
    more: list[str], code: int, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tmp_path / "first", *more)) == code
    said = capfd.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "first").exists()


def test_a_checkpoint_is_never_overwritten(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (trained / "weights.safetensors").read_bytes()
    assert main(words(trained, "--seed", "1")) == 1
    assert f"checkpoint {trained} exists: name a new folder" in capfd.readouterr().err
    assert (trained / "weights.safetensors").read_bytes() == before


def test_the_arena_prints_the_network_beside_its_teacher(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    policies = ["price:V=20", f"gnn:checkpoint={trained}", f"daemon/gnn:checkpoint={trained},open=1"]
    given = [word for policy in policies for word in ("--policy", policy)]
    path = tmp_path / "arena.json"
    code = main(
        ["arena", "run", "--world", "lab", "--hours", "0.5", "--drain", "--workers", "1", *given, "--json", str(path)]
    )
    assert code == 0
    printed = capfd.readouterr().out
    document = json.loads(path.read_text(encoding="utf-8"))
    assert [run["policy"] for run in document["runs"]] == policies
    assert document["failures"] == []
    jobs = [(run["figures"]["completed_jobs"], run["figures"]["unfinished_jobs"]) for run in document["runs"]]
    assert jobs[0][0] > 5 and jobs == [(jobs[0][0], 0)] * 3
    assert any(line.lstrip().startswith("gnn:") for line in printed.splitlines())


def shown(capfd: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main(["policy", "show", "gnn", "--json", *more]) == 0
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    return document


def test_the_daemon_s_network_is_shown_without_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_ENERGY_POLICY_NAME", "oracle")
    monkeypatch.setenv("SLURM_ENERGY_POLICY_CHECKPOINT", "")
    facts = shown(capfd)
    assert (facts["name"], facts["configured"]) == ("gnn", False)
    assert facts["version"] == "none: policy.checkpoint is empty"
    assert main(["policy", "show", "gnn"]) == 0
    assert "none: policy.checkpoint is empty" in capfd.readouterr().out


def test_the_daemon_s_network_is_shown_with_its_checkpoint(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_ENERGY_POLICY_CHECKPOINT", str(trained))
    monkeypatch.setenv("SLURM_ENERGY_POLICY_NAME", "gnn")
    facts = shown(capfd)
    assert (facts["version"], facts["configured"]) == ("7.1", True)
    monkeypatch.setenv("SLURM_ENERGY_POLICY_CHECKPOINT", str(trained / "none"))
    assert main(["policy", "show", "gnn"]) == 1
    assert "does not exist" in capfd.readouterr().err


def test_a_configuration_that_serves_the_checkpoint_is_good_and_one_without_is_not(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "slurm-energy.toml"
    path.write_text(f'[policy]\nname = "gnn"\ncheckpoint = "{trained}"\n', encoding="utf-8")
    assert main(["config", "check", str(path)]) == 0
    assert f"{path} is good." in capfd.readouterr().out
    path.write_text('[policy]\nname = "gnn"\ncheckpoint = ""\n', encoding="utf-8")
    assert main(["config", "check", str(path)]) == 1
    assert "checkpoint" in capfd.readouterr().err
