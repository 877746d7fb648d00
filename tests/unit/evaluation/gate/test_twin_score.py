from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from gate_samples import make_candidate

from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.evaluation.gate import twin_score
from slurm_energy.evaluation.gate.sheet import StageVerdict
from slurm_energy.evaluation.gate.twin_score import (
    LoopLimits,
    PredictedDay,
    TwinOutcome,
    TwinRuns,
    reproducibility_result,
    self_evaluation,
    twin_result,
)
from slurm_energy.policy.candidate import NameClocks, SiteEstimates
from slurm_energy.twin.adapters.served import ServedPolicy
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import shipped_world


def outcomes(*savings: float, slower: float = 0.0, timeouts: int = 0) -> Callable[[int], TwinOutcome]:
    found = iter(savings)
    return lambda seed: TwinOutcome(saving=next(found), slower=slower, timeouts=timeouts)


def ticks(step: float) -> Callable[[], float]:
    def count() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += step

    source = count()
    return lambda: next(source)


def test_loop_ends_when_the_standard_error_is_within_the_tolerance() -> None:
    seeds: list[int] = []

    def compare(seed: int) -> TwinOutcome:
        seeds.append(seed)
        return TwinOutcome(saving=0.05 + 0.001 * (seed % 2), slower=0.0, timeouts=0)

    found = self_evaluation(compare, LoopLimits(tolerance=0.001, min_seeds=3), first_seed=40, clock=ticks(0.0))
    assert seeds == [40, 41, 42]
    assert found.within
    assert "within the tolerance" in found.ended


def test_loop_says_that_the_budget_of_seeds_or_time_ended_it() -> None:
    limits = LoopLimits(tolerance=1e-6, max_seeds=4, seconds=100.0)
    by_seeds = self_evaluation(outcomes(0.1, 0.0, 0.1, 0.0), limits, 0, ticks(0.0))
    by_time = self_evaluation(outcomes(0.1, 0.0, 0.1, 0.0), limits, 0, ticks(60.0))
    assert (by_seeds.within, by_seeds.ended) == (False, "the budget of 4 seeds is spent")
    assert (len(by_time.outcomes), by_time.ended) == (2, "the budget of 100 s is spent")


@pytest.mark.parametrize(
    ("compare", "words"),
    [
        (outcomes(-0.03, -0.031, -0.029), "needs 3.0% more energy"),
        (outcomes(0.05, 0.05, 0.05, slower=0.2), "stay 20.0% longer"),
        (outcomes(0.05, 0.05, 0.05, timeouts=1), "3 more jobs are cut off"),
    ],
)
def test_worse_candidate_is_stopped(compare: Callable[[int], TwinOutcome], words: str) -> None:
    limits = LoopLimits()
    result = twin_result(self_evaluation(compare, limits, 0, ticks(0.0)), limits)
    assert result.verdict is StageVerdict.STOPPED
    assert words in result.summary


def test_better_candidate_passes_with_its_interval() -> None:
    limits = LoopLimits()
    result = twin_result(self_evaluation(outcomes(0.05, 0.051, 0.049), limits, 0, ticks(0.0)), limits)
    assert result.verdict is StageVerdict.PASSED
    assert result.intervals["saving in the twin"].mean == pytest.approx(0.05)
    assert result.score is not None
    assert result.score > 0.95
    assert not result.notes


def test_replays_that_all_end_alike_say_that_the_twin_does_not_know_what_changes() -> None:
    limits = LoopLimits()
    result = twin_result(self_evaluation(outcomes(0.0, 0.0, 0.0), limits, 0, ticks(0.0)), limits)
    assert result.verdict is StageVerdict.PASSED
    assert "every replay ended alike" in result.notes[0]


def test_other_decisions_for_the_same_seed_stop_a_candidate() -> None:
    assert reproducibility_result(("a", "b"), (), {}, 0.25).verdict is StageVerdict.STOPPED
    assert reproducibility_result(("a", "a"), (), {}, 0.25).verdict is StageVerdict.PASSED


def test_twin_that_is_far_off_last_week_stops_and_shows_its_errors() -> None:
    days = [PredictedDay(twin_joules=measured * 1.1, measured_joules=measured) for measured in (1e9, 2e9, 3e9)]
    near = reproducibility_result(("a", "a"), days, {"off-policy": 2}, 0.25)
    far = reproducibility_result(("a", "a"), days, {}, 0.05)
    assert near.figures["twin_error_median"] == pytest.approx(0.1)
    assert near.figures["earlier_stops_off_policy"] == 2.0
    assert near.verdict is StageVerdict.PASSED
    assert far.verdict is StageVerdict.STOPPED


def test_more_seeds_of_the_same_jobs_do_not_make_the_saving_surer() -> None:
    # Seeds draw users again and again from one set of jobs: their spread is the doubt about that set.
    limits = LoopLimits(tolerance=0.0, max_seeds=20)
    found = self_evaluation(outcomes(*[0.0, 0.04] * 10), limits, 0, ticks(0.0))
    assert found.saving.low < -0.02
    assert found.saving.high > 0.06


def test_fewer_seeds_than_the_least_are_not_judged() -> None:
    limits = LoopLimits(seconds=0.0)
    result = twin_result(self_evaluation(outcomes(0.05), limits, 0, ticks(1.0)), limits)
    assert result.verdict is StageVerdict.NOT_JUDGED
    assert result.summary.startswith("1 of at least 3 seeds")


def test_a_clock_of_a_board_counts_for_the_device_that_stands_for_it_in_the_twin() -> None:
    world = shipped_world("philly-a100")
    clock = LearnedClock(
        sm_clock_mhz=1170,
        default_clock_mhz=1380,
        slowdown=0.0,
        error=0.01,
        energy_change=-0.1,
        runs=3,
        measured_at_seconds=1.0,
        by_trial=False,
    )
    asked: list[ServedPolicy] = []

    def ran(_: World, workload: Workload, rule: ServedPolicy, **__: object) -> object:
        asked.append(rule)
        return workload

    clocks = (NameClocks(user_id=7, group="train", clocks={GpuTypeName("v100-pcie-16gb"): clock}),)
    own = replace(make_candidate("oracle"), estimates=SiteEstimates(clocks=clocks))
    twin = TwinRuns(
        world=world,
        make_workload=lambda _: Workload(name="w", jobs=(), source="none"),
        config=Config(),
        user_ids={"ann": 7},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(twin_score, "run", ran)
        twin.replay(own, 1)
    served = asked[0]._clocks["ann", "train"]
    # The twin's v100 is a board with another highest clock, of which the same share is taken.
    assert served[GpuTypeName("v100-pcie-16gb")] == clock
    other = served[GpuTypeName("v100-sxm2-16gb")]
    assert (other.sm_clock_mhz, other.default_clock_mhz) == (1297, 1530)
