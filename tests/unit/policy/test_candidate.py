"""A candidate's folder: what was written is read again, each part alone, and nothing damaged is used."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.errors import CandidateError
from slurm_energy.policy.automatic import shipped_folder
from slurm_energy.policy.candidate import (
    CandidatePolicy,
    NameClocks,
    SiteEstimates,
    TrainingData,
    read_candidate,
    write_candidate,
)
from slurm_energy.policy.registry import create_policy

CLOCK = LearnedClock(sm_clock_mhz=1110, default_clock_mhz=1410, slowdown=0.02, error=0.004, energy_change=-0.11, runs=9)
ESTIMATES = SiteEstimates(clocks=(NameClocks(user_id=1000, group="train", clocks={GpuTypeName("a100"): CLOCK}),))
WHOLE = CandidatePolicy(
    candidate_id="20260301-1",
    made_at_seconds=1e9,
    parent="20260228-1",
    seeds=(3, 4),
    data=TrainingData(cluster="lab", jobs=812, measured_jobs=640, notes=("2 nights are missing",)),
    policy="total-cost:V=0,slowdown=0.4",
    estimates=ESTIMATES,
    figures={"saved_percent": 3.5},
)


def test_a_candidate_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = write_candidate(WHOLE, tmp_path / "one")
    assert replace(found, folder=None) == WHOLE
    assert found.parts == ("weights.json", "estimates.json")
    assert found.clocks_by_name()[1000, "train"][GpuTypeName("a100")] == CLOCK


def test_a_part_that_is_missing_leaves_the_sites_own(tmp_path: Path) -> None:
    found = write_candidate(replace(WHOLE, policy=None), tmp_path / "one")
    assert found.configured(Config()) == Config()
    weighed = write_candidate(replace(WHOLE, estimates=None), tmp_path / "two").configured(Config())
    assert create_policy(weighed).version.endswith(":V=0,slowdown=0.4")


def test_a_network_is_taken_as_a_checkpoint(tmp_path: Path) -> None:
    found = write_candidate(
        CandidatePolicy(candidate_id="n", made_at_seconds=1.0, network=shipped_folder()), tmp_path / "n"
    )
    config = found.configured(Config())
    assert (config.policy.name, config.policy.checkpoint) == ("gnn", str(tmp_path / "n" / "network"))


@pytest.mark.parametrize("name", ["weights.json", "estimates.json"])
def test_a_part_that_was_changed_or_removed_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "one"
    write_candidate(WHOLE, folder)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content + b" ")
    with pytest.raises(CandidateError, match="SHA-256"):
        read_candidate(folder)
    (folder / name).unlink()
    with pytest.raises(CandidateError, match=name):
        read_candidate(folder)


@pytest.mark.parametrize(
    "policy", ["no-such-rule", "total-cost:V=nan", "total-cost:V=-1", "total-cost:price=3", "clairvoyant"]
)
def test_weights_that_cannot_be_served_are_refused(tmp_path: Path, policy: str) -> None:
    with pytest.raises(CandidateError, match=r"weights\.json"):
        write_candidate(replace(WHOLE, policy=policy), tmp_path / "one")


def test_figures_and_estimates_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CandidateError, match="not finite"):
        replace(WHOLE, figures={"saved_percent": float("nan")})
    bad = SiteEstimates(time_factors={"a100": float("inf")})
    with pytest.raises(ValueError, match="finite"):
        write_candidate(replace(WHOLE, estimates=bad), tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_a_folder_of_another_candidate_is_not_replaced(tmp_path: Path) -> None:
    write_candidate(WHOLE, tmp_path / "one")
    assert write_candidate(WHOLE, tmp_path / "one").candidate_id == WHOLE.candidate_id
    with pytest.raises(CandidateError, match="holds candidate"):
        write_candidate(replace(WHOLE, candidate_id="other"), tmp_path / "one")


def test_a_folder_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(CandidateError, match="does not exist"):
        read_candidate(tmp_path)


def with_part(folder: Path, name: str, content: str) -> Path:
    """Put a part into a candidate's folder, with its digest in the document."""
    old = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / name).write_text(content)
    document = (folder / "candidate.toml").read_text()
    (folder / "candidate.toml").write_text(document.replace(old, hashlib.sha256(content.encode()).hexdigest()))
    return folder


def test_a_damaged_document_or_network_is_a_candidate_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    write_candidate(WHOLE, folder)
    document = (folder / "candidate.toml").read_text()
    (folder / "candidate.toml").write_text(document.replace("seeds = [3, 4]", "seeds = [inf]"))
    with pytest.raises(CandidateError, match="cannot be read"):
        read_candidate(folder)
    other = tmp_path / "two"
    write_candidate(CandidatePolicy(candidate_id="n", made_at_seconds=1.0, network=shipped_folder()), other)
    for file in (other / "network").iterdir():
        file.write_bytes(b"{")
    with pytest.raises(CandidateError, match="cannot be read"):
        read_candidate(other)


def test_weights_cannot_name_a_network(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    write_candidate(WHOLE, folder)
    with pytest.raises(CandidateError, match="a network comes as network/"):
        read_candidate(with_part(folder, "weights.json", '{"format": 1, "policy": "gnn"}'))


def test_number_beyond_what_a_double_holds_is_not_finite(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    write_candidate(WHOLE, folder)
    content = '{"format": 1, "clocks": [], "time_factors": {"a100": 1e999}, "power_factors": {}}'
    with pytest.raises(CandidateError, match="1e999 is not finite"):
        read_candidate(with_part(folder, "estimates.json", content))


@pytest.mark.parametrize("name", ["candidate.toml", "estimates.json", "more"])
def test_pipe_in_a_candidates_folder_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "one"
    write_candidate(WHOLE, folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CandidateError, match="is no file of a candidate"):
        read_candidate(folder)
