from dataclasses import replace
from pathlib import Path
from re import findall

import pytest
from operating_points import best_operating_point
from policy_factory import A40, A100, H100, NOW, V100, make_config, make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.decision import PolicyAnswer, Reason, RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.errors import PolicyError
from slurm_energy.policy.base import Case
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.registry import create_policy, create_rule, known_policy_names, policy_names, rule_names
from slurm_energy.policy.rules.slurm_order import FixedClockRule, SlurmDefaultRule
from slurm_energy.policy.site.comparison import Candidate
from slurm_energy.policy.submission.adapter import SubmissionAdapter


def make_candidate(name: str, *gpu_types: GpuTypeName, room: bool = True) -> Candidate:
    return Candidate(partition=make_partition(name), gpu_types=gpu_types, has_idle_room=room)


def make_case(
    *candidates: Candidate, may_route: bool = False, max_slowdown: float = 0.05, a100_limit_watts: float = 500.0
) -> Case:
    return Case(
        job=make_job(),
        snapshot=make_snapshot(),
        now_seconds=NOW,
        candidates=candidates,
        may_route=may_route,
        max_slowdown=max_slowdown,
        board_limits=BoardLimits(site_watts={A100: a100_limit_watts}),
    )


def clocks(answer: PolicyAnswer) -> dict[str, int]:
    return {choice.gpu_type: choice.sm_clock_mhz for choice in answer.clocks}


BOTH = (make_candidate("a100", A100), make_candidate("a40", A40))


def test_slurm_default_changes_nothing() -> None:
    assert SlurmDefaultRule().decide(make_case(*BOTH)) == PolicyAnswer()


def test_fixed_clock_takes_the_sites_table() -> None:
    policy = FixedClockRule(clocks_mhz={A100: 1234, A40: 1500}, max_slowdown=0.05)
    answer = policy.decide(make_case(*BOTH))
    assert clocks(answer) == {A100: 1230, A40: 1500}


def test_fixed_clock_without_a_table_takes_the_best_clock_inside_the_sites_bound() -> None:
    answer = FixedClockRule(clocks_mhz={}, max_slowdown=0.2).decide(make_case(*BOTH, max_slowdown=0.0))
    point = best_operating_point(A100, 0.2, power_limit_watts=500.0)
    assert point is not None
    assert clocks(answer)[A100] == point.sm_clock_mhz


def test_fixed_clock_for_a_type_without_curves_is_not_proposed() -> None:
    context = make_case(make_candidate("h100", H100))
    assert clocks(FixedClockRule(clocks_mhz={H100: 1500}, max_slowdown=0.05).decide(context)) == {}


def test_oracle_gives_each_type_its_exact_clock() -> None:
    answer = OraclePolicy().decide(make_case(*BOTH))
    assert clocks(answer) == {A100: 1290, A40: 1455}
    assert answer.partitions is None


def test_policies_take_the_clock_that_the_boards_limit_leaves() -> None:
    held = make_case(*BOTH, a100_limit_watts=400.0)
    free, answer = (OraclePolicy().decide(context) for context in (make_case(*BOTH), held))
    assert clocks(answer) == {A100: 1260, A40: 1455}
    assert answer.clocks[0].predicted_energy_change > free.clocks[0].predicted_energy_change + 0.05
    fixed = FixedClockRule(clocks_mhz={}, max_slowdown=0.05).decide(held)
    assert fixed.clocks == answer.clocks
    assert [choice.power_limit_watts for choice in answer.clocks] == [400.0, 300.0]


def test_oracle_gives_no_clock_under_a_bound_that_leaves_none() -> None:
    context = make_case(make_candidate("v100", V100), max_slowdown=0.0)
    assert OraclePolicy().decide(context).clocks == ()


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        (BOTH, None),
        (BOTH[::-1], ("a100",)),
        ((make_candidate("a100", A100, room=False), BOTH[1]), None),
        ((make_candidate("x", A100), make_candidate("y", A100)), None),
        ((make_candidate("mixed", A100, A40), make_candidate("a100", A100)), ("a100",)),
        ((make_candidate("h100", H100), BOTH[0]), None),
        ((BOTH[0], make_candidate("h100", H100)), ("h100",)),
        ((make_candidate("h100", H100, room=False), *BOTH[::-1]), ("a100",)),
    ],
    ids=["both", "reversed", "a100 full", "alike", "mixed", "stays", "faster by its data sheet", "full"],
)
def test_oracle_names_the_cheapest_partition_with_room_unless_slurm_starts_the_job_there(
    candidates: tuple[Candidate, ...], expected: tuple[str, ...] | None
) -> None:
    answer = OraclePolicy().decide(make_case(*candidates, may_route=True))
    assert answer.partitions == expected


@pytest.mark.usefixtures("h100_without_sheet")
def test_oracle_leaves_the_choice_where_a_type_with_room_cannot_be_compared() -> None:
    candidates = (make_candidate("h100", H100), *BOTH)
    answer = OraclePolicy().decide(make_case(*candidates, may_route=True))
    assert answer.partitions is None
    full = (make_candidate("h100", H100, room=False), *BOTH[::-1])
    answer = OraclePolicy().decide(make_case(*full, may_route=True))
    assert answer.partitions == ("a100",)


def test_oracle_leaves_the_list_when_no_partition_has_room() -> None:
    full = (make_candidate("a100", A100, room=False), make_candidate("a40", A40, room=False))
    answer = OraclePolicy().decide(make_case(*full, may_route=True))
    assert answer.partitions is None
    assert clocks(answer).keys() == {A100, A40}
    assert Reason.NO_IDLE_PARTITION in answer.reasons


def test_oracle_gives_a_clock_for_each_type_on_which_the_job_can_still_land() -> None:
    answer = OraclePolicy().decide(make_case(*BOTH, may_route=True))
    assert clocks(answer).keys() == {A100, A40}


def test_registry_makes_every_policy_it_names() -> None:
    assert policy_names()[:3] == ("slurm-default", "fixed-clock", "oracle")
    assert set(rule_names()) - set(policy_names()) == {"clairvoyant", "easy-estimates"}
    assert [create_policy(make_config(name=name)).name for name in policy_names()] == list(policy_names())


def test_the_page_says_of_every_policy_whether_it_decides_jobs() -> None:
    text = (Path(__file__).parents[3] / "docs/reference/policies.md").read_text(encoding="utf-8")
    table = text[text.index("| policy |") :].split("\n\n", 1)[0].splitlines()[2:]
    said = {
        name: row.split("|")[2].startswith(" with ")
        for row in table
        for name in findall(r"`([\w-]+)`", row.split("|")[1])
    }
    assert {name for name, decides in said.items() if decides} == set(known_policy_names())
    assert said.keys() == {*rule_names(), *known_policy_names()}


def test_unknown_policy_is_refused_with_the_known_names() -> None:
    with pytest.raises(PolicyError, match="'magic' does not exist; known: slurm-default, fixed-clock, oracle"):
        create_policy(make_config(name="magic"))


@pytest.mark.parametrize("name", sorted(set(rule_names()) & set(policy_names())))
def test_arena_and_daemon_make_one_class_of_each_name(name: str) -> None:
    assert type(create_rule(name)) is type(create_policy(make_config(name=name)))


@pytest.mark.parametrize("name", ["slurm-default", "fcfs", "sjf-backfill"])
def test_what_slurm_does_by_itself_changes_nothing_at_submission(name: str) -> None:
    assert create_rule(name).decide(make_case(*BOTH, may_route=True)) == PolicyAnswer()


@pytest.mark.parametrize("mhz", [900, 1155, 1410])
def test_a_fixed_clock_is_the_same_by_the_sites_table_and_by_a_place_s_clocks(mhz: int) -> None:
    """The direct answer of a submission, and the one worked out of a view as the simulated cluster asks."""
    case = make_case(make_candidate("a100", A100), max_slowdown=2.0)
    rule = FixedClockRule({A100: mhz / 1410.0}, clocks_mhz={A100: mhz})
    cluster = make_snapshot(make_node("n1", "a100", "a100"), partitions=(make_partition("a100", is_default=True),))
    short = RuntimeEstimate(seconds=60.0, upper_seconds=60.0, source="history")  # the guard keeps limits of time
    seen = SubmissionAdapter({}).answer(rule, replace(case, snapshot=cluster, runtime=short))
    assert clocks(rule.decide(case)) == clocks(seen) == ({} if mhz == 1410 else {A100: mhz})
