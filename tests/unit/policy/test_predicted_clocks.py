"""A network's expectation in a decision: the cheapest clock by it, inside what the slowest measured program allows."""

import pytest
from guard_questions import asking, clocks, decide, estimate
from policy_factory import A100, H100, NOW, make_config, make_job, make_node, make_snapshot
from work_samples import make_work

from slurm_energy.config import Config
from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.predicted_clocks import PredictedClocks, PredictedWork
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.errors import ValueRangeError
from slurm_energy.estimation.site_clocks import site_clocks
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.rules.total_cost import TotalCostRule
from slurm_energy.policy.submission.adapter import SubmissionAdapter

NETWORK = make_config(clock_predictions="network")
MEAN = make_config(clock_predictions="network", slowdown_bound="mean")
ON_H100 = make_snapshot(make_node("n1", "a100", "h100"))


def expected(upper: float, gpu_type: GpuTypeName = A100, energy_change: float = -0.3) -> PredictedWork:
    curve = PredictedClocks(
        relative_clocks=(0.5, 0.75, 1.0),
        slowdown=(upper / 2.0, upper / 4.0, 0.0),
        upper_slowdown=(upper, upper / 2.0, 0.0),
        energy_change=(energy_change, energy_change / 2.0, 0.0),
    )
    return PredictedWork(clocks={gpu_type: curve}, own_runs=7, alike_runs=40, version="v1")


def test_work_that_is_expected_to_wait_for_memory_gets_the_lowest_clock_of_the_table_where_the_mean_counts() -> None:
    tables, network = (clocks(decide(make_job(), config=MEAN, predicted=one)) for one in (None, expected(0.02)))
    assert network[A100] < tables.get(A100, 1410)


def test_the_mean_bound_holds_for_the_expected_slowdown() -> None:
    decision = decide(make_job(), config=MEAN, predicted=expected(0.2))
    (choice,) = decision.clocks
    found = expected(0.2).clocks[A100].at(choice.sm_clock_mhz / 1410)
    below = expected(0.2).clocks[A100].at((choice.sm_clock_mhz - 15) / 1410)
    assert found is not None and below is not None
    assert found[0] <= 0.05 < below[0]


@pytest.mark.parametrize(
    ("config", "job"),
    [(NETWORK, make_job()), (NETWORK, make_job(max_slowdown=0.03)), (MEAN, make_job(max_slowdown=0.03))],
    ids=["each job's bound", "a user's own", "a user's own where the site's is in the mean"],
)
def test_a_promise_to_a_user_is_held_by_the_slowest_measured_program_whatever_is_expected(
    config: Config, job: JobRequest
) -> None:
    asked = decide(job, policy=asking(900), config=config, predicted=expected(0.02))
    table = clock_table_of(A100, power_limit_watts=500.0)
    (choice,) = asked.clocks
    point = None if table is None else table.at(choice.sm_clock_mhz)
    assert point is not None
    assert point.worst_slowdown <= (job.options.max_slowdown or 0.05)
    assert choice.worst_slowdown == point.worst_slowdown


def test_a_deadline_is_held_by_the_slowest_measured_program_where_the_mean_counts() -> None:
    runtime = estimate(1000.0)
    job = make_job(deadline_seconds=NOW + 1150.0)
    (choice,) = decide(job, config=MEAN, predicted=expected(0.02), runtime=runtime).clocks
    table = clock_table_of(A100, power_limit_watts=500.0)
    point = None if table is None else table.at(choice.sm_clock_mhz)
    assert point is not None
    assert 1000.0 * (1.0 + point.worst_slowdown) <= 1150.0


def test_a_type_without_any_curve_is_taken_to_follow_its_clock_where_a_user_was_promised_a_bound() -> None:
    (choice,) = decide(make_job(), snapshot=ON_H100, config=NETWORK, predicted=expected(0.02, H100)).clocks
    assert choice.default_clock_mhz / choice.sm_clock_mhz - 1.0 <= 0.05


def test_work_that_draws_less_than_all_that_was_measured_keeps_the_default_clock_where_each_job_has_the_bound() -> None:
    light = make_work({A100: (300.0, 60.0)})
    assert A100 not in clocks(decide(make_job(name="train"), config=NETWORK, work=light, predicted=expected(0.02)))


def test_inside_the_bound_the_network_chooses_what_it_expects_to_save_the_most() -> None:
    wasteful = expected(0.02, energy_change=0.2)
    assert not clocks(decide(make_job(), config=NETWORK, predicted=wasteful))


def test_an_upper_quantile_beyond_the_slowest_program_counts() -> None:
    asked = decide(make_job(), policy=asking(900), config=NETWORK, predicted=expected(0.9))
    (choice,) = asked.clocks
    found = expected(0.9).clocks[A100].at(choice.sm_clock_mhz / 1410)
    assert found is not None and found[1] <= 0.05


def test_the_network_stands_in_the_place_of_the_sites_tables_too_and_keeps_the_bound_itself() -> None:
    site = site_clocks([], [], (0.05, 0.2), BoardLimits(site_watts={A100: 500.0}), NOW)
    alone, beside = (
        decide(make_job(), config=MEAN, predicted=expected(0.2), site_clocks=one).clocks for one in (None, site)
    )
    assert alone == beside
    assert alone[0].predicted_slowdown <= 0.05


def test_a_type_that_the_sites_own_trials_know_gets_a_clock_and_is_not_called_unknown() -> None:
    found = learned(1605, 1980)
    site = site_clocks([(1, "bert", {H100: found})], [], (0.05, 0.2), BoardLimits(), NOW)
    mean = make_config(slowdown_bound="mean")
    decision = decide(make_job(), policy=asking(1605, H100), snapshot=ON_H100, config=mean, site_clocks=site)
    assert [choice.gpu_type for choice in decision.clocks] == [H100]
    assert Reason.UNKNOWN_GPU_TYPE not in decision.reasons
    assert not any("no clock is chosen" in note for note in decision.notes)


def test_a_type_that_trials_of_the_name_know_is_not_called_unknown() -> None:
    trials = make_config(clock_trials="on")
    decision = decide(make_job(), snapshot=ON_H100, config=trials, learned_clocks={H100: learned(1605, 1980)})
    assert clocks(decision) == {H100: 1605}
    assert Reason.UNKNOWN_GPU_TYPE not in decision.reasons


def learned(clock_mhz: int, default_mhz: int) -> LearnedClock:
    return LearnedClock(
        sm_clock_mhz=clock_mhz, default_clock_mhz=default_mhz, slowdown=0.01, error=0.002, energy_change=-0.2, runs=3,
        measured_at_seconds=NOW - 60.0,
    )  # fmt: skip


def test_the_notes_say_from_which_evidence_and_what_the_tables_would_give() -> None:
    decision = decide(make_job(), config=NETWORK, predicted=expected(0.02))
    (note,) = [note for note in decision.notes if "expected to take" in note]
    assert "from 7 runs of this name and 40 of similar jobs; by tables alone" in note


def test_tables_decide_where_the_site_did_not_ask_for_the_network() -> None:
    assert clocks(decide(make_job(), predicted=expected(0.02))) == clocks(decide(make_job()))


def test_a_type_without_any_curve_gets_a_clock_that_is_no_promise() -> None:
    unknown = decide(make_job(), snapshot=ON_H100, config=NETWORK)
    known = decide(make_job(), snapshot=ON_H100, config=NETWORK, predicted=expected(0.02, H100))
    assert not unknown.clocks
    (choice,) = known.clocks
    assert choice.gpu_type == H100 and choice.is_assumed


def test_every_policy_that_weighs_costs_reads_the_expectation() -> None:
    for gpu_type, snapshot in ((A100, make_snapshot()), (H100, ON_H100)):
        policy = CostPolicy()
        decision = decide(
            make_job(), policy=policy, snapshot=snapshot, config=NETWORK, predicted=expected(0.02, gpu_type)
        )
        exact = decide(
            make_job(), policy=OraclePolicy(), snapshot=snapshot, config=NETWORK, predicted=expected(0.02, gpu_type)
        )
        assert clocks(decision).keys() == clocks(exact).keys() == {gpu_type}


class CostPolicy:
    """The rule of the least total cost, as it is served."""

    name = "total-cost"
    version = "1"

    def decide(self, case):  # type: ignore[no-untyped-def]  # the hook's form
        return SubmissionAdapter({}).answer(TotalCostRule(), case)


@pytest.mark.parametrize(
    "changes",
    [
        {"relative_clocks": (0.5, 0.75, 0.9)},
        {"relative_clocks": (0.75, 0.5, 1.0)},
        {"slowdown": (0.1, 0.0)},
        {"slowdown": (float("nan"), 0.0, 0.0)},
        {"upper_slowdown": (-0.1, 0.0, 0.0)},
        {"energy_change": (-1.5, 0.0, 0.0)},
    ],
)
def test_curves_that_make_no_sense_are_refused(changes: dict[str, tuple[float, ...]]) -> None:
    values = {
        "relative_clocks": (0.5, 0.75, 1.0),
        "slowdown": (0.1, 0.05, 0.0),
        "upper_slowdown": (0.2, 0.1, 0.0),
        "energy_change": (-0.2, -0.1, 0.0),
    }
    with pytest.raises(ValueRangeError):
        PredictedClocks(**{**values, **changes})


def test_nothing_is_said_below_the_lowest_clock() -> None:
    curve = expected(0.1).clocks[A100]
    assert curve.at(0.4) is None
    assert curve.at(0.75) == pytest.approx((0.025, 0.05, -0.15))
    assert curve.at(0.625) == pytest.approx((0.0375, 0.075, -0.225))
