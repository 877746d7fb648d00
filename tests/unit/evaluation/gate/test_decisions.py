import pytest
from gate_samples import make_candidate

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon.decide import Known, create_decider
from slurm_energy.daemon.policy.candidates import with_clocks
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.predicted_clocks import PredictedClocks, PredictedWork
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import MeasuredRun
from slurm_energy.estimation.job_history import ANY_USER, NEVER_RAN, JobHistory
from slurm_energy.estimation.site_clocks import site_clocks
from slurm_energy.evaluation.gate.decisions import (
    ProbeDecisions,
    decided,
    decision_text,
    information_gain_bits,
    novelty,
    review_queue,
    share_changed,
)
from slurm_energy.evaluation.gate.sandbox import SandboxLimits, observe, sandboxed
from slurm_energy.evaluation.gate.sheet import StageVerdict
from slurm_energy.evaluation.gate.states import NOW_SECONDS, EdgeState, edge_states, probe_states
from slurm_energy.policy.candidate import CandidatePolicy, NameClocks, SiteEstimates
from slurm_energy.policy.site.settings import site_board_limits

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


A100 = GpuTypeName("a100-sxm4-80gb")
MEAN = Config(policy=PolicyConfig(slowdown_bound="mean", assumed_curves=True))
NETWORK = Config(policy=PolicyConfig(clock_predictions="network"))


def make_known(config: Config) -> JobHistory:
    """Return what a daemon may know: clocks of the whole site, trials of a name, and what a network expects."""
    policy = config.policy
    clock = LearnedClock(
        sm_clock_mhz=1200, default_clock_mhz=1410, slowdown=0.004, error=0.003, energy_change=-0.2, runs=3
    )
    run = MeasuredRun(user=1000, name="train", gpu_type=A100, gpus=1, seconds=3600.0, watts=260.0, ended_at_seconds=0.0)
    learned = [(1000, "train", {A100: clock})]
    curve = PredictedClocks(
        relative_clocks=(0.6, 0.8, 1.0),
        slowdown=(0.02, 0.01, 0.0),
        upper_slowdown=(0.04, 0.02, 0.0),
        energy_change=(-0.4, -0.2, 0.0),
    )
    bounds = (policy.max_slowdown, policy.saver_max_slowdown)
    return JobHistory(
        clocks={(1000, "train"): {A100: clock}},
        site_clocks=site_clocks(learned, [run] * 20, bounds, site_board_limits(config), NOW_SECONDS)
        if policy.slowdown_bound == "mean"
        else None,
        predicted={(ANY_USER, NEVER_RAN): PredictedWork(clocks={A100: curve})},
    )


def served(candidate: CandidatePolicy, config: Config, probe: list[EdgeState], known: JobHistory) -> tuple[str, ...]:
    """Return what the daemon does when it serves the candidate."""
    decider = create_decider(candidate.configured(config))
    if candidate.estimates is not None:
        known = with_clocks(known, candidate.clocks_by_name())
    found = []
    for state in probe:
        at = Known(snapshot=state.snapshot, history=known)
        found.append(decision_text(decider.decide_request(state.job, at, state.snapshot.taken_at_seconds).decision))
    return tuple(found)


@pytest.mark.parametrize("config", [Config(), MEAN, NETWORK], ids=["each-job", "mean", "network"])
def test_candidate_is_judged_on_the_policy_that_the_daemon_serves(config: Config) -> None:
    own = LearnedClock(
        sm_clock_mhz=1110,
        default_clock_mhz=1410,
        slowdown=0.02,
        error=0.004,
        energy_change=-0.3,
        runs=9,
        by_trial=False,
    )
    names = tuple(NameClocks(user_id=1000, group=name, clocks={A100: own}) for name in ("train", "other"))
    candidate = make_candidate("oracle", estimates=SiteEstimates(clocks=names))
    known = make_known(config)
    probe = [state._replace(runtime=None) for state in probe_states(candidate, 300, seed=3)]
    mine = decided(candidate, config, probe, known)
    assert mine == served(candidate, config, probe, known)
    changed = share_changed(mine, decided(candidate, config, probe))
    assert changed > 0.05 or config == Config()


def test_sandbox_watches_the_same_policy_in_its_own_process() -> None:
    known, limits = make_known(MEAN), SandboxLimits(states=60, latency_milliseconds=1e6)
    candidate = make_candidate("oracle")
    seen, trouble = sandboxed(candidate, MEAN, limits, 3, known)
    assert (trouble, seen is None) == ("", False)
    alone, with_known = (observe(candidate, MEAN, edge_states(60, 3), one) for one in (JobHistory(), known))
    assert seen is not None and seen.digest == with_known.digest != alone.digest
