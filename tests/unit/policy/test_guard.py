from collections.abc import Callable
from dataclasses import replace

import pytest
from guard_questions import AnswerPolicy, asking, clocks, decide, estimate
from policy_factory import (
    A40,
    A100,
    NOW,
    changes_job,
    ids,
    make_config,
    make_job,
    make_node,
    make_partition,
    make_snapshot,
)

from slurm_energy.domain.decision import EnergyDecision, PolicyAnswer, Reason
from slurm_energy.domain.job import EnergyMode, JobRequest
from slurm_energy.domain.report import reason_sentence
from slurm_energy.policy.guard import Guard, decision_entry, new_decision_id
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.rules.slurm_order import SlurmDefaultRule

LINE = (
    "a100 at {} of 1410 MHz: at most {} % longer; what this job saves is not known ({} % for {} % of time in the mean "
    "of other programs)"
)
NOT_KNOWN = "what it saves for this job is not known"


def test_job_of_the_default_partition_gets_the_clock_of_its_gpu_type() -> None:
    decision = decide(make_job())
    assert clocks(decision) == {A100: 1290}
    assert decision.partitions is None
    assert decision.message == LINE.format("1290", "5", "11", "4") + "; opt out with --energy=off"
    assert decision.reasons == (Reason.POLICY, Reason.ROUTING_CLOSED)


def test_message_for_boards_of_the_catalogues_limit_tells_what_they_save_and_the_clock_people_know() -> None:
    decision = decide(make_job(), config=make_config(gpu_power_limits_watts={}))
    assert decision.message == LINE.format("1260", "5", "4", "3") + "; opt out with --energy=off"
    saver = decide(make_job(mode=EnergyMode.SAVER), config=make_config(gpu_power_limits_watts={"a100": 400.0}))
    assert saver.message == LINE.format("1095", "19", "18", "17") + "; opt out with --energy=off"


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
    line = "would have been: " + LINE.format("1290", "5", "11", "4")
    assert (decision.notes[0], decision.message) == (line, line)
    assert decision.announcement == (
        f"only observed, nothing is changed; it would have been a lower GPU clock ({NOT_KNOWN}, somewhat longer run)"
    )


def test_a_site_that_observes_says_nothing_at_the_submission_of_people_who_did_not_ask_for_it() -> None:
    decision = decide(make_job(), config=make_config(default_mode="observe"))
    assert decision.message.startswith("would have been: a100")
    assert decision.announcement == ""


def test_the_announcement_is_true_of_a_job_that_slurm_refuses_and_has_no_digit() -> None:
    decision = decide(make_job())
    assert decision.announcement == (
        f"if accepted: a lower GPU clock ({NOT_KNOWN}, somewhat longer run); opt out with --energy=off"
    )
    for kind in (make_job(), make_job(mode=EnergyMode.OBSERVE), make_job(partitions=("a40", "a100"), max_slowdown=2.0)):
        told = decide(kind).announcement
        assert told and not any(letter.isdigit() for letter in told)


def test_a_decision_that_does_nothing_announces_nothing() -> None:
    for kind in (make_job(mode=EnergyMode.OFF), make_job(gpus=0), make_job(max_slowdown=0.0), make_job(quiet=True)):
        assert decide(kind).announcement == ""


@pytest.mark.parametrize("partitions", [("nosuch",), ("nosuch", "neither")])
def test_a_partition_that_nobody_knows_is_the_reason(partitions: tuple[str, ...]) -> None:
    policy = AnswerPolicy(lambda context: pytest.fail("the policy was asked"))
    decision = decide(make_job(partitions=partitions), policy=policy)
    assert (changes_job(decision), decision.reasons) == (False, (Reason.UNKNOWN_PARTITION,))
    assert decision.notes == tuple(f"partition {name} is not in the picture of the cluster" for name in partitions)


def test_a_partition_that_nobody_knows_beside_another_is_told() -> None:
    decision = decide(make_job(partitions=("nosuch", "a100")))
    assert clocks(decision) == {A100: 1290}
    assert "partition nosuch is not in the picture of the cluster" in decision.notes


def test_no_partition_and_no_default_one_is_the_reason() -> None:
    snapshot = make_snapshot(partitions=(make_partition("a100"), make_partition("a40")))
    decision = decide(make_job(), snapshot=snapshot)
    assert decision.reasons == (Reason.UNKNOWN_PARTITION,)
    assert decision.notes == ("the job names no partition, and the cluster has no default one",)


def test_a_bound_of_no_slowdown_is_the_reason_for_the_default_clock() -> None:
    decision = decide(make_job(max_slowdown=0.0))
    assert not changes_job(decision)
    assert Reason.NO_CLOCK_IN_BOUND in decision.reasons
    assert "no lower clock is inside the allowed slowdown of 0 %" in decision.notes


@pytest.mark.parametrize("gpu_type", ["h100", "3090"])
def test_a_gpu_type_that_the_partition_lacks_is_the_reason(gpu_type: str) -> None:
    decision = decide(make_job(gpu_type=gpu_type, partitions=("a100",)))
    assert not changes_job(decision)
    assert Reason.NO_SUCH_GPU in decision.reasons


def test_a_policy_that_leaves_the_job_alone_says_so() -> None:
    decision = decide(make_job(), policy=SlurmDefaultRule())
    assert decision.reasons == (Reason.POLICY, Reason.ROUTING_CLOSED, Reason.NOTHING_CHANGED)


@pytest.mark.parametrize(
    "job",
    [
        make_job(partitions=("nosuch",)),
        make_job(max_slowdown=0.0),
        make_job(gpu_type="h100"),
        make_job(mode=EnergyMode.OFF),
    ],
)
def test_nobody_is_told_that_the_policy_chose_what_was_left_as_it_was(job: JobRequest) -> None:
    decision = decide(job)
    sentences = [reason_sentence(code, changed=changes_job(decision)) for code in decision.reasons]
    assert "The policy chose this setting." not in sentences
    assert sentences


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
    assert decision.message.endswith("more GPU types; opt out with --energy=off")


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
