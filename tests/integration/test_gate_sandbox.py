from dataclasses import replace
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.evaluation.gate.sandbox import SandboxLimits, observe, sandboxed
from slurm_energy.evaluation.gate.states import edge_states
from slurm_energy.policy.candidate import CandidatePolicy, write_candidate

LIMITS = SandboxLimits(states=200, seconds=120.0)


def made(folder: Path, policy: str) -> CandidatePolicy:
    return write_candidate(CandidatePolicy(candidate_id="c1", made_at_seconds=1.0, policy=policy), folder / "c1")


def test_candidate_decides_in_a_process_of_its_own_as_it_does_here(tmp_path: Path) -> None:
    candidate = made(tmp_path, "total-cost:V=5")
    found, trouble = sandboxed(candidate, Config(), LIMITS, seed=7)
    assert trouble == ""
    assert found is not None
    assert found.states == 200
    assert found.digest == observe(candidate, Config(), edge_states(200, seed=7)).digest


def test_candidate_that_uses_up_its_processor_time_is_ended(tmp_path: Path) -> None:
    found, trouble = sandboxed(made(tmp_path, "oracle"), Config(), replace(LIMITS, states=10**7, seconds=0.0))
    assert found is None
    assert trouble


def test_candidate_whose_file_was_changed_is_not_run(tmp_path: Path) -> None:
    candidate = made(tmp_path, "oracle")
    assert candidate.folder is not None
    (candidate.folder / "weights.json").write_text("{}")
    found, trouble = sandboxed(candidate, Config(), LIMITS)
    assert found is None
    assert "CandidateError" in trouble
