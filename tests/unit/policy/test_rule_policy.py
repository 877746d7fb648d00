"""Placement rules that decide at submission: partition, clocks, prices that follow arrivals, what is masked."""

from random import Random
from typing import Any

import pytest
from guard_questions import clocks, decide, estimate
from policy_factory import A40, A100, NOW, V100, ids, make_config, make_job, make_node, make_partition, make_snapshot

from slurm_energy.config import Config
from slurm_energy.domain.decision import Reason
from slurm_energy.errors import PolicyError
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule, Postponement
from slurm_energy.policy.registry import create_policy, masked_parts, policy_fault, policy_names, rule_names
from slurm_energy.policy.rules.adaptive_price import AdaptivePriceRule
from slurm_energy.policy.site.check import site_faults, site_notes
from slurm_energy.policy.submission.view import SubmittedJob
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world.file import shipped_world

WAITS = SubmittedJob(gpu_counts=(1,), submitted_seconds=0.0, estimated_units=1.0)
OPEN: dict[str, Any] = {"routing_open": True, "max_slowdown": 0.5}
FAR: dict[str, Any] = {"routing_open": True, "max_slowdown": 2.0, "max_type_slowdown": 2.0, "less_gpu_memory": True}


class Recorder(PlacementRule):
    """Answers with what a test wants and keeps what it was asked."""

    name = "recorder"
    routes = True

    def __init__(self, answer: Placement | Postponement | None = None) -> None:
        self.answer = answer
        self.arrivals: list[WaitingJob] = []
        self.begun = 0
        self.rooms: list[list[int]] = []
        self.view: ClusterView | None = None

    def begin(self, view: ClusterView, random: Random) -> None:
        self.begun += 1

    def route(self, job: WaitingJob, view: ClusterView) -> None:
        self.arrivals.append(job)

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | Postponement | None:
        self.view = view
        room = list(view.room(job))
        self.rooms.append(room)
        if self.answer is not None:
            return self.answer
        place = max(range(len(room)), key=lambda index: (room[index] > 0, index))
        return Placement(place, room[place], -1) if room[place] else None


def asked(rule: PlacementRule, config: Config | None = None, **changes: Any) -> tuple[PlacementRule, object]:
    chosen = config or make_config(**OPEN)
    return rule, decide(make_job(**changes), policy=rule, config=chosen, runtime=estimate(60.0))


@pytest.mark.parametrize("name", policy_names())
def test_every_rule_that_can_decide_a_job_is_made_by_name_and_decides_one(name: str) -> None:
    config = make_config(name=name, **OPEN)
    decision = decide(make_job(2), policy=create_policy(config), config=config)
    assert decision.policy == name
    assert Reason.POLICY_ERROR not in decision.reasons, decision.notes


def test_a_rule_s_settings_stand_in_the_name_and_in_the_version() -> None:
    policy = create_policy(make_config(name="total-cost:V=5,slowdown=0.3"))
    assert (policy.name, policy.version) == ("total-cost", "1:V=5,slowdown=0.3")


def test_rules_that_read_the_truth_are_refused_with_the_reason() -> None:
    with pytest.raises(PolicyError, match="clairvoyant cannot decide jobs: it reads how much work a job really has"):
        create_policy(make_config(name="clairvoyant"))
    assert set(rule_names()) - set(policy_names()) == {"clairvoyant", "easy-estimates"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("total-cost:W=1", "rule total-cost has no setting 'W'"),
        ("total-cost:V=-1", "total-cost:V=-1 is not a number from 0"),
        ("oracle:V=1", "policy oracle takes no settings after its name"),
        ("magic:V=1", "policy 'magic:V=1' does not exist"),
    ],
)
def test_a_wrong_text_is_a_fault_of_the_configuration(text: str, said: str) -> None:
    assert said in (policy_fault(text) or "")
    (fault,) = site_faults(make_config(name=text))
    assert fault.startswith("policy.name: ") and said in fault


def test_what_a_submission_cannot_carry_out_is_told() -> None:
    assert masked_parts("total-cost:awake_time=1,max_node_wait=0.5") == (
        "a later start; clocks of jobs that run; the node of a job; the number of a job's GPUs; "
        "what ended jobs measured"
    )
    assert masked_parts("slurm-default") == masked_parts("oracle") == ""
    assert any("goes without" in note for note in site_notes(make_config(name="cap-greedy")))


def test_the_partition_of_the_rule_s_place_is_named_and_each_type_that_the_job_can_land_on_is_asked_for() -> None:
    rule = Recorder()
    _, decision = asked(rule, make_config(**FAR), gpus=2)
    assert decision.partitions in {("v100",), ("a40",)}  # type: ignore[attr-defined]
    routing, *landing = rule.rooms
    assert sum(gpus > 0 for gpus in routing) > 1
    assert all(sorted(room) == [0, 0, 2] for room in landing)  # one place of one partition at a time
    assert len(landing) == 2  # the named partition, and the default one, where the job may still start


def test_rules_are_told_of_each_arrival_once_and_begin_anew_where_the_places_are_others() -> None:
    rule = Recorder()
    policy, _ = asked(rule)
    guard = Guard(make_config(**OPEN), ids())
    guard.decide(policy, make_job(), make_snapshot(taken_at_seconds=NOW), NOW)
    assert (rule.begun, len(rule.arrivals)) == (1, 2)
    fewer = make_snapshot(make_node("a100-1", "a100", "a100"))
    guard.decide(policy, make_job(), fewer, NOW)
    assert (rule.begun, len(rule.arrivals)) == (2, 3)


def test_a_rehearsal_leaves_no_trace() -> None:
    policy = create_policy(make_config(name="adaptive-price", **OPEN))
    assert isinstance(policy, AdaptivePriceRule)
    full = tuple(make_node(f"a100-{number}", "a100", "a100", allocated=4) for number in range(2))
    snapshot = make_snapshot(*full, partitions=(make_partition("a100", is_default=True),))
    guard = Guard(make_config(**OPEN), ids())
    guard.decide(policy.for_rehearsal(snapshot), make_job(), snapshot, NOW)
    assert policy.prices_watts == (0.0,)
    guard.decide(policy, make_job(), snapshot, NOW)
    assert policy.prices_watts == pytest.approx((0.1,))


def test_a_later_start_leaves_the_job_to_slurm() -> None:
    _, decision = asked(Recorder(Postponement(NOW + 60.0)))
    assert (decision.partitions, decision.clocks) == (None, ())  # type: ignore[attr-defined]


def test_a_price_on_time_raises_the_clock() -> None:
    def mhz(text: str) -> int:
        config = make_config(name=text, max_slowdown=0.5)
        return clocks(decide(make_job(), policy=create_policy(config), config=config, runtime=estimate(3600.0))).get(
            A100, 1410
        )

    assert mhz("total-cost:V=0") < mhz("total-cost:V=200") <= mhz("total-cost:V=100000") == 1410


def test_the_slowdown_bound_counts_what_the_gpu_type_takes_already() -> None:
    config = make_config(name="greedy", routing_open=True, max_slowdown=0.1)
    decision = decide(make_job(), policy=create_policy(config), config=config)
    assert decision.partitions is None  # the A40 would take far longer than the A100
    assert all(clock.predicted_slowdown <= 0.1 for clock in decision.clocks)


def test_types_compare_also_where_the_power_of_one_of_them_when_free_is_not_known() -> None:
    config = make_config(name="greedy", **FAR)
    seen: list[ClusterView] = []

    class Looker(Recorder):
        def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
            seen.append(view)
            return None

    decide(make_job(), policy=Looker(), config=config, runtime=estimate(60.0))
    routing, landing = seen[0].options(WAITS), seen[-1].options(WAITS)
    assert (routing.free_watts == 0.0).all(), "nobody has measured a free V100"
    assert landing.free_watts.max() == 60.0, "the clock on an A100 is the A100's affair"


def test_a_partition_of_several_types_is_chosen_by_its_worst() -> None:
    mixed = (
        make_node("m1", "mixed", "a40"),
        make_node("m2", "mixed", "v100"),
        make_node("a1", "a100", "a100"),
    )
    partitions = (make_partition("mixed", is_default=True), make_partition("a100"))
    snapshot = make_snapshot(*mixed, partitions=partitions)

    class Order(Recorder):
        def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
            room = view.room(job)
            names = {info.device: index for index, info in enumerate(view.places)}
            order = [names[A40], names[A100], names[V100]]
            return next((Placement(place, 1, -1) for place in order if room[place]), None)

    config = make_config(routing_open=True, max_slowdown=2.0, less_gpu_memory=True)
    decision = decide(make_job(), policy=Order(), snapshot=snapshot, config=config)
    assert decision.partitions == ("a100",)  # the best type of `mixed` is the first choice, its worst is the last


def test_a_type_that_nobody_knows_keeps_its_default_clock_and_the_job() -> None:
    snapshot = make_snapshot(make_node("x1", "x", "xpu"), partitions=(make_partition("x", is_default=True),))
    config = make_config(name="total-cost")
    decision = decide(make_job(), policy=create_policy(config), snapshot=snapshot, config=config)
    assert (decision.partitions, decision.clocks) == (None, ())
    assert Reason.POLICY_ERROR not in decision.reasons


def test_an_estimate_of_no_length_and_no_time_limit_is_decided() -> None:
    config = make_config(name="total-cost:V=5,slowdown=0.3")
    policy = create_policy(config)
    for job, runtime in ((make_job(time_limit_minutes=None), None), (make_job(), estimate(0.0))):
        decision = decide(job, policy=policy, config=config, runtime=runtime)
        assert Reason.POLICY_ERROR not in decision.reasons


def test_the_arena_runs_a_rule_as_it_is_served() -> None:
    jobs = tuple(
        Job(job_id=number, submitted_seconds=20.0 * number, true_units=1_000.0, partitions=("a100",))
        for number in range(9)
    )
    world = shipped_world("lab")
    plain = run(world, Workload(name="jobs", jobs=jobs), create_contender("daemon/slurm-default"))
    served = run(world, Workload(name="jobs", jobs=jobs), create_contender("daemon/total-cost:V=1,exchange=0"))
    assert served.state == ["COMPLETED"] * 9
    assert (served.energy_joules < plain.energy_joules).all()
