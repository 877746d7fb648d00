"""A learned policy is checked as far as it can be without torch: by `config check`, and by the daemon at its start."""

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from weights_samples import safetensors_file

from slurm_energy.config import Config, PluginConfig, PolicyConfig
from slurm_energy.errors import ConfigError, PolicyError
from slurm_energy.graph import schema
from slurm_energy.policy.checkpoint_files import (
    DOCUMENT_FILE,
    WEIGHTS_FILE,
    CheckpointMetadata,
    check_files,
    files_mark,
    sha256,
)
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.registry import LEARNED, baseline_of, create_policy, known_policy_names, policy_names
from slurm_energy.policy.site.check import check_site, site_faults

WEIGHTS = safetensors_file({"weight": [1.0, 2.0], "bias": [0.5]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint as far as it is looked at here: whether the tensors are the network's needs torch."""
    made = tmp_path / "checkpoint"
    made.mkdir()
    write_document(made, schema.SCHEMA_VERSION)
    (made / WEIGHTS_FILE).write_bytes(WEIGHTS)
    return made


def write_document(folder: Path, schema_version: int, weights: bytes = WEIGHTS) -> None:
    metadata = CheckpointMetadata(
        name="gnn",
        version="1",
        architecture=NetworkConfig(),
        training_data_sha256="0" * 64,
        created_at_seconds=1.0,
        schema_version=schema_version,
        weights_sha256=sha256(weights),
    )
    (folder / DOCUMENT_FILE).write_text(json.dumps(metadata.document()))


def learned(checkpoint: object, **policy: Any) -> Config:
    return replace(Config(), policy=PolicyConfig(name="gnn", checkpoint=str(checkpoint), **policy))


def test_a_good_checkpoint_is_no_fault(folder: Path) -> None:
    assert list(site_faults(learned(folder))) == []
    assert check_files(folder).version == "1"


def test_a_learned_policy_without_a_checkpoint_is_a_fault_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"policy\.checkpoint is empty, policy gnn needs one: name the folder"):
        check_site(learned(""))


def test_every_fault_of_the_files_is_told_before_anything_is_started(folder: Path) -> None:
    (fault,) = site_faults(learned(folder / "none"))
    assert fault == f"policy.checkpoint: checkpoint folder {folder}/none does not exist"
    write_document(folder, schema.SCHEMA_VERSION + 1)
    (fault,) = site_faults(learned(folder))
    assert f"schema version {schema.SCHEMA_VERSION + 1} " in fault and f"has version {schema.SCHEMA_VERSION}" in fault


def test_damaged_weights_are_a_fault_before_anything_is_started(folder: Path) -> None:
    damaged = {
        "is another": safetensors_file({"weight": [1.0, 3.0], "bias": [0.5]}),
        "is cut off": WEIGHTS[:-1],
        "is empty": b"",
    }
    for data in damaged.values():
        (folder / WEIGHTS_FILE).write_bytes(data)
        (fault,) = site_faults(learned(folder))
        assert f"policy.checkpoint: {folder / WEIGHTS_FILE} has SHA-256 " in fault


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        (WEIGHTS[:-1], "has 11 bytes of tensors, its header says 12"),
        (WEIGHTS[:20], "has 20 bytes, its header alone has"),
        (safetensors_file({"weight": [1.0, nan]}), "has values in tensor 'weight' that are not finite"),
        (safetensors_file({"weight": [inf, -inf]}), "has values in tensor 'weight' that are not finite"),
    ],
)
def test_damaged_weights_under_a_new_seal_are_a_fault_too(folder: Path, weights: bytes, complaint: str) -> None:
    write_document(folder, schema.SCHEMA_VERSION, weights)
    (folder / WEIGHTS_FILE).write_bytes(weights)
    (fault,) = site_faults(learned(folder))
    assert complaint in fault


def test_the_mark_of_the_files_tells_when_one_was_exchanged_or_has_gone(folder: Path) -> None:
    marks = [files_mark(folder)]
    (folder / WEIGHTS_FILE).write_bytes(WEIGHTS + b" ")
    marks.append(files_mark(folder))
    write_document(folder, schema.SCHEMA_VERSION + 10)
    marks.append(files_mark(folder))
    assert files_mark(folder) == marks[-1]
    (folder / WEIGHTS_FILE).unlink()
    marks += [files_mark(folder), files_mark(folder / "none"), files_mark(Path("a\0b"))]
    assert len(set(marks)) == len(marks) - 1, "no folder at all is the same as one that cannot be"


def test_the_wait_for_the_policy_must_leave_time_for_the_baseline(folder: Path) -> None:
    config = replace(learned(folder, timeout_milliseconds=50), plugin=PluginConfig(deadline_milliseconds=50))
    (fault,) = site_faults(config)
    assert fault.startswith(
        "policy.timeout_milliseconds is 50, it must be below the 50 of plugin.deadline_milliseconds"
    )
    assert list(site_faults(replace(config, plugin=PluginConfig(deadline_milliseconds=51)))) == []
    assert list(site_faults(replace(config, policy=replace(config.policy, name="oracle")))) == []


def test_learned_policies_are_known_and_not_among_those_made_of_settings_alone() -> None:
    assert set(known_policy_names()) == {*policy_names(), *LEARNED}
    assert not LEARNED & set(policy_names())
    with pytest.raises(PolicyError, match=r"'magic' does not exist; known: .*, gnn"):
        create_policy(replace(Config(), policy=PolicyConfig(name="magic")))


def test_the_baseline_is_never_the_learned_policy_itself() -> None:
    assert baseline_of(learned("/x")).name == "oracle"
    assert baseline_of(learned("/x", baseline="slurm-default")).name == "slurm-default"
