"""Candidates that are bad on purpose, each stopped at the stage where it should be."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from site_database import A100, CLUSTER, DEFAULT_MHZ, Site, fill, site_config
from test_candidate_stages import canary

from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.promotion import Stage
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.evaluation import gate
from slurm_energy.evaluation.gate import GateSettings, LoopLimits, SandboxLimits, ScoreSheet, judge
from slurm_energy.evaluation.gate.evidence import history_of_site
from slurm_energy.evaluation.gate.logic.symbols import Proof
from slurm_energy.evaluation.site_evidence import SiteEvidence
from slurm_energy.learning.nightly.history import SiteHistory, read_history
from slurm_energy.learning.nightly.name_clocks import name_clocks
from slurm_energy.learning.nightly.site_twin import build_twin, last_week
from slurm_energy.policy.candidate import CandidatePolicy, NameClocks, SiteEstimates, configured_policy
from slurm_energy.store.session import open_engine

NOW = 1_800_000_000.0
LOWEST_MHZ = 855


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(gate, "proofs", lambda: (Proof(name="all", paths=1),))


def site(tmp_path: Path, clock_share: float) -> tuple[Config, SiteHistory]:
    config = site_config(tmp_path)
    fill(config, Site(clock_share=clock_share))
    engine = open_engine(config.store)
    found = read_history(engine, CLUSTER, NOW, 200)  # type: ignore[arg-type]  # a plain text in the tests
    engine.dispose()
    return config, found


def with_clocks(clocks: tuple[NameClocks, ...]) -> CandidatePolicy:
    return CandidatePolicy(candidate_id="c1", made_at_seconds=NOW, estimates=SiteEstimates(clocks=clocks))


def lowest(clocks: tuple[NameClocks, ...]) -> tuple[NameClocks, ...]:
    """Return the same names, all at the lowest clock, with a slowdown that is made up."""
    made_up = LearnedClock(
        sm_clock_mhz=LOWEST_MHZ,
        default_clock_mhz=DEFAULT_MHZ,
        slowdown=0.01,
        error=0.001,
        energy_change=-0.3,
        runs=3,
        measured_at_seconds=NOW,
        by_trial=False,
    )
    return tuple(replace(one, clocks={GpuTypeName(A100): made_up}) for one in clocks)


def judged(config: Config, history: SiteHistory, candidate: CandidatePolicy, folder: Path) -> ScoreSheet:
    twin = build_twin(history, folder, 40)
    evidence = SiteEvidence(
        cluster=history.cluster,
        states=history.states,
        runs=history.runs,
        split_seconds=history.split_seconds,
        now_seconds=NOW,
        world=twin.world,
        learned_from=twin.learned_from,
        held_out=twin.judged,
    )
    incumbent = configured_policy()
    found = replace(history_of_site(evidence, candidate, config), last_week=last_week(history, twin, incumbent, config))
    settings = GateSettings(
        config=config,
        sandbox=SandboxLimits(states=100, latency_milliseconds=1e6),
        loop=LoopLimits(min_seeds=3, max_seeds=3),
        probe_states=100,
        isolated=False,
    )
    return judge(candidate, incumbent, found, settings)


def test_clocks_that_follow_from_runs_pass_the_whole_gate(tmp_path: Path) -> None:
    config, history = site(tmp_path, 0.15)
    clocks = name_clocks(history.runs, config.policy.max_slowdown)
    sheet = judged(config, history, with_clocks(clocks), tmp_path)
    assert sheet.passed, sheet.stopped_by
    twin = sheet.stage("twin")
    assert twin is not None
    assert twin.intervals["saving in the twin"].mean > 0.0
    again = sheet.stage("reproducibility")
    assert again is not None
    assert abs(again.figures["twin_error_median"]) < 0.15


def test_what_slurm_adds_for_long_prologs_is_no_error_of_the_twin(tmp_path: Path) -> None:
    config, history = site(tmp_path, 0.15)
    twin = build_twin(history, tmp_path, 40)
    longer = replace(
        history,
        states=tuple(
            replace(
                state,
                started_at_seconds=(state.started_at_seconds or 0.0)
                - 0.4 * ((state.ended_at_seconds or 0.0) - (state.started_at_seconds or 0.0)),
            )
            for state in history.states
        ),
    )
    usual, slow = (last_week(each, twin, configured_policy(), config) for each in (history, longer))
    assert len(usual) > 0
    assert [day.twin_joules for day in slow] == pytest.approx([day.twin_joules for day in usual], rel=0.01)


def test_always_the_lowest_clock_is_stopped_in_the_twin(tmp_path: Path) -> None:
    config, history = site(tmp_path, 0.8)
    clocks = name_clocks(history.runs, 0.5)
    sheet = judged(config, history, with_clocks(lowest(clocks)), tmp_path)
    assert sheet.stopped_by is not None
    assert sheet.stopped_by.stage == "twin"
    assert "longer in the system" in sheet.stopped_by.summary


@pytest.mark.parametrize(
    ("change", "word"),
    [
        pytest.param({"wait": 1.0, "energy": 0.9}, "from submission", id="always one partition"),
        pytest.param({"time": 1.4, "energy": 0.9}, "run time", id="always the lowest clock"),
        pytest.param({"energy": 1.1}, "joules", id="good in the twin alone"),
    ],
)
def test_what_the_gate_let_pass_is_stopped_in_canary(tmp_path: Path, change: dict[str, float | str], word: str) -> None:
    config = site_config(tmp_path, promote="automatic", shadow_decisions=50)
    fill(config, Site(jobs=400, users=12, clock_share=0.0))
    stage, why = canary(config, lambda _: change)
    assert stage is Stage.REJECTED, why
    assert word in why
