"""The ways of starting a job: every one that the table and the bounds allow, each at the clock of least active energy.

The second formulation asks for each place, count and clock by itself, with plain numbers.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from random import Random

import pytest
from small_worlds import (
    Answers,
    FirstFit,
    make_device,
    make_engine,
    make_job,
    make_load,
    make_pool,
    make_world,
    run_jobs,
)

from slurm_energy.policy.gnn.start_options import PlacedOption, RunOptionCosts, placed_options
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, OptionTable, Placement
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.places import option_table
from slurm_energy.twin.engine.scheduler import guarded_placement
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world import Partition, SuspendSettings, World
from slurm_energy.twin.world.file import shipped_world, world_names

FAST = make_device("fast", loads={"training": make_load(watts=(90.0, 160.0, 300.0), seconds_per_unit=(2.0, 1.2, 0.7))})
SLOW = make_device(
    "slow", relative_clocks=(0.5, 1.0), loads={"training": make_load(watts=(70.0, 150.0), seconds_per_unit=(3.0, 1.6))}
)
SOCKET = make_device(
    "socket", is_cpu=True, loads={"training": make_load(watts=(40.0, 60.0, 95.0), seconds_per_unit=(9.0, 6.0, 4.0))}
)
MIXED = make_world(
    make_pool("fast", device="fast"),
    make_pool("slow", device="slow", nodes=2),
    make_pool("cpu", device="socket", nodes=2, gpus_per_node=2),
    devices=(FAST, SLOW, SOCKET),
    partitions=(
        Partition(name="fast", pools=("fast",), max_time_seconds=500.0),
        Partition(name="both", pools=("slow", "cpu")),
    ),
)
"""Three kinds of devices, one a CPU socket; the fast ones behind a time limit of the partition's own."""
MARGIN = 0.95
"""Share of a time limit, or of the time left, that an option may fill."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One way of starting a job, found by itself."""

    place: int
    gpus: int
    open_clocks: tuple[int, ...]
    oracle_clock: int


def is_open(job: WaitingJob, clock: int, times: Sequence[float], limit_seconds: float, now: float) -> bool:
    """Whether a job may start at a clock, asked bound by bound."""
    default = times[-1]
    if clock == len(times) - 1:
        return True
    if times[clock] > default * (1.0 + job.max_slowdown) * (1.0 + 1e-9):
        return False
    left = job.deadline_seconds - now
    can_meet = job.estimated_units * default <= left
    in_limit = job.estimated_units * times[clock] <= MARGIN * limit_seconds
    in_time = not can_meet or job.estimated_units * times[clock] <= MARGIN * left
    return (in_limit and in_time) or times[clock] <= default * (1.0 + 1e-9)


def by_enumeration(world: World, job: WaitingJob, view: TwinView) -> list[Expected]:
    """Return every way of starting a job, each place, count and clock by itself."""
    table, found = option_table(world, job.kind, job.gpu_counts), []
    for place, most in enumerate(view.room(job)):
        for column, gpus in enumerate(job.gpu_counts):
            if gpus > most:
                continue
            times = [seconds for seconds in table.seconds_per_unit[place, column].tolist() if seconds < inf]
            limit = min(job.time_limit_seconds, view.twin_places[place].partition.max_time_seconds)
            clocks = [clock for clock in range(len(times)) if is_open(job, clock, times, limit, view.now_seconds)]
            costs = [active_joules(table, place, column, clock) for clock in clocks]
            if clocks:
                oracle = clocks[costs.index(min(costs))]
                found.append(Expected(place=place, gpus=gpus, open_clocks=tuple(clocks), oracle_clock=oracle))
    return found


def active_joules(table: OptionTable, place: int, column: int, clock: int) -> float:
    """Joules of a unit beyond what the same devices draw while free."""
    watts = float(table.watts[place, column, clock] - table.free_watts[place, column, clock])
    return watts * float(table.seconds_per_unit[place, column, clock])


def options_of(
    job: WaitingJob, view: ClusterView, partitions: Sequence[int] | None = None, *, with_clocks: bool = True
) -> list[PlacedOption]:
    """Return the options, every place a partition of its own unless numbers are given."""
    assert isinstance(view, TwinView)
    costs = RunOptionCosts.of(view.options(job))
    return placed_options(job, view, costs, partitions or range(len(view.places)), with_clocks=with_clocks)


def asked(world: World, *jobs: Job, about: int) -> tuple[WaitingJob, TwinView, list[PlacedOption]]:
    """Return one job, the view and the options as the rule is asked about it; jobs before it start by first fit."""
    rule = FirstFit()
    engine = make_engine(world, jobs, rule)
    steps = engine.steps()
    job = next(steps)
    while job is None or job.job_id != about:
        job = steps.send(None if job is None else rule.place(job, engine.view))
    return job, engine.view, options_of(job, engine.view)


def random_jobs(seed: int, count: int) -> list[Job]:
    """Return jobs of every width, with bounds that bind some of them and cannot be kept by others."""
    random, now, found = Random(seed), 0.0, []
    for number in range(1, count + 1):
        now += random.expovariate(1.0 / 20.0)
        units = random.choice([0.0, random.uniform(20.0, 900.0), random.uniform(20.0, 900.0)])
        found.append(
            make_job(
                number,
                submitted=now,
                units=units,
                gpus=random.choice([(1,), (2,), (1, 2, 4), (1, 2, 3, 4)]),
                max_slowdown=random.choice([inf, 0.0, 0.3, 1.0]),
                time_limit_seconds=random.choice([inf, random.uniform(30.0, 500.0)]),
                deadline_seconds=random.choice([inf, now + random.uniform(10.0, 1500.0)]),
            )
        )
    return found


def with_bounds(workload: Workload, world: World, seed: int, count: int) -> Workload:
    """Return some jobs of a workload, spread over it, with bounds near what each takes at its fastest."""
    random, step = Random(seed), max(1, len(workload.jobs) // count)
    found = []
    for plain in workload.jobs[::step][:count]:
        table = option_table(world, plain.kind, plain.gpu_counts)
        seconds = plain.true_units * float(table.seconds_per_unit.min())
        job = replace(plain, max_slowdown=random.choice([inf, 0.0, 0.2]))
        job.time_limit_seconds = random.choice([inf, 1.0 + seconds * random.uniform(0.9, 4.0)])
        job.deadline_seconds = random.choice([inf, job.submitted_seconds + seconds * random.uniform(0.5, 4.0)])
        found.append(job)
    return Workload(name=workload.name, jobs=tuple(found))


def guard_leaves(job: WaitingJob, view: TwinView, option: PlacedOption, clock: int) -> bool:
    """Whether the guard carries a placement out as it is."""
    answer = Placement(option.place, option.gpus, clock)
    table = view.options(job)
    guarded = guarded_placement(
        answer,
        job,
        view.room(job)[option.place],
        table.seconds_per_unit[option.place].tolist(),
        {gpus: column for column, gpus in enumerate(table.gpu_counts)},
        view.now_seconds,
        view.twin_places[option.place].partition.max_time_seconds,
    )
    return guarded == (answer, False)


def test_options_are_those_that_enumeration_finds_at_the_exact_least_of_active_energy() -> None:
    closed = waiting = 0

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        nonlocal closed, waiting
        assert isinstance(view, TwinView)
        options = options_of(job, view)
        found = [
            Expected(
                place=option.place,
                gpus=option.gpus,
                open_clocks=tuple(c for c, one in zip(option.clocks, option.option.clocks, strict=True) if one.open),
                oracle_clock=option.oracle_clock,
            )
            for option in options
        ]
        assert found == by_enumeration(MIXED, job, view)
        closed += sum(not clock.open for option in options for clock in option.option.clocks)
        waiting += min(view.free_gpus) == 0
        chosen = Random(job.job_id).choice(options)
        return Placement(chosen.place, chosen.gpus, chosen.oracle_clock)

    outcome = run_jobs(MIXED, random_jobs(seed=1, count=150), Answers(place))
    assert outcome.clamped == 0
    assert closed > 100 and waiting > 10, "neither a bound nor a full place was met"


@pytest.mark.parametrize("name", world_names())
def test_in_every_shipped_world_jobs_have_options_and_the_guard_changes_none_of_them(name: str) -> None:
    world = replace(shipped_world(name), knowledge="truth")  # what is enumerated is by each job's kind
    generated = create_workload(world.workload, {**world.workload_settings, "hours": 6.0}, 1)
    checked = 0

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        nonlocal checked
        assert isinstance(view, TwinView)
        options = options_of(job, view)
        assert [(option.place, option.gpus) for option in options] == [
            (expected.place, expected.gpus) for expected in by_enumeration(world, job, view)
        ]
        for option in options:
            assert all(guard_leaves(job, view, option, c) for c in option.clocks if option.option.clocks[c].open)
            checked += 1
        chosen = Random(job.job_id).choice(options)
        return Placement(chosen.place, chosen.gpus, chosen.oracle_clock)

    workload = with_bounds(generated, world, seed=2, count=12)
    outcome = run(world, workload, Answers(place), seed=1)
    assert (outcome.clamped, checked > len(workload.jobs)) == (0, True)
    came_to_its_end = {"COMPLETED", "TIMEOUT"}
    if any(job.after_ok for job in workload.jobs):
        came_to_its_end |= {"PENDING", "CANCELLED"}  # what waits for a job that was left out, or that timed out
    assert set(outcome.state) <= came_to_its_end


def test_the_partition_s_own_time_limit_closes_clocks_of_jobs_that_name_none() -> None:
    job, view, options = asked(MIXED, make_job(1, units=400.0), about=1)
    fast, slow = options[0], options[1]
    assert [clock.open for clock in fast.option.clocks] == [False, False, True]  # 800, 480 and 280 s; 475 fit
    assert all(clock.open for clock in slow.option.clocks)
    assert guard_leaves(job, view, fast, fast.oracle_clock)
    assert not guard_leaves(job, view, fast, 0)


@pytest.mark.parametrize(
    ("deadline", "open_clocks"),
    [
        (1000.0, [True, True, True]),
        (300.0, [False, True, True]),
        (105.0, [False, False, True]),  # the default clock leaves no margin, and nothing slower is in time
        (99.0, [True, True, True]),  # no clock is in time: the deadline binds no more
    ],
)
def test_a_deadline_closes_clocks_as_long_as_it_can_be_met(deadline: float, open_clocks: list[bool]) -> None:
    job, view, (option,) = asked(make_world(), make_job(1, deadline_seconds=deadline), about=1)
    assert [clock.open for clock in option.option.clocks] == open_clocks
    assert guard_leaves(job, view, option, option.oracle_clock)


@pytest.mark.parametrize(
    ("limit", "open_clocks"),
    [(500.0, [True] * 3), (400.0, [False, True, True]), (200.0, [False, False, True]), (90.0, [False, False, True])],
)
def test_a_time_limit_closes_clocks_and_leaves_the_default_one_when_none_keeps_it(
    limit: float, open_clocks: list[bool]
) -> None:
    _, _, (option,) = asked(make_world(), make_job(1, time_limit_seconds=limit), about=1)
    assert [clock.open for clock in option.option.clocks] == open_clocks


@pytest.mark.parametrize(("slowdown", "open_clocks"), [(inf, 3), (3.0, 3), (2.9, 2), (1.0, 2), (0.99, 1), (0.0, 1)])
def test_a_slowdown_bound_closes_the_clocks_beyond_it(slowdown: float, open_clocks: int) -> None:
    _, _, (option,) = asked(make_world(), make_job(1, max_slowdown=slowdown), about=1)
    assert sum(clock.open for clock in option.option.clocks) == open_clocks


def test_an_option_says_what_its_run_costs() -> None:
    world = make_world(
        make_pool(
            nodes=2,
            suspend=SuspendSettings(idle_seconds=1.0, resume_seconds=10.0, suspended_watts=1.0, resume_watts=7.0),
        ),
        devices=(make_device(loads={"training": make_load(watts=(60.0, 95.0, 200.0))}),),
    )
    _, _, options = asked(world, make_job(1), make_job(2, submitted=500.0, units=60.0, gpus=(1, 2, 8)), about=2)
    assert [option.option.wake_joules for option in options] == [70.0, 70.0, 140.0]
    cheapest = options[1]
    # A unit costs 4 x 50, 2 x 85 or 1 x 190 J: on two devices at half the clock it takes 1 s.
    assert (cheapest.place, cheapest.gpus, cheapest.clocks, cheapest.oracle_clock) == (0, 2, (0, 1, 2), 1)
    told = {name: value for name, value in asdict(cheapest.option).items() if name != "clocks"}
    assert told == pytest.approx(
        {
            "partition": 0,
            "gpus": 2,
            "count_position": 0.5,
            "has_room": True,
            "is_where_submitted": True,
            "seconds": 60.0,
            "joules": 60.0 * 170.0,
            "seconds_full": 30.0,
            "joules_full": 60.0 * 190.0,
            "wait_seconds": 0.0,
            "gpus_free_after": 6 / 8,
            "wake_joules": 70.0,
            "communication": 0.0,
            "is_cpu": False,
            "open": True,
        }
    )


def test_a_clock_is_told_against_the_default_one() -> None:
    _, _, options = asked(MIXED, make_job(1, units=10.0, gpus=2, max_slowdown=0.9), about=1)
    fast = options[0]
    assert fast.option.clocks[1].open and not fast.option.clocks[0].open
    assert asdict(fast.option.clocks[1]) == pytest.approx(
        {
            "relative_clock": 0.5,
            "slowdown": 1.2 / 0.7 - 1.0,
            "energy_change": (150.0 * 1.2) / (290.0 * 0.7) - 1.0,
            "is_default": False,
            "is_oracle": True,
            "bound_left": 0.0,
            "power_change": 160.0 / 300.0 - 1.0,
            "open": True,
        }
    )
    assert [clock.is_default for clock in fast.option.clocks] == [False, False, True]
    assert [clock.is_oracle for clock in fast.option.clocks] == [False, True, False]


def test_time_lost_to_more_devices_is_told_as_a_share() -> None:
    world = shipped_world("tum128")
    _, _, options = asked(world, make_job(1, units=10.0, kind="training", gpus=(1, 2, 4)), about=1)
    shares = {option.gpus: option.option.communication for option in options if option.place == 0}
    assert shares == pytest.approx({1: 0.0, 2: 1.0 - 0.85, 4: 1.0 - 0.83})


def test_without_clocks_an_option_names_none_and_keeps_the_oracle_s() -> None:
    job, view, options = asked(MIXED, make_job(1, gpus=(1, 2)), about=1)
    bare = options_of(job, view, with_clocks=False)
    assert all(option.clocks == () and option.option.clocks == () for option in bare)
    assert [option.oracle_clock for option in bare] == [option.oracle_clock for option in options]


def test_options_of_one_partition_stand_together_in_the_order_of_its_number() -> None:
    job, view, _ = asked(MIXED, make_job(1, gpus=(1, 2)), about=1)
    options = options_of(job, view, partitions=[1, 0, 1])
    assert [(option.option.partition, option.place, option.gpus) for option in options] == [
        (0, 1, 1),
        (0, 1, 2),
        (1, 0, 1),
        (1, 0, 2),
        (1, 2, 1),
        (1, 2, 2),
    ]


def test_a_place_gives_options_up_to_its_room_and_a_full_one_none() -> None:
    wide = (1, 2, 3, 4)
    world = make_world(make_pool("first"), make_pool("second"))
    places = [
        [option.place for option in asked(world, make_job(1, gpus=taken), make_job(2, gpus=wide), about=2)[2]]
        for taken in (1, 3, 4)
    ]
    assert places == [[0] * 3 + [1] * 4, [0] + [1] * 4, [1] * 4]


@pytest.mark.parametrize("side", range(200, 2000, 200))
def test_small_products_of_matrices_cost_least_on_a_cpu_and_large_ones_on_a_gpu(side: int) -> None:
    world, kind = shipped_world("tum128"), f"matrix-{side}"
    _, _, options = asked(world, make_job(1, units=1000.0, kind=kind), about=1)
    assert {option.option.is_cpu for option in options} == {False, True}
    least = min(options, key=lambda option: option.option.joules or inf)
    by_device = {
        name: min(
            (watts - device.free_watts) * seconds
            for watts, seconds in zip(device.loads[kind].watts, device.loads[kind].seconds_per_unit, strict=True)
        )
        for name, device in world.devices.items()
    }
    cheapest = min(by_device, key=lambda name: by_device[name])
    assert least.option.is_cpu == world.devices[cheapest].is_cpu
    assert least.option.joules == pytest.approx(1000.0 * by_device[cheapest])
    # A socket needs no copy over the bus: half of a K40c's energy at 200, three quarters at 400, a draw at 600.
    assert least.option.is_cpu == (side <= 400)
