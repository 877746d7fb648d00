"""A warm-up is simulated and not counted: what is left are differences of totals."""

from dataclasses import replace

import numpy as np
import pytest
from small_worlds import FirstFit, make_job, make_pool, make_world, run_jobs, steps_of

from slurm_energy.errors import ValueRangeError
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.world import FailureRates, SuspendSettings, World


def busy_world(**changes: object) -> World:
    """Two nodes that sleep, with hosts and a price that changes; nothing in it is free of bookkeeping."""
    pool = make_pool(
        nodes=2,
        gpus_per_node=2,
        host_idle_watts=50.0,
        host_busy_watts=90.0,
        suspend=SuspendSettings(idle_seconds=30.0, resume_seconds=10.0, suspended_watts=5.0, resume_watts=80.0),
    )
    return replace(make_world(pool, price_per_kwh={"": steps_of(1.0, 2.0, every=150.0)}), **changes)  # type: ignore[arg-type]  # per field


def jobs() -> list[object]:
    return [make_job(n, 37.0 * n, 40.0 + 13.0 * n, gpus=(1, 2), cpus=2) for n in range(1, 9)]


def ran(world: World, **options: object) -> Outcome:
    return run_jobs(world, jobs(), FirstFit(clock=1), seed=3, **options)  # type: ignore[arg-type]  # per option


@pytest.mark.parametrize("failures", [FailureRates(), FailureRates(gpu_mtbf_seconds=900.0, mean_repair_seconds=40.0)])
def test_what_came_before_and_what_is_counted_add_up_to_the_whole_run(failures: FailureRates) -> None:
    world = busy_world(failures=failures)
    whole, first, later = (
        ran(world, horizon_seconds=500.0),
        ran(world, horizon_seconds=170.0),
        ran(world, horizon_seconds=500.0, warm_up_seconds=170.0),
    )
    assert later.total_joules == pytest.approx(whole.total_joules - first.total_joules)
    assert later.suspended_node_hours == pytest.approx(whole.suspended_node_hours - first.suspended_node_hours)
    assert later.cost is not None and whole.cost is not None and first.cost is not None
    assert later.cost == pytest.approx(whole.cost - first.cost)
    for component, joules in later.joules_by_component.items():
        parts = whole.joules_by_component[component] - first.joules_by_component[component]
        assert joules == pytest.approx(parts, abs=1e-6)
    came = len(first.job_id)
    assert 0 < came < len(whole.job_id)
    for name in ("energy_joules", "units", "units_lost", "gpu_seconds", "cpu_seconds", "restarts"):
        before = np.concatenate([getattr(first, name), np.zeros(len(whole.job_id) - came)])
        np.testing.assert_allclose(getattr(later, name) + before, getattr(whole, name), atol=1e-6, err_msg=name)
    np.testing.assert_allclose(later.units_before[:came], first.units, atol=1e-9)
    assert later.balance_error < 1e-9


def test_a_warm_up_changes_nothing_that_happens() -> None:
    whole, later = (
        ran(busy_world(), horizon_seconds=500.0),
        ran(busy_world(), horizon_seconds=500.0, warm_up_seconds=170.0),
    )
    np.testing.assert_array_equal(whole.started_seconds, later.started_seconds)
    np.testing.assert_allclose(whole.ended_seconds, later.ended_seconds, rtol=1e-12)
    assert (later.end_seconds, later.counted_seconds, whole.counted_from_seconds) == (500.0, 330.0, 0.0)
    assert later.is_counted.tolist() == [job.submitted_seconds >= 170.0 for job in jobs()]  # type: ignore[attr-defined]  # jobs


def test_a_run_that_ends_within_its_warm_up_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="within its warm-up of 5000 s"):
        ran(busy_world(), warm_up_seconds=5000.0)
    with pytest.raises(ValueRangeError, match=r"warm-up -1\.0 s"):
        ran(busy_world(), warm_up_seconds=-1.0)
