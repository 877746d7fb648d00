"""Worker processes of the arena: what ends one of them costs nobody else his result."""

import os
import time

import pytest

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena import FailedRun, Pool, Step


def test_a_process_that_dies_fails_its_own_step_only() -> None:
    steps = [
        Step(policy="good", seed=1, call=abs, arguments=(-1,)),
        Step(policy="deadly", seed=1, call=os._exit, arguments=(3,)),
        Step(policy="good", seed=2, call=abs, arguments=(-2,)),
        Step(policy="good", seed=3, call=abs, arguments=(-3,)),
    ]
    told: list[tuple[str, int, int]] = []
    with Pool(2) as pool:
        found, failed = pool.results(steps, lambda *words: told.append(words), "runs")
        again, _ = pool.results(steps[:1], lambda *words: None, "runs")
    assert found == {0: 1, 2: 2, 3: 3}
    assert failed == (
        FailedRun(policy="deadly", seed=1, error="its process ended before it was done: out of memory, or killed"),
    )
    assert again == {0: 1}
    assert told[-1] == ("runs", 4, 4)


def test_foreign_errors_are_told_with_their_type() -> None:
    with Pool(1) as pool:
        _, failed = pool.results([Step(policy="p", seed=1, call=int, arguments=("x",))], lambda *words: None, "runs")
    assert failed[0].error.startswith("ValueError: invalid literal")


def test_an_interrupt_ends_the_workers_at_once() -> None:
    def interrupt(*words: object) -> None:
        raise KeyboardInterrupt

    steps = [Step(policy="quick", seed=1, call=abs, arguments=(-1,))]
    steps += [Step(policy="slow", seed=seed, call=time.sleep, arguments=(60.0,)) for seed in range(4)]
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Pool(2) as pool:
        pool.results(steps, interrupt, "runs")
    assert time.monotonic() - begun < 30.0


def test_no_worker_is_refused() -> None:
    from slurm_energy.evaluation.arena import run_arena
    from slurm_energy.evaluation.arena_plan import ArenaPlan

    with pytest.raises(EvaluationError, match="0 workers"):
        run_arena(ArenaPlan(policies=("greedy",), world="chsac"), workers=0)
