"""Numbers of GPUs: what the rule chooses of those that were named, and what the guard lets through."""

from collections.abc import Sequence
from math import nan
from typing import Any

import pytest
from guard_questions import AnswerPolicy, decide
from policy_factory import NOW, make_config, make_job, make_node, make_snapshot

from slurm_energy.daemon.decide import job_request, time_limit_minutes
from slurm_energy.domain.decision import EnergyDecision, PolicyAnswer, Reason, RuntimeEstimate
from slurm_energy.domain.gpu_count import GpuCountOption, GpuScaling
from slurm_energy.domain.job import EnergyMode, EnergyOptions, JobRequest
from slurm_energy.estimation.gpu_scaling import scaling_of_runs
from slurm_energy.policy.base import Case, CountCost
from slurm_energy.policy.gnn.priced_answers import PricedRule
from slurm_energy.policy.guard import decision_entry
from slurm_energy.policy.registry import create_policy, create_rule, rule_names
from slurm_energy.wire.messages import decision_reply, parse_submitted_job

WELL = GpuScaling(log_loss=-5.0, doubt=0.1, counts=(2, 4))
BADLY = GpuScaling(log_loss=-0.3, doubt=0.1, counts=(2, 4))


def ranged_job(asked: int = 4, counts: tuple[int, ...] = (1, 2, 4, 8), **changes: Any) -> JobRequest:
    options = EnergyOptions(
        gpu_counts=counts, **{k: changes.pop(k) for k in ("mode", "deadline_seconds") if k in changes}
    )
    offered = changes.pop("offered", counts)
    values = {
        "count_options": tuple(GpuCountOption(gpus=count, nodes=1, cpus_per_node=count) for count in offered),
        "options": options,
        "partitions": ("a100",),
    }
    return make_job(asked, gpu_type="a100", **{**values, **changes})


def large_nodes() -> Any:
    return make_snapshot(*(make_node(f"a100-{i}", "a100", "a100", count=8) for i in (1, 2)))


def codes(decision: EnergyDecision) -> set[Reason]:
    return set(decision.reasons)


def test_a_job_that_names_one_number_keeps_it_without_a_word() -> None:
    decision = decide(make_job(8, partitions=("a100",)), scaling=BADLY)
    assert decision.gpus is None
    assert not {reason for reason in decision.reasons if reason.startswith("GPU_COUNT")}


def test_without_runs_of_two_numbers_a_large_job_gets_at_most_the_sites_number() -> None:
    decision = decide(ranged_job(8), snapshot=large_nodes())
    assert decision.gpus == 4
    assert Reason.GPU_COUNT in codes(decision)
    assert any("no runs with two numbers of GPUs" in note for note in decision.notes)
    assert "4 instead of 8 GPUs" in decision.message
    assert "how this job scales is not known; most work takes 1" in decision.message
    assert "less energy" not in decision.message.partition(":")[0]
    small = decide(ranged_job(2))
    assert (small.gpus, Reason.GPU_COUNT_KEPT in codes(small)) == (2, True)


def test_after_runs_with_one_number_the_next_one_measures_another() -> None:
    once = GpuScaling(log_loss=-1.7, doubt=1.0, counts=(4,))
    decision = decide(ranged_job(4), snapshot=large_nodes(), scaling=once)
    assert decision.gpus == 2
    assert any("a second number tells how it scales" in note for note in decision.notes)
    least = GpuScaling(log_loss=-1.7, doubt=1.0, counts=(1,))
    assert decide(ranged_job(4), snapshot=large_nodes(), scaling=least).gpus == 2, "nothing smaller: twice as many"
    assert decide(ranged_job(1), snapshot=large_nodes(), scaling=least).gpus == 2


def test_by_runs_a_job_gets_the_most_gpus_up_to_which_a_doubling_pays() -> None:
    well, badly = (decide(ranged_job(4), snapshot=large_nodes(), scaling=one) for one in (WELL, BADLY))
    assert (well.gpus, badly.gpus) == (8, 1)
    assert any("by runs of this name on 2, 4" in note for note in badly.notes)
    assert "less energy" in badly.message
    assert "scales as most work" not in badly.message


def test_more_gpus_than_asked_for_need_a_gain_beyond_its_doubt() -> None:
    doubtful = GpuScaling(log_loss=-2.6, doubt=1.2, counts=(1, 2))
    sure = GpuScaling(log_loss=-2.6, doubt=0.05, counts=(1, 2))
    assert decide(ranged_job(4), snapshot=large_nodes(), scaling=sure).gpus == 8
    assert decide(ranged_job(4), snapshot=large_nodes(), scaling=doubtful).gpus == 4


def test_nodes_too_small_for_more_gpus_keep_them_out() -> None:
    assert decide(ranged_job(4), scaling=WELL).gpus == 4  # nodes of four
    mixed = make_snapshot(make_node("a100-1", "a100", "a100", count=8), make_node("a40-1", "a40", "a40", count=4))
    either = ranged_job(4, partitions=("a100", "a40"))
    assert decide(either, snapshot=mixed, scaling=WELL).gpus == 4, "Slurm may start it in any of its partitions"
    down = make_snapshot(make_node("a100-1", "a100", "a100", count=8, available=False))
    assert decide(ranged_job(4), snapshot=down, scaling=WELL).gpus == 4
    greedy = ranged_job(
        4, count_options=(GpuCountOption(gpus=4, nodes=1), GpuCountOption(gpus=8, nodes=1, cpus_per_node=65))
    )
    assert decide(greedy, snapshot=large_nodes(), scaling=WELL).gpus == 4


@pytest.mark.parametrize(
    ("needs", "gpus"),
    [
        ({"cpus_per_node": 57}, 8),
        ({"cpus_per_node": 58}, 4),
        ({"memory_per_node_mib": 230_000.0}, 8),
        ({"memory_per_node_mib": 231_000.0}, 4),
    ],
)
def test_more_gpus_leave_a_tenth_of_a_node_to_the_system(needs: dict[str, Any], gpus: int) -> None:
    """Nodes of 64 CPUs and 256000 MiB."""
    offered = (GpuCountOption(gpus=4, nodes=1), GpuCountOption(gpus=8, nodes=1, **needs))
    assert decide(ranged_job(4, count_options=offered), snapshot=large_nodes(), scaling=WELL).gpus == gpus


def test_memory_of_unknown_nodes_keeps_more_gpus_out() -> None:
    offered = (GpuCountOption(gpus=4, nodes=1), GpuCountOption(gpus=8, nodes=1, memory_per_node_mib=1.0))
    unknown = make_snapshot(make_node("a100-1", "a100", "a100", count=8, memory_mib=None))
    assert decide(ranged_job(4, count_options=offered), snapshot=unknown, scaling=WELL).gpus == 4
    assert decide(ranged_job(4), snapshot=unknown, scaling=WELL).gpus == 8, "no memory asked for"


@pytest.mark.parametrize(
    ("tasks", "own", "other", "expected"),
    [(1, (4, 1, 32), (8, 1, 64), 1), (4, (4, 1, 32), (8, 1, 64), 8), (2, (8, 2, 32), (16, 4, 32), 4)],
    ids=["one", "by GPU", "by node"],
)
def test_cpus_that_follow_gpus_do_not_make_tasks(
    tasks: int, own: tuple[int, int, int], other: tuple[int, int, int], expected: int
) -> None:
    offered = tuple(GpuCountOption(gpus=gpus, nodes=nodes, cpus_per_node=cpus) for gpus, nodes, cpus in (own, other))
    job = ranged_job(own[0], tasks=tasks, count_options=offered)
    assert job.with_count(offered[1]).tasks == expected


def test_only_what_the_user_named_and_the_plugin_offers_is_chosen() -> None:
    assert decide(ranged_job(4, offered=(2, 4)), snapshot=large_nodes(), scaling=BADLY).gpus == 2
    refused = decide(ranged_job(4, count_options=(), count_refusal="it runs in a reservation"), scaling=BADLY)
    assert refused.gpus is None
    assert Reason.GPU_COUNT_REFUSED in codes(refused)
    assert "the number of GPUs stays: it runs in a reservation" in refused.notes
    assert refused.message.startswith("the number of GPUs stays: it runs in a reservation")


def test_site_and_user_can_switch_it_off_and_an_observed_job_keeps_its_number() -> None:
    off = decide(ranged_job(4), config=make_config(gpu_count="off"), scaling=BADLY)
    assert (off.gpus, Reason.GPU_COUNT_OFF in codes(off)) == (None, True)
    assert decide(ranged_job(4, mode=EnergyMode.OFF), scaling=BADLY).gpus is None
    observed = decide(ranged_job(4, mode=EnergyMode.OBSERVE), scaling=BADLY)
    assert observed.gpus is None
    assert observed.message.startswith("would have been: 1 instead of 4 GPUs")


def test_fewer_gpus_must_not_miss_the_jobs_deadline() -> None:
    runtime = RuntimeEstimate(seconds=3600.0, upper_seconds=4000.0, source="history", gpus=4)
    near = ranged_job(4, deadline_seconds=NOW + 5000.0)
    assert decide(near, scaling=WELL, runtime=runtime, snapshot=large_nodes()).gpus == 8
    assert decide(near, scaling=BADLY, runtime=runtime).gpus != 1
    far = ranged_job(4, deadline_seconds=NOW + 500_000.0)
    assert decide(far, scaling=BADLY, runtime=runtime).gpus == 1
    assert decide(far, scaling=BADLY).gpus == 4, "nothing is known of its length"


def test_the_policy_decides_on_the_job_as_it_will_be() -> None:
    seen: list[Case] = []

    def answer(case: Case) -> PolicyAnswer:
        seen.append(case)
        return PolicyAnswer()

    runtime = RuntimeEstimate(seconds=600.0, upper_seconds=700.0, source="history", gpus=4)
    decision = decide(ranged_job(4), policy=AnswerPolicy(answer), scaling=BADLY, runtime=runtime)
    (case,) = seen
    assert (case.job.gpu_count, case.job.time_limit_minutes, case.job.tasks) == (1, 2400.0, 1)
    assert case.gpu_counts == (1, 2, 4)
    expected = BADLY.speedup(4) / BADLY.speedup(1) * 600.0
    assert case.runtime is not None
    assert case.runtime.seconds == pytest.approx(expected)
    assert decision.estimate is not None
    assert decision.estimate.seconds == pytest.approx(expected)
    assert time_limit_minutes(ranged_job(4), decision, make_snapshot()) == 2400


FIELDS = {
    "uid": "1000",
    "tres_per_node": "gres:gpu:4",
    "num_tasks": "4",
    "energy_gpus": "2-4,8",
    "gpu_asked": "4",
    "gpu_options": "2:1:2:0,4:1:4:1000,6:1:6:0,8:2:4:2000",
}


def test_the_plugins_offer_becomes_the_jobs_options_without_what_its_user_did_not_name() -> None:
    job = job_request(parse_submitted_job(FIELDS), NOW).request
    assert [(one.gpus, one.nodes, one.cpus_per_node, one.memory_per_node_mib) for one in job.count_options] == [
        (2, 1, 2, None),
        (4, 1, 4, 1000),
        (8, 2, 4, 2000),
    ]
    assert job.options.gpu_counts == (2, 3, 4, 8)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpu_options": ""}, "the plugin of slurmctld offers no other number"),
        ({"gpu_options": "2:1:2:0,8:1:8:0"}, "the plugin of slurmctld offers no other number"),
        ({"gpu_options": "x"}, "the plugin of slurmctld offers no other number"),
        ({"gpu_options": "4:1:4"}, "the plugin of slurmctld offers no other number"),
        ({"gpu_options": "", "gpu_refusal": "it limits its switches"}, "it limits its switches"),
    ],
)
def test_an_offer_that_cannot_be_read_or_lacks_the_jobs_own_number_leaves_it(changes: dict[str, str], why: str) -> None:
    job = job_request(parse_submitted_job({**FIELDS, **changes}), NOW).request
    assert (job.count_options, job.count_refusal) == ((), why)


def test_the_reply_names_the_number_only_where_one_was_chosen() -> None:
    decision = decide(ranged_job(4), scaling=BADLY)
    assert decision_reply(decision, decision_entry(decision, None)).fields["gpus"] == "1"
    plain = decide(make_job(4, partitions=("a100",)))
    assert "gpus" not in decision_reply(plain, decision_entry(plain, None)).fields


def test_tasks_of_a_gpu_alone_say_how_many_gpus_a_job_has() -> None:
    fields = {"uid": "1000", "num_tasks": "8", "ntasks_per_tres": "2"}
    assert job_request(parse_submitted_job(fields), NOW).request.gpu_count == 4


def test_run_times_with_two_numbers_of_gpus_tell_how_work_scales() -> None:
    perfect = scaling_of_runs({2: [1000.0] * 3, 4: [500.0] * 3})
    useless = scaling_of_runs({2: [1000.0] * 3, 4: [1000.0] * 3})
    assert perfect is not None
    assert useless is not None
    assert perfect.is_measured
    assert perfect.counts == (2, 4)
    assert perfect.speedup(8) / perfect.speedup(4) > 1.8
    assert useless.speedup(4) / useless.speedup(2) < 1.15
    alone = scaling_of_runs({4: [1000.0, 900.0]})
    assert alone is not None
    assert (alone.counts, alone.is_measured) == ((4,), False)
    assert scaling_of_runs({}) is None
    one_each = scaling_of_runs({2: [1000.0], 4: [600.0]})
    assert one_each is not None
    assert one_each.doubt > perfect.doubt * 0.3
    assert one_each.speedup(4) / one_each.speedup(2) == pytest.approx(1.6, rel=0.1)


def priced(settings: str = "total-cost", **changes: Any) -> Any:
    config = make_config(name=settings, **changes)
    return {"policy": create_policy(config), "config": config}


HOUR = RuntimeEstimate(seconds=3600.0, upper_seconds=5400.0, source="history", runs=4, gpus=4)


@pytest.mark.parametrize(
    ("settings", "gpus"), [("total-cost:V=0", 1), ("total-cost:V=20000", 8)], ids=["time is free", "time is dear"]
)
def test_a_policy_that_weighs_numbers_of_gpus_chooses_by_its_own_prices(settings: str, gpus: int) -> None:
    scaling = GpuScaling(log_loss=-2.0, doubt=0.1, counts=(2, 4))
    decision = decide(ranged_job(4), snapshot=large_nodes(), scaling=scaling, runtime=HOUR, **priced(settings))
    assert decision.gpus == gpus
    assert any("the least cost of partition, number and clock together" in note for note in decision.notes)


def test_a_policy_weighs_nothing_before_runs_tell_how_the_job_scales_and_where_the_site_wants_the_rule() -> None:
    once = GpuScaling(log_loss=-1.7, doubt=1.0, counts=(4,))
    free = priced("total-cost:V=0")
    assert decide(ranged_job(4), snapshot=large_nodes(), scaling=once, runtime=HOUR, **free).gpus == 2
    by_rule = priced("total-cost:V=0", gpu_count="rule")
    assert decide(ranged_job(4), snapshot=large_nodes(), scaling=WELL, runtime=HOUR, **by_rule).gpus == 8


def test_a_policy_that_weighs_no_numbers_or_fails_at_it_leaves_them_to_the_rule() -> None:
    class Failing(AnswerPolicy):
        def count_costs(self, cases: Sequence[Case]) -> Sequence[CountCost]:
            raise RuntimeError(f"{len(cases)} cases")

    class Foreign(AnswerPolicy):
        def count_costs(self, cases: Sequence[Case]) -> Sequence[CountCost]:
            return [CountCost(gpus=3, joules=0.0, has_room=True), CountCost(gpus=4, joules=nan, has_room=True)]

    for policy in (AnswerPolicy(PolicyAnswer()), Failing(PolicyAnswer()), Foreign(PolicyAnswer())):
        assert decide(ranged_job(4), policy=policy, snapshot=large_nodes(), scaling=BADLY, runtime=HOUR).gpus == 1


def test_a_number_with_room_now_is_preferred_to_a_cheaper_one_without() -> None:
    busy = make_snapshot(make_node("a100-1", "a100", "a100", count=8, allocated=6))
    scaling = GpuScaling(log_loss=-2.0, doubt=0.1, counts=(2, 4))
    dear = priced("total-cost:V=20000")
    assert decide(ranged_job(4), snapshot=busy, scaling=scaling, runtime=HOUR, **dear).gpus == 2


def test_only_policies_whose_costs_can_be_compared_between_numbers_weigh_them() -> None:
    assert {name for name in rule_names() if create_rule(name).weighs_counts} == {"total-cost"}
    assert not PricedRule.weighs_counts, "the network has not learned prices of other numbers"
