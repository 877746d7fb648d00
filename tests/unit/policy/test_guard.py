from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from policy_factory import (
    A40,
    A100,
    NOW,
    changes_job,
    ids,
    make_clock,
    make_config,
    make_job,
    make_node,
    make_partition,
    make_snapshot,
)

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision, PolicyAnswer, Reason, RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyMode, JobRequest
from slurm_energy.policy.base import DecisionContext, Policy
from slurm_energy.policy.guard import Guard, decision_entry, new_decision_id
from slurm_energy.policy.oracle import OraclePolicy


class AnswerPolicy:
    """Gives the answer, or does what the function does."""

    name = "made-up"
    version = "0"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, job: JobRequest, snapshot: ClusterSnapshot, context: DecisionContext) -> Any:
        return self.answer(context) if callable(self.answer) else self.answer


def decide(
    job: JobRequest,
    *,
    policy: Policy | None = None,
    snapshot: ClusterSnapshot | None = None,
    config: Config | None = None,
    **arguments: Any,
) -> EnergyDecision:
    guard = Guard(config or make_config(), ids())
    return guard.decide(policy or OraclePolicy(), job, snapshot or make_snapshot(), NOW, **arguments)


def asking(mhz: int, gpu_type: GpuTypeName = A100, **changes: Any) -> AnswerPolicy:
    return AnswerPolicy(PolicyAnswer(clocks=(make_clock(gpu_type, mhz, **changes),)))


def routing_to(*names: str) -> AnswerPolicy:
    return AnswerPolicy(PolicyAnswer(partitions=tuple(PartitionName(name) for name in names)))


def clocks(decision: EnergyDecision) -> dict[str, int]:
    return {clock.gpu_type: clock.sm_clock_mhz for clock in decision.clocks}


def estimate(upper_seconds: float) -> RuntimeEstimate:
    return RuntimeEstimate(seconds=0.5 * upper_seconds, upper_seconds=upper_seconds, source="history")


def test_job_of_the_default_partition_gets_the_clock_of_its_gpu_type() -> None:
    decision = decide(make_job())
    assert clocks(decision) == {A100: 1290}
    assert decision.partitions is None
    assert decision.message == "a100 at 1290 of 1410 MHz: about 11 % less energy, 5 % longer; refuse with --energy=off"
    assert decision.reasons == (Reason.POLICY, Reason.ROUTING_CLOSED)


def test_message_for_boards_of_the_catalogues_limit_tells_what_they_save_and_the_clock_people_know() -> None:
    decision = decide(make_job(), config=make_config(gpu_power_limits_watts={}))
    assert decision.message == "a100 at 1260 of 1410 MHz: about 4 % less energy, 5 % longer; refuse with --energy=off"
    saver = decide(make_job(mode=EnergyMode.SAVER), config=make_config(gpu_power_limits_watts={"a100": 400.0}))
    assert saver.message == "a100 at 1095 of 1410 MHz: about 18 % less energy, 19 % longer; refuse with --energy=off"


def test_clock_above_what_the_board_reaches_by_itself_is_no_saving() -> None:
    decision = decide(make_job(), policy=asking(1335), config=make_config(gpu_power_limits_watts={"a100": 400.0}))
    assert decision.clocks == ()
    assert Reason.NO_SAVING in decision.reasons


@pytest.mark.parametrize("limit_watts", [10.0, 150.0])
def test_board_whose_limit_is_below_all_that_was_measured_keeps_its_default_clock(limit_watts: float) -> None:
    config = make_config(gpu_power_limits_watts={"a100": limit_watts})
    assert decide(make_job(mode=EnergyMode.SAVER), config=config).clocks == ()


def test_job_that_can_land_in_two_partitions_gets_a_clock_for_each() -> None:
    full = [make_node(f"{name}-1", name, name, allocated=4) for name in ("a100", "a40")]
    decision = decide(make_job(partitions=("a100", "a40")), snapshot=make_snapshot(*full))
    assert clocks(decision) == {A100: 1290, A40: 1455}
    assert decision.partitions is None
    assert "; or a40 at 1455 of 1740 MHz" in decision.message
    assert Reason.NO_IDLE_PARTITION in decision.reasons


def test_saver_mode_allows_the_larger_slowdown() -> None:
    balanced, saver = decide(make_job()), decide(make_job(mode=EnergyMode.SAVER))
    assert saver.clocks[0].sm_clock_mhz < balanced.clocks[0].sm_clock_mhz
    assert balanced.clocks[0].predicted_slowdown <= 0.05 < saver.clocks[0].predicted_slowdown <= 0.20


def test_job_of_its_own_slowdown_bound_gets_no_more() -> None:
    decision = decide(make_job(mode=EnergyMode.SAVER, max_slowdown=0.01))
    assert decision.clocks[0].predicted_slowdown <= 0.01


def test_off_changes_nothing_and_asks_no_policy() -> None:
    policy = AnswerPolicy(lambda context: pytest.fail("the policy was asked"))
    decision = decide(make_job(mode=EnergyMode.OFF), policy=policy)
    assert (changes_job(decision), decision.reasons, decision.message) == (False, (Reason.USER_OFF,), "")


def test_observe_records_what_would_have_been_and_changes_nothing() -> None:
    decision = decide(make_job(mode=EnergyMode.OBSERVE))
    assert not changes_job(decision)
    assert decision.reasons[0] is Reason.OBSERVE_ONLY
    assert decision.notes[0].startswith("would have been: a100 at 1290 of 1410 MHz")
    assert decision.message == ""


def test_job_without_mode_takes_the_sites_default() -> None:
    assert decide(make_job(), config=make_config(default_mode="observe")).mode is EnergyMode.OBSERVE


def test_job_without_gpus_is_untouched() -> None:
    decision = decide(make_job(gpus=0))
    assert (changes_job(decision), decision.reasons) == (False, (Reason.NO_GPU,))


def test_quiet_job_gets_no_message() -> None:
    decision = decide(make_job(quiet=True))
    assert changes_job(decision)
    assert decision.message == ""


def test_no_snapshot_leaves_the_job_unchanged() -> None:
    decision = Guard(make_config(), ids()).decide(OraclePolicy(), make_job(), None, NOW)
    assert (changes_job(decision), decision.reasons) == (False, (Reason.NO_SNAPSHOT,))


@pytest.mark.parametrize("age_seconds", [60.5, 1e9, -61.0, float("nan")])
def test_snapshot_too_old_or_from_the_future_leaves_the_job_unchanged(age_seconds: float) -> None:
    decision = decide(make_job(), snapshot=make_snapshot(taken_at_seconds=NOW - age_seconds))
    assert (changes_job(decision), decision.reasons) == (False, (Reason.STALE_SNAPSHOT,))


def test_users_own_gpu_clock_wins() -> None:
    decision = decide(make_job(gpu_frequency_given=True))
    assert decision.clocks == ()
    assert Reason.USER_CLOCK in decision.reasons


# Clocks -----------------------------------------------------------------------------------------------------------


def test_clock_that_the_gpu_lacks_is_moved_to_a_supported_one() -> None:
    decision = decide(make_job(), policy=asking(1334))
    assert clocks(decision) == {A100: 1335}
    assert Reason.CLOCK_TABLE in decision.reasons


@pytest.mark.parametrize("mhz", [1, 210, 855, 1100])
def test_clock_too_low_for_the_bound_becomes_the_best_one_inside(mhz: int) -> None:
    decision = decide(make_job(), policy=asking(mhz))
    assert clocks(decision) == {A100: 1290}
    assert Reason.SLOWDOWN_BOUND in decision.reasons


def test_prediction_of_the_policy_does_not_count() -> None:
    decision = decide(make_job(), policy=asking(1320, predicted_slowdown=-1.0, predicted_energy_change=-0.99))
    assert decision.clocks[0].predicted_slowdown > 0.0
    assert decision.clocks[0].predicted_energy_change > -0.2


@pytest.mark.parametrize("mhz", [1410, 9999])
def test_default_clock_is_no_change(mhz: int) -> None:
    assert decide(make_job(), policy=asking(mhz)).clocks == ()


def test_clock_that_saves_too_little_stays_at_the_default() -> None:
    decision = decide(make_job(), config=make_config(min_energy_saving=0.3))
    assert decision.clocks == ()
    assert Reason.NO_SAVING in decision.reasons


def test_type_without_measured_curves_gets_no_clock_and_says_so() -> None:
    snapshot = make_snapshot(make_node("h1", "a100", "h100"))
    decision = decide(make_job(), policy=asking(1200, GpuTypeName("h100-sxm5-80gb")), snapshot=snapshot)
    assert decision.clocks == ()
    assert Reason.UNKNOWN_GPU_TYPE in decision.reasons
    assert any("unknown" in note for note in decision.notes)


def test_gres_type_outside_the_catalogue_is_named_in_a_note() -> None:
    decision = decide(make_job(), snapshot=make_snapshot(make_node("n1", "a100", "mi300x")))
    assert decision.clocks == ()
    assert Reason.UNKNOWN_GPU_TYPE in decision.reasons
    assert any("mi300x" in note for note in decision.notes)


def test_sites_mapping_of_gres_types_comes_first() -> None:
    config = make_config(gpu_types={"big": "a40", "gpu": "a100-sxm4-80gb"})
    snapshot = make_snapshot(make_node("n1", "a100", "big"), make_node("n2", "a100", None))
    decision = decide(make_job(), snapshot=snapshot, config=config)
    assert clocks(decision) == {A40: 1455, A100: 1290}
    assert decision.message.startswith("big at 1455 of 1740 MHz")


def test_clock_of_a_type_the_job_cannot_land_on_is_dropped() -> None:
    assert decide(make_job(), policy=asking(1335, A40)).clocks == ()


def test_type_asked_for_by_name_is_the_only_one_that_gets_a_clock() -> None:
    snapshot = make_snapshot(make_node("n1", "a100", "a100"), make_node("n2", "a100", "a40"))
    assert clocks(decide(make_job(gpu_type="a40"), snapshot=snapshot)) == {A40: 1455}
    assert clocks(decide(make_job(), snapshot=snapshot)) == {A100: 1290, A40: 1455}


# Time limit and deadline --------------------------------------------------------------------------------------------


def test_time_limit_near_the_predicted_end_gives_a_higher_clock() -> None:
    limit_minutes = 100.0
    decision = decide(make_job(time_limit_minutes=limit_minutes), runtime=estimate(96.0 * 60))
    (clock,) = decision.clocks
    assert 1290 < clock.sm_clock_mhz < 1410
    assert 96.0 * (1.0 + clock.predicted_slowdown) <= limit_minutes * 0.98
    assert Reason.TIME_LIMIT in decision.reasons


@pytest.mark.parametrize("upper_minutes", [98.5, 100.0, 1e6, float("inf")])
def test_job_that_may_not_fit_its_limit_keeps_the_default_clock(upper_minutes: float) -> None:
    decision = decide(make_job(time_limit_minutes=100.0), runtime=estimate(upper_minutes * 60))
    assert decision.clocks == ()
    assert Reason.TIME_LIMIT in decision.reasons


def test_job_without_history_is_taken_to_need_the_sites_share_of_its_limit() -> None:
    tight = decide(make_job(mode=EnergyMode.SAVER), config=make_config(unknown_runtime_share=0.95))
    loose = decide(make_job(mode=EnergyMode.SAVER), config=make_config(unknown_runtime_share=0.5))
    assert tight.clocks[0].sm_clock_mhz > loose.clocks[0].sm_clock_mhz
    assert tight.estimate == RuntimeEstimate(seconds=34200.0, upper_seconds=34200.0, source="time-limit")
    assert Reason.TIME_LIMIT in tight.reasons


@pytest.mark.parametrize(
    ("own", "default", "longest", "expected_minutes"),
    [(30.0, 60.0, 120.0, 30.0), (None, 60.0, 120.0, 60.0), (None, None, 120.0, 120.0)],
)
def test_time_limit_is_the_jobs_else_the_partitions_default_else_its_longest(
    own: float | None, default: float | None, longest: float, expected_minutes: float
) -> None:
    partition = make_partition("a100", is_default=True, default_time_minutes=default, max_time_minutes=longest)
    decision = decide(make_job(time_limit_minutes=own), snapshot=make_snapshot(partitions=(partition,)))
    assert decision.estimate is not None
    assert decision.estimate.seconds == pytest.approx(0.8 * 60 * expected_minutes)


def test_job_without_any_limit_may_take_the_whole_bound() -> None:
    partition = make_partition("a100", is_default=True, max_time_minutes=None)
    decision = decide(make_job(time_limit_minutes=None), snapshot=make_snapshot(partitions=(partition,)))
    assert clocks(decision) == {A100: 1290}
    assert decision.estimate is None


def test_deadline_gives_a_higher_clock() -> None:
    decision = decide(make_job(deadline_seconds=NOW + 1000.0), runtime=estimate(960.0))
    (clock,) = decision.clocks
    assert clock.sm_clock_mhz > 1290
    assert 960.0 * (1.0 + clock.predicted_slowdown) <= 1000.0
    assert Reason.DEADLINE in decision.reasons


def test_deadline_that_has_passed_keeps_the_default_clock() -> None:
    decision = decide(make_job(deadline_seconds=NOW - 1.0), runtime=estimate(10.0))
    assert decision.clocks == ()
    assert Reason.DEADLINE in decision.reasons


def test_job_with_a_deadline_that_has_to_wait_keeps_the_default_clock() -> None:
    full = make_snapshot(make_node("n1", "a100", "a100", allocated=4))
    decision = decide(make_job(deadline_seconds=NOW + 1e6), snapshot=full, runtime=estimate(10.0))
    assert decision.clocks == ()
    assert Reason.DEADLINE in decision.reasons


def test_job_of_unknown_length_with_a_deadline_keeps_the_default_clock() -> None:
    partition = make_partition("a100", is_default=True, max_time_minutes=None)
    config = make_config(unknown_runtime_share=0.0)
    job = make_job(time_limit_minutes=None, deadline_seconds=NOW + 1e6)
    decision = decide(job, snapshot=make_snapshot(partitions=(partition,)), config=config)
    assert decision.clocks == ()


def test_history_of_unknown_type_is_stretched_for_a_slower_gpu() -> None:
    job = make_job(partitions=("a100", "a40"), time_limit_minutes=100.0)
    full = make_snapshot(*[make_node(f"{name}-1", name, name, allocated=4) for name in ("a100", "a40")])
    decision = decide(job, runtime=estimate(50.0 * 60), snapshot=full)
    assert clocks(decision) == {A100: 1290}
    assert Reason.TIME_LIMIT in decision.reasons


# Partitions ---------------------------------------------------------------------------------------------------------


def test_users_single_partition_is_never_changed() -> None:
    config = make_config(routing_open=True)
    decision = decide(make_job(partitions=("a40",)), policy=routing_to("a100"), config=config)
    assert decision.partitions is None
    assert Reason.USER_PARTITION in decision.reasons
    assert Reason.PARTITION_NOT_ALLOWED in decision.reasons


def test_users_list_is_narrowed_inside_the_list() -> None:
    decision = decide(make_job(partitions=("a40", "a100")))
    assert decision.partitions == ("a100",)
    assert clocks(decision) == {A100: 1290}
    assert decision.message.startswith("partition a100: a100 at 1290 of 1410 MHz")


def test_partition_outside_the_users_list_is_refused() -> None:
    decision = decide(make_job(partitions=("a40", "v100")), policy=routing_to("a100"))
    assert decision.partitions is None
    assert Reason.PARTITION_NOT_ALLOWED in decision.reasons


def test_job_without_partition_stays_in_the_default_one_while_routing_is_closed() -> None:
    decision = decide(make_job(), policy=routing_to("a40"))
    assert decision.partitions is None
    assert {Reason.ROUTING_CLOSED, Reason.PARTITION_NOT_ALLOWED} <= set(decision.reasons)


def test_open_routing_sends_the_job_to_the_cheapest_partition_with_room() -> None:
    partitions = (make_partition("a40", is_default=True), make_partition("a100"))
    decision = decide(make_job(), snapshot=make_snapshot(partitions=partitions), config=make_config(routing_open=True))
    assert decision.partitions == ("a100",)
    assert clocks(decision) == {A100: 1290}


def test_open_routing_that_finds_the_default_partition_best_changes_none() -> None:
    decision = decide(make_job(), config=make_config(routing_open=True))
    assert decision.partitions is None
    assert clocks(decision) == {A100: 1290}


def test_open_routing_goes_only_to_the_sites_list() -> None:
    partitions = (make_partition("a40", is_default=True), make_partition("a100"), make_partition("v100"))
    config = make_config(routing_open=True, routing_partitions=("v100",))
    snapshot = make_snapshot(partitions=partitions)
    decision = decide(make_job(), snapshot=snapshot, policy=routing_to("a100"), config=config)
    assert decision.partitions is None


def test_list_stays_when_no_partition_has_room() -> None:
    nodes = [make_node(f"{name}-1", name, name, allocated=4) for name in ("a100", "a40")]
    decision = decide(make_job(partitions=("a40", "a100")), snapshot=make_snapshot(*nodes))
    assert decision.partitions is None
    assert Reason.NO_IDLE_PARTITION in decision.reasons


def test_partition_in_which_the_job_would_wait_is_refused() -> None:
    nodes = [make_node("a1", "a100", "a100", allocated=4), make_node("b1", "a40", "a40")]
    decision = decide(make_job(partitions=("a40", "a100")), snapshot=make_snapshot(*nodes), policy=routing_to("a100"))
    assert decision.partitions is None
    assert Reason.NO_IDLE_PARTITION in decision.reasons


def test_slower_partition_is_refused_when_it_breaks_the_bound_against_the_fastest_with_room() -> None:
    decision = decide(make_job(partitions=("a40", "a100")), policy=routing_to("a40"))
    assert decision.partitions is None
    assert Reason.SLOWDOWN_BOUND in decision.reasons


def test_list_stays_when_only_one_partition_has_room() -> None:
    nodes = [make_node("a1", "a100", "a100", allocated=4), make_node("b1", "a40", "a40")]
    decision = decide(make_job(partitions=("a100", "a40")), snapshot=make_snapshot(*nodes))
    assert decision.partitions is None
    assert clocks(decision) == {A100: 1290, A40: 1455}


def test_open_routing_takes_a_slower_partition_when_the_default_one_is_full() -> None:
    nodes = [make_node("a1", "a100", "a100", allocated=4), make_node("b1", "a40", "a40")]
    config = make_config(routing_open=True, less_gpu_memory=True)
    decision = decide(make_job(), snapshot=make_snapshot(*nodes), config=config)
    assert decision.partitions == ("a40",)
    assert clocks(decision) == {A40: 1455}


def test_a_job_is_not_sent_to_gpus_of_less_memory_than_it_would_have_had_unless_its_user_or_the_site_says_so() -> None:
    nodes = [make_node("a1", "a100", "a100", allocated=4), make_node("b1", "a40", "a40")]
    cluster = make_snapshot(*nodes)
    decision = decide(make_job(), snapshot=cluster, config=make_config(routing_open=True))
    assert decision.partitions is None
    assert any("a40 has GPUs of less memory" in note for note in decision.notes)
    named = decide(make_job(partitions=("a100", "a40")), snapshot=cluster, config=make_config(routing_open=True))
    assert not any("less memory" in note for note in named.notes)
    assert any("a40 alone has room now" in note for note in named.notes)


def test_list_with_gpus_outside_the_catalogue_stays() -> None:
    nodes = [make_node("a1", "a100", "a100"), make_node("b1", "a40", "mi300x")]
    decision = decide(make_job(partitions=("a100", "a40")), snapshot=make_snapshot(*nodes))
    assert decision.partitions is None
    assert clocks(decision) == {A100: 1290}


@pytest.mark.usefixtures("h100_without_sheet")
def test_types_that_cannot_be_compared_leave_the_list_unchanged() -> None:
    partitions = (make_partition("a100", is_default=True), make_partition("h100"))
    nodes = (make_node("a1", "a100", "a100"), make_node("h1", "h100", "h100"))
    job = make_job(partitions=("a100", "h100"))
    decision = decide(job, snapshot=make_snapshot(*nodes, partitions=partitions))
    assert decision.partitions is None
    assert clocks(decision) == {A100: 1290}


@pytest.mark.parametrize(
    "closed",
    [
        {"up": False},
        {"root_only": True},
        {"needs_reservation": True},
        {"max_time_minutes": 10.0},
        {"max_nodes": 1},
        {"allow_accounts": ("physics",)},
        {"deny_accounts": ("chem",)},
        {"allow_qos": ("high",)},
        {"deny_qos": ("normal",)},
        {"allow_groups": ("staff",)},
    ],
    ids=str,
)
def test_partition_closed_to_the_job_is_never_named(closed: dict[str, Any]) -> None:
    partitions = (make_partition("a100", **closed), make_partition("a40", is_default=True), make_partition("v100"))
    job = make_job(partitions=("a100", "a40", "v100"), account="chem", qos="normal", nodes_min=2, gpus=2)
    decision = decide(job, snapshot=make_snapshot(partitions=partitions), policy=routing_to("a100"))
    assert decision.partitions is None
    assert decision.reasons.count(Reason.PARTITION_NOT_ALLOWED) == 1
    assert any(note.startswith("partition a100 ") for note in decision.notes)


@pytest.mark.parametrize(
    ("groups", "expected"), [(("staff", "users"), ("a100",)), (("users",), None), ((), None), (None, None)]
)
def test_partition_of_certain_groups_is_open_to_their_members_only(
    groups: tuple[str, ...] | None, expected: tuple[str, ...] | None
) -> None:
    partitions = (make_partition("a100", allow_groups=("staff",)), make_partition("a40", is_default=True))
    job = make_job(partitions=("a40", "a100"))
    decision = decide(job, snapshot=make_snapshot(partitions=partitions), user_groups=groups)
    assert decision.partitions == expected


@pytest.mark.parametrize("changes", [{"array": "1-50"}, {"reservation": "maintenance"}])
def test_array_and_reservation_keep_their_partitions(changes: dict[str, Any]) -> None:
    decision = decide(make_job(partitions=("a40", "a100"), **changes))
    assert decision.partitions is None
    assert clocks(decision) == {A100: 1290, A40: 1455}


# Hostile policies ---------------------------------------------------------------------------------------------------


def _raise(context: DecisionContext) -> None:
    raise RuntimeError("evil\n\x1b[31m" + "x" * 10_000)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


def _raise_unprintable(context: DecisionContext) -> None:
    raise _Unprintable


def forged(**changes: Any) -> PolicyAnswer:
    """Return an answer of which a field is of the wrong kind."""
    answer = PolicyAnswer()
    for name, value in changes.items():
        object.__setattr__(answer, name, value)
    return answer


def forged_clock(**changes: Any) -> PolicyAnswer:
    clock = make_clock(A100, 1335)
    for name, value in changes.items():
        object.__setattr__(clock, name, value)
    return forged(clocks=(clock,))


@pytest.mark.parametrize(
    "answer",
    [
        _raise,
        _raise_unprintable,
        None,
        "garbage",
        {"clocks": []},
        forged(clocks=None),
        forged(clocks=7),
        forged(clocks=(None,)),
        forged(clocks=(make_clock(A100, 1335),) * 2),
        forged(clocks=tuple(make_clock(GpuTypeName(f"t{i}"), 1) for i in range(65))),
        forged(partitions="a100"),
        forged(partitions=()),
        forged(partitions=(1, 2)),
        forged(partitions=("a100", "a100")),
        forged(partitions=([],)),
        forged(prefer=""),
        forged(prefer="a&b"),
        forged(prefer="x" * 65),
        forged(prefer=b"nvlink"),
        forged(prefer=("nvlink",)),
        forged(notes=5),
        forged(reasons=None),
        forged_clock(sm_clock_mhz=float("nan")),
        forged_clock(sm_clock_mhz=float("inf")),
        forged_clock(sm_clock_mhz=10**400),
        forged_clock(sm_clock_mhz=True),
        forged_clock(sm_clock_mhz="1335"),
        forged_clock(predicted_slowdown=float("nan")),
        forged_clock(predicted_energy_change=float("-inf")),
        forged_clock(predicted_slowdown=None),
        forged_clock(gpu_type=None),
    ],
    ids=lambda answer: str(answer)[:40],
)
def test_policy_that_raises_or_answers_garbage_leaves_the_job_unchanged(answer: Any) -> None:
    decision = decide(make_job(partitions=("a40", "a100")), policy=AnswerPolicy(answer))
    assert not changes_job(decision)
    assert decision.reasons[0] is Reason.POLICY_ERROR
    assert decision.notes and all(note.isprintable() and len(note) <= 200 for note in decision.notes)


def test_notes_of_a_policy_are_cut_and_made_printable() -> None:
    answer = PolicyAnswer(notes=("a\nb\x1b[0m" * 1000, *("more",) * 1000))
    decision = decide(make_job(), policy=AnswerPolicy(answer))
    assert decision.notes == (("a?b?[0m" * 1000)[:200], "more")


def test_policy_without_a_name_still_gets_a_decision() -> None:
    class Nameless:
        @property
        def name(self) -> str:
            raise RuntimeError

        def decide(self, job: JobRequest, snapshot: ClusterSnapshot, context: DecisionContext) -> PolicyAnswer:
            return PolicyAnswer()

    decision = decide(make_job(), policy=Nameless())  # type: ignore[arg-type]  # the point of the test
    assert (decision.policy, decision.policy_version) == ("unknown", "unknown")


# Decision, entry and repetition ---------------------------------------------------------------------------------------


def test_same_question_gets_the_same_decision() -> None:
    ask: Callable[[], EnergyDecision] = lambda: decide(make_job(partitions=("a40", "a100")))  # noqa: E731  # asked twice
    assert ask() == ask()


def test_reference_stays_the_default_clock_over_nights_of_lowered_clocks() -> None:
    first = decide(make_job(), runtime=estimate(600.0))
    seconds = 600.0
    for _ in range(3):
        seconds *= 1.0 + first.clocks[0].predicted_slowdown
        again = decide(make_job(), runtime=estimate(seconds))
        assert again.clocks == first.clocks
        assert again.clocks[0].default_clock_mhz == 1410


def test_entry_carries_id_mode_clocks_and_limits() -> None:
    assert decision_entry(decide(make_job()), 600.0).encode() == (
        "v=1;id=00000000;mode=balanced;clocks=a100-sxm4-80gb:1290;watts=a100-sxm4-80gb:500;limit=600"
    )


@pytest.mark.parametrize(("limits", "watts"), [({}, 400.0), ({"a100": 500.0}, 500.0), ({"a100": 449.6}, 449.6)])
def test_clock_names_the_power_limit_it_was_chosen_for(limits: dict[str, float], watts: float) -> None:
    decision = decide(make_job(), config=make_config(gpu_power_limits_watts=limits))
    assert [clock.power_limit_watts for clock in decision.clocks] == [watts]
    assert decision_entry(decision, None).assumed_watts == {A100: round(watts)}


def test_power_limit_of_the_policy_does_not_count() -> None:
    decision = decide(make_job(), policy=asking(1290, power_limit_watts=9_000.0))
    assert [clock.power_limit_watts for clock in decision.clocks] == [500.0]


@pytest.mark.parametrize("limit", [None, 0.0, 0.5, -1.0, float("inf"), float("nan"), 1e12])
def test_entry_leaves_out_a_limit_that_is_none(limit: float | None) -> None:
    assert decision_entry(decide(make_job()), limit).time_limit_minutes is None


def test_message_shows_slurm_names_and_never_passes_512_bytes() -> None:
    types = (A100, A40, "v100-pcie-16gb", "v100-pcie-32gb", "v100-sxm2-16gb")
    names = {f"{'x' * 60}{i}": name for i, name in enumerate(types)}
    nodes = [make_node(name, "a100", name) for name in names]
    config = make_config(gpu_types={key: str(name) for key, name in names.items()})
    decision = decide(make_job(mode=EnergyMode.SAVER), snapshot=make_snapshot(*nodes), config=config)
    assert len(decision.clocks) == 5
    assert len(decision.message.encode()) <= 512
    assert decision.message.endswith("more GPU types; refuse with --energy=off")


def test_hostile_gres_name_reaches_no_terminal() -> None:
    evil = "a100\x1b[31m\n$(rm)"
    config = make_config(gpu_types={evil: "a100-sxm4-80gb"})
    decision = decide(make_job(), snapshot=make_snapshot(make_node("n", "a100", evil)), config=config)
    assert decision.message.startswith("a100??31m???rm? at 1290")


def test_new_ids_differ_and_have_the_allowed_form() -> None:
    made = {new_decision_id() for _ in range(100)}
    assert len(made) == 100
    assert all(len(decision_id) == 16 for decision_id in made)


def test_snapshot_is_left_as_it_was() -> None:
    snapshot = make_snapshot()
    copy = replace(snapshot)
    decide(make_job(partitions=("a40", "a100")), snapshot=snapshot)
    assert snapshot == copy


def test_a_policy_that_gives_no_reason_and_changes_nothing_still_has_one() -> None:
    decision = decide(make_job(), policy=AnswerPolicy(PolicyAnswer(reasons=())), config=make_config(routing_open=True))
    assert decision.reasons
    assert not changes_job(decision)
