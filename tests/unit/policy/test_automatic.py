"""`policy.name = "auto"`: the learned policy where it can be served, else the baseline, and never an error."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.config import Config, PluginConfig, PolicyConfig
from slurm_energy.daemon.app import main as daemon_main
from slurm_energy.daemon.decide import create_decider
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.policy import automatic
from slurm_energy.policy.automatic import AUTOMATIC, SHIPPED, checkpoint_folder, chosen_policy, shipped_folder
from slurm_energy.policy.checkpoint_files import WEIGHTS_FILE
from slurm_energy.policy.registry import create_policy
from slurm_energy.policy.site.check import site_faults, site_notes


def with_policy(**policy: Any) -> Config:
    return replace(Config(), policy=replace(PolicyConfig(), **policy))


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "missing_modules", lambda: ("torch",))


def test_a_new_installation_has_auto_and_the_shipped_checkpoint() -> None:
    policy = Config().policy
    assert (policy.name, policy.checkpoint, policy.baseline) == (AUTOMATIC, SHIPPED, "oracle")
    assert list(site_faults(Config())) == []


def test_with_torch_auto_is_the_learned_policy_and_nothing_else_changes() -> None:
    choice = chosen_policy(Config())
    assert choice.note == ""
    assert choice.config == with_policy(name="gnn")
    decider = create_decider(Config())
    assert isinstance(decider.policy, RemotePolicy)
    assert (decider.policy.name, decider.policy.baseline.name) == ("gnn", "oracle")


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("baseline", ["oracle", "slurm-default"])
def test_without_torch_auto_is_the_baseline_and_the_note_says_what_to_install(baseline: str) -> None:
    config = with_policy(baseline=baseline)
    choice = chosen_policy(config)
    assert choice.config == with_policy(name=baseline, baseline=baseline)
    assert choice.note == (
        f"policy {baseline} decides, because torch is not installed; to use the learned policy, run: pip install torch "
        "--index-url https://download.pytorch.org/whl/cpu && pip install './slurm-energy[daemon]', "
        "then: systemctl reload slurm-energyd"
    )
    assert create_decider(config).policy.name == create_policy(config).name == baseline
    assert list(site_faults(config)) == []


@pytest.mark.parametrize("name", ["slurm-default", "fixed-clock", "oracle", "gnn"])
def test_a_policy_that_the_site_names_is_never_exchanged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "missing_modules", lambda: ("torch",))
    assert chosen_policy(with_policy(name=name)).config.policy.name == name


def test_settings_under_which_the_learned_policy_cannot_be_served_are_no_fault_of_auto(tmp_path: Path) -> None:
    short = replace(Config(), plugin=PluginConfig(deadline_milliseconds=15))
    broken = with_policy(checkpoint=str(tmp_path / "none"))
    for config, word in ((short, "deadline_milliseconds"), (broken, "does not exist")):
        choice = chosen_policy(config)
        assert choice.config.policy.name == "oracle"
        assert choice.note.startswith("policy oracle decides, because the learned policy cannot be served; fix: ")
        assert word in choice.note
        assert list(site_faults(config)) == []
        assert list(site_faults(replace(config, policy=replace(config.policy, name="gnn")))) != []


def damaged_copy(folder: Path) -> Config:
    """Return settings with a copy of the shipped checkpoint that has lost its end."""
    shutil.copytree(shipped_folder(), folder)
    os.truncate(folder / WEIGHTS_FILE, 1000)
    return with_policy(checkpoint=str(folder))


def test_a_damaged_checkpoint_is_no_fault_of_auto_and_everybody_who_checks_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = damaged_copy(tmp_path / "damaged")
    note = chosen_policy(config).note
    start = "policy oracle decides, because the learned policy cannot be served; fix: policy.checkpoint: "
    assert note.startswith(start)
    assert f"{tmp_path}/damaged/{WEIGHTS_FILE} has SHA-256" in note
    assert list(site_faults(config)) == []
    assert list(site_notes(config)) == [note]
    file = tmp_path / "energy.toml"
    file.write_text(f'[policy]\ncheckpoint = "{tmp_path}/damaged"\n')
    assert daemon_main(["--check-config", "--config", str(file)]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("configuration is good\n", f"slurm-energyd: {note}\n")
    file.write_text(f'[policy]\nname = "gnn"\ncheckpoint = "{tmp_path}/damaged"\n')
    assert daemon_main(["--check-config", "--config", str(file)]) == 1


def test_a_learned_policy_that_serves_stays_where_the_next_checkpoint_is_damaged(tmp_path: Path) -> None:
    config = damaged_copy(tmp_path / "damaged")
    choice = chosen_policy(config, is_serving=True)
    assert choice.config == replace(config, policy=replace(config.policy, name="gnn"))
    assert choice.note.startswith(
        "the learned policy cannot be loaded again, the previous one stays: policy.checkpoint: "
    )
    for other in (with_policy(checkpoint=""), replace(config, plugin=PluginConfig(deadline_milliseconds=15))):
        assert chosen_policy(other, is_serving=True).config.policy.name == "oracle", "settings that serve no network"


def test_shipped_is_a_word_and_other_checkpoints_are_folders() -> None:
    assert checkpoint_folder(Config()) == shipped_folder()
    assert checkpoint_folder(with_policy(checkpoint="./shipped")) == Path("shipped")
    assert checkpoint_folder(with_policy(checkpoint="/a/b")) == Path("/a/b")
