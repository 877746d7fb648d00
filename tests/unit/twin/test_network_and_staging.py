"""Work over several nodes, data that is staged in, and links that are congested for a while."""

from typing import Any

import pytest
from small_worlds import (
    CLOCKS,
    Answers,
    FirstFit,
    ended,
    joules,
    make_device,
    make_job,
    make_load,
    make_pool,
    make_world,
    run_jobs,
    started,
    steps_of,
)

from slurm_energy.energy_model.curves import PowerCurve, RuntimeCurve
from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement
from slurm_energy.twin.engine.places import option_table
from slurm_energy.twin.world import Outage, Series, World
from slurm_energy.twin.world.device_model import DeviceModel, Scaling, load_from_curves

LINK: dict[str, Any] = {"link_gigabytes_per_second": 10.0, "link_joules_per_gigabyte": 5.0}


def talking_device() -> DeviceModel:
    """Return a device whose work sends 0.5 GB per unit and device to other nodes."""
    return make_device(loads={"training": make_load(scaling=Scaling(traffic_gigabytes_per_unit=0.5))})


def talking_world(**changes: Any) -> World:
    pool = make_pool(nodes=2, **LINK)
    return make_world(pool, devices=[talking_device()], **changes)


def test_work_inside_a_node_pays_no_traffic() -> None:
    outcome = run_jobs(talking_world(), [make_job(1, units=100.0, gpus=4)])
    assert ended(outcome) == {1: 25.0}
    assert joules(outcome) == {1: pytest.approx(25.0 * 800.0)}


def test_traffic_between_nodes_adds_time_and_energy_to_every_unit() -> None:
    """4 devices of a node send 2 GB per unit over its 10 GB/s; all 8 send 4 GB at 5 J/GB."""
    outcome = run_jobs(talking_world(), [make_job(1, units=100.0, gpus=8)])
    seconds_per_unit = 1.0 / 8.0 + 0.2
    assert ended(outcome) == {1: pytest.approx(100.0 * seconds_per_unit)}
    assert joules(outcome) == {1: pytest.approx(100.0 * (8 * 200.0 * seconds_per_unit + 20.0))}


def test_congestion_in_the_middle_of_a_job_slows_the_rest() -> None:
    congestion = Series(times_seconds=(0.0, 13.0), values=(1.0, 0.5))
    outcome = run_jobs(talking_world(congestion=congestion), [make_job(1, units=100.0, gpus=8)])
    done = 13.0 / 0.325
    assert ended(outcome) == {1: pytest.approx(13.0 + (100.0 - done) * (0.125 + 0.4))}
    assert joules(outcome) == {1: pytest.approx(ended(outcome)[1] * 1_600.0 + 100.0 * 20.0)}


def test_congestion_ends_again_and_holds_from_time_0() -> None:
    congestion = Series(times_seconds=(0.0, 5.25), values=(0.5, 1.0))
    outcome = run_jobs(talking_world(congestion=congestion), [make_job(1, units=100.0, gpus=8)])
    assert ended(outcome) == {1: pytest.approx(5.25 + 90.0 * 0.325)}


def test_congestion_leaves_jobs_of_one_node_alone() -> None:
    congestion = Series(times_seconds=(0.0, 5.0), values=(1.0, 0.1))
    assert ended(run_jobs(talking_world(congestion=congestion), [make_job(1, units=100.0, gpus=4)])) == {1: 25.0}


def test_rules_see_the_costs_of_the_present_congestion() -> None:
    congestion = Series(times_seconds=(0.0, 50.0), values=(1.0, 0.5))
    seen = []

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        seen.append(float(view.options(job).seconds_per_unit[0, 0, -1]))
        return FirstFit().place(job, view)

    jobs = [make_job(1, units=1.0, gpus=8), make_job(2, submitted=60.0, units=1.0, gpus=8)]
    run_jobs(talking_world(congestion=congestion), jobs, Answers(place=place))
    assert seen == [pytest.approx(0.325), pytest.approx(0.525)]


@pytest.mark.parametrize("factor", [0.0, -0.5, 1.5, float("nan")])
def test_a_congestion_that_cannot_be_is_refused(factor: float) -> None:
    with pytest.raises(ValueRangeError):
        talking_world(congestion=steps_of(1.0, factor, every=10.0))


def test_data_is_staged_in_before_the_job_computes() -> None:
    world = make_world(make_pool(**LINK))
    outcome = run_jobs(world, [make_job(1, units=10.0, input_gigabytes=50.0)])
    assert ended(outcome) == {1: pytest.approx(5.0 + 10.0)}
    assert joules(outcome) == {1: pytest.approx(5.0 * 30.0 + 250.0 + 2_000.0)}


def test_the_energy_of_staging_is_the_same_when_the_launch_takes_time_too() -> None:
    world = make_world(make_pool(**LINK), launch_seconds=20.0)
    outcome = run_jobs(world, [make_job(1, units=10.0, input_gigabytes=50.0)])
    assert ended(outcome) == {1: pytest.approx(35.0)}
    assert joules(outcome) == {1: pytest.approx(5.0 * 30.0 + 20.0 * 10.0 + 250.0 + 2_000.0)}


def test_a_link_without_a_limit_takes_no_time_but_its_energy() -> None:
    world = make_world(make_pool(link_joules_per_gigabyte=5.0))
    outcome = run_jobs(world, [make_job(1, units=10.0, input_gigabytes=50.0)])
    assert ended(outcome) == {1: 10.0}
    assert joules(outcome) == {1: pytest.approx(2_000.0 + 250.0)}
    assert outcome.balance_error < 1e-12


def test_a_congested_link_stages_more_slowly() -> None:
    world = make_world(make_pool(**LINK), congestion=steps_of(0.25, every=1.0))
    assert ended(run_jobs(world, [make_job(1, units=10.0, input_gigabytes=50.0)])) == {1: pytest.approx(30.0)}


def test_data_of_parents_in_the_same_place_is_there_already() -> None:
    pools = (make_pool("a", **LINK), make_pool("b", **LINK))
    jobs = [
        make_job(1, units=10.0, partitions=("a",)),
        make_job(2, units=10.0, partitions=("a",), after_ok=(1,), input_gigabytes=50.0),
        make_job(3, units=10.0, partitions=("b",), after_ok=(1,), input_gigabytes=50.0),
    ]
    assert ended(run_jobs(make_world(*pools), jobs)) == {1: 10.0, 2: 20.0, 3: pytest.approx(25.0)}


def test_a_job_staged_again_after_a_failure_pays_again() -> None:
    world = make_world(make_pool(**LINK), outages=(Outage(pool="pool", at_seconds=2.0, until_seconds=10.0, nodes=1),))
    outcome = run_jobs(world, [make_job(1, units=10.0, input_gigabytes=50.0)])
    assert started(outcome) == {1: 0.0}
    assert ended(outcome) == {1: pytest.approx(25.0)}
    assert joules(outcome) == {1: pytest.approx(7.0 * 30.0 + 1.4 * 250.0 + 2_000.0)}


def test_more_devices_are_as_fast_as_the_measured_efficiency_says() -> None:
    scaling = Scaling(efficiency_by_count={2: 0.9, 4: 0.8})
    world = make_world(devices=[make_device(loads={"training": make_load(scaling=scaling)})])
    seconds = {gpus: ended(run_jobs(world, [make_job(1, units=720.0, gpus=gpus)]))[1] for gpus in (1, 2, 4)}
    assert seconds == {1: 720.0, 2: pytest.approx(400.0), 4: pytest.approx(225.0)}
    assert scaling.efficiency(3) == pytest.approx(0.9 + (0.8 - 0.9) * 0.5849625007)
    assert scaling.efficiency(64) == 0.8


def test_a_loss_per_device_adds_to_every_device_s_share() -> None:
    scaling = Scaling(seconds_per_device=0.1)
    world = make_world(devices=[make_device(loads={"training": make_load(scaling=scaling)})])
    assert ended(run_jobs(world, [make_job(1, units=100.0, gpus=4)])) == {1: pytest.approx(100.0 * (1.0 + 0.4) / 4)}
    assert ended(run_jobs(world, [make_job(1, units=100.0, gpus=1)])) == {1: pytest.approx(100.0)}


def test_a_board_s_limit_holds_the_real_clock_below_the_set_one() -> None:
    """P(f) = 100 f^3 + 100 reaches 112.5 W at f = 0.5: above it time and power stay."""
    load = load_from_curves(
        PowerCurve(cubic_watts=100.0, linear_watts=0.0, constant_watts=100.0),
        RuntimeCurve(memory_seconds=0.0, compute_seconds=1.0, fixed_seconds=0.0),
        CLOCKS,
        power_limit_watts=112.5,
    )
    assert load.watts == pytest.approx((101.5625, 112.5, 112.5))
    assert load.seconds_per_unit == pytest.approx((4.0, 2.0, 2.0))
    outcome = run_jobs(make_world(devices=[make_device(loads={"training": load})]), [make_job(1, units=10.0)])
    assert ended(outcome) == {1: pytest.approx(20.0)}
    assert joules(outcome) == {1: pytest.approx(20.0 * 112.5)}
    assert outcome.clock.tolist() == [2]


def test_a_limit_below_the_load_s_constant_power_is_refused() -> None:
    power = PowerCurve(cubic_watts=100.0, linear_watts=0.0, constant_watts=100.0)
    runtime = RuntimeCurve(memory_seconds=0.0, compute_seconds=1.0, fixed_seconds=0.0)
    with pytest.raises(ValueRangeError, match=r"power limit 90\.0 W"):
        load_from_curves(power, runtime, CLOCKS, power_limit_watts=90.0)


def test_option_tables_hold_infinity_where_a_job_cannot_run() -> None:
    world = make_world(
        make_pool("a", gpus_per_node=2),
        make_pool("b", device="other"),
        devices=[make_device(), make_device("other", loads={})],
    )
    table = option_table(world, "training", (1, 2, 4))
    assert table.seconds_per_unit[0, :, -1].tolist() == [1.0, 0.5, float("inf")]
    assert (table.seconds_per_unit[1] == float("inf")).all()
    assert table.joules_per_unit[0, 1].tolist() == [
        pytest.approx(2 * w * s / 2) for w, s in ((60, 4), (100, 2), (200, 1))
    ]
    assert table.count_index(2) == 1
