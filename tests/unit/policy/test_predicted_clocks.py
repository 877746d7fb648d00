"""A network's expectation in a decision: the clock is its cheapest inside the bound of its upper quantile."""

import pytest
from guard_questions import asking, clocks, decide
from policy_factory import A100, H100, make_config, make_job, make_node, make_snapshot

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.predicted_clocks import PredictedClocks, PredictedWork
from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.rules.total_cost import TotalCostRule
from slurm_energy.policy.submission.adapter import SubmissionAdapter

NETWORK = make_config(clock_predictions="network")
ON_H100 = make_snapshot(make_node("n1", "a100", "h100"))


def expected(upper: float, gpu_type: GpuTypeName = A100, energy_change: float = -0.3) -> PredictedWork:
    curve = PredictedClocks(
        relative_clocks=(0.5, 0.75, 1.0),
        slowdown=(upper / 2.0, upper / 4.0, 0.0),
        upper_slowdown=(upper, upper / 2.0, 0.0),
        energy_change=(energy_change, energy_change / 2.0, 0.0),
    )
    return PredictedWork(clocks={gpu_type: curve}, own_runs=7, alike_runs=40, version="v1")


def test_work_that_is_expected_to_wait_for_memory_gets_the_lowest_clock_of_the_table() -> None:
    tables, network = (clocks(decide(make_job(), config=NETWORK, predicted=one)) for one in (None, expected(0.02)))
    assert network[A100] < tables.get(A100, 1410)


def test_the_bound_holds_for_the_upper_quantile() -> None:
    decision = decide(make_job(), config=NETWORK, predicted=expected(0.1))
    (choice,) = decision.clocks
    found = expected(0.1).clocks[A100].at(choice.sm_clock_mhz / 1410)
    below = expected(0.1).clocks[A100].at((choice.sm_clock_mhz - 15) / 1410)
    assert found is not None and below is not None
    assert found[1] <= 0.05 < below[1]


def test_a_clock_below_what_the_upper_quantile_allows_is_raised_by_the_guard() -> None:
    asked = decide(make_job(), policy=asking(900), config=NETWORK, predicted=expected(0.1))
    assert clocks(asked)[A100] > 900


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
