import pytest
from gate_samples import make_candidate

from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.evaluation.gate.decisions import (
    ProbeDecisions,
    decided,
    information_gain_bits,
    novelty,
    review_queue,
    share_changed,
)
from slurm_energy.evaluation.gate.sheet import StageVerdict
from slurm_energy.evaluation.gate.states import edge_states, probe_states
from slurm_energy.policy.candidate import NameClocks, SiteEstimates

PROBE = list(edge_states(300, seed=3))


def test_states_of_a_seed_are_the_same_and_fewer_are_the_first_of_more() -> None:
    assert list(edge_states(120, seed=5)) == list(edge_states(200, seed=5))[:120]
    assert list(edge_states(60, seed=5)) != list(edge_states(60, seed=6))


def test_identical_candidate_is_stopped_with_the_number_of_decisions() -> None:
    same = decided(make_candidate(), Config(), PROBE)
    again = decided(make_candidate(candidate_id="c2"), Config(), PROBE)
    result = novelty(ProbeDecisions(candidate=again, incumbent=same, archived={}), 0.3)
    assert result.verdict is StageVerdict.STOPPED
    assert result.summary.startswith("changes 0 of 300 decisions")


def test_other_policy_passes_with_its_distance_from_the_nearest_known() -> None:
    mine, theirs = (decided(make_candidate(name), Config(), PROBE) for name in ("oracle", "slurm-default"))
    result = novelty(ProbeDecisions(candidate=mine, incumbent=theirs, archived={"old": mine}), 0.05)
    assert result.verdict is StageVerdict.PASSED
    assert result.figures["distance_from_nearest"] == 0.0
    assert result.figures["changed_decisions"] > 30
    assert any("decides as archived policy old did" in note for note in result.notes)
    assert any("very different" in note for note in result.notes)


def test_information_gain_is_what_the_other_policy_leaves_open() -> None:
    assert information_gain_bits(("a", "b"), ("x", "y")) == 0.0
    assert information_gain_bits(("a", "b", "a", "b"), ("x",) * 4) == pytest.approx(1.0)
    assert share_changed(("a", "b"), ("a", "c")) == 0.5


def test_review_queue_has_decisions_that_differ_alone_the_costly_ones_first() -> None:
    queue = review_queue(make_candidate(), make_candidate("slurm-default"), Config(), PROBE, size=6)
    assert len(queue) == 6
    assert all(item.candidate != item.incumbent for item in queue)
    costly = [item.joules for item in queue if item.why == "costly"]
    assert costly == sorted(costly, reverse=True)
    assert review_queue(make_candidate(), make_candidate(), Config(), PROBE, size=6) == ()


def test_clocks_of_names_are_seen_in_the_probe() -> None:
    gpu_type = GpuTypeName("a100-sxm4-80gb")
    clock = LearnedClock(
        sm_clock_mhz=1110,
        default_clock_mhz=1410,
        slowdown=0.02,
        error=0.004,
        energy_change=-0.3,
        runs=9,
        by_trial=False,
    )
    names = SiteEstimates(clocks=(NameClocks(user_id=1234, group="own", clocks={gpu_type: clock}),))
    named = make_candidate("slurm-default", estimates=names)
    probe = list(probe_states(named, 100, seed=3))
    mine, theirs = (decided(one, Config(), probe) for one in (named, make_candidate("slurm-default")))
    assert mine[:100] == theirs[:100]
    assert "1110 MHz" in mine[-1]
    result = novelty(ProbeDecisions(candidate=mine, incumbent=theirs, archived={}), 0.3)
    assert result.summary == "changes 1 of 101 decisions"
