"""Rules from their text."""

import pickle
from random import Random

import pytest
from rule_factory import make_job, make_view

from slurm_energy.errors import ConfigError, PolicyError, SlurmEnergyError, ValueRangeError
from slurm_energy.policy.placement import Placement
from slurm_energy.policy.registry import create_rule, rule_entry, rule_names

ARENA = [
    "slurm-default",
    "fcfs",
    "sjf-backfill",
    "easy-estimates",
    "fixed-clock",
    "fixed-dvfs",
    "job-table",
    "masked-random",
    "dp",
    "dp-full",
    "ucb1",
    "jointnf",
    "jointnf-mask",
    "greedy",
    "price",
    "adaptive-price",
    "total-cost",
    "gogh",
    "cap-uniform",
    "cap-greedy",
    "edp",
    "clairvoyant",
]


def test_every_rule_of_the_arena_exists_under_its_name() -> None:
    assert sorted(rule_names()) == sorted(ARENA)
    assert [create_rule(name).name for name in ARENA] == ARENA


@pytest.mark.parametrize("name", ARENA)
def test_a_summary_is_one_line_and_every_setting_says_what_it_means(name: str) -> None:
    entry = rule_entry(name)
    assert entry.summary and "\n" not in entry.summary
    assert all(setting.meaning and setting.low <= setting.default <= setting.high for setting in entry.settings)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("oracle-of-delphi", PolicyError, "'oracle-of-delphi' does not exist; known: slurm-default"),
        ("price:W=20", ConfigError, "price has no setting 'W'; it has: V, wake, share"),
        ("greedy:V=20", ConfigError, "greedy has no setting 'V'; it has: wake"),
        ("fcfs:V=20", ConfigError, "fcfs has no setting 'V'; it has: none"),
        ("price:V=cheap", ConfigError, "price:V=cheap is not a number"),
        ("price:V=-1", ValueRangeError, "price:V=-1 is not a number from 0 to 1e+06"),
        ("price:V=nan", ValueRangeError, "price:V=nan"),
        ("price:wake=0.5", ValueRangeError, "wake=0.5 is not a whole number from 0 to 1"),
        ("price:V", ConfigError, "'V' is not of the form key=value"),
        ("price:V=1,V=2", ConfigError, "'V' is given twice"),
        ("price:", ConfigError, "'' is not of the form key=value"),
        ("fixed-clock:l4=3", ValueRangeError, "fixed-clock:l4=3 is not a number from 0.01 to 2"),
        ("job-table:train=0.8", ConfigError, "'train' is neither a setting nor of the form ACCOUNT/NAME"),
        ("", PolicyError, "'' does not exist"),
    ],
)
def test_a_text_that_cannot_be_used_is_refused_with_what_is_wrong(
    text: str, error: type[SlurmEnergyError], said: str
) -> None:
    with pytest.raises(error) as caught:
        create_rule(text)
    assert said in str(caught.value)


def test_settings_reach_the_rule() -> None:
    view, job = make_view(), make_job()
    cheap, quick = create_rule("price:V=0"), create_rule(" price : V = 5000 ")
    for rule in (cheap, quick):
        rule.begin(view, Random(1))
    slow, fast = cheap.place(job, view), quick.place(job, view)
    assert isinstance(slow, Placement) and isinstance(fast, Placement)
    assert (slow.gpus, fast.gpus) == (1, 8)


@pytest.mark.parametrize("name", ARENA)
def test_a_rule_travels_to_another_process_before_and_during_a_run(name: str) -> None:
    view, job = make_view(), make_job(routed_place=1)
    rule = create_rule(name)
    for _ in range(2):
        rule = pickle.loads(pickle.dumps(rule))
        rule.begin(view, Random(3))
        placement = rule.place(job, view)
        assert isinstance(placement, Placement) and placement.place == 1
