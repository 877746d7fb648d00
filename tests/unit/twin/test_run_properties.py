"""What holds in every run: energy adds up, devices are used once, jobs end once, time goes on, a seed is a run."""

from dataclasses import replace
from random import Random
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from power_account import PowerAccount, check_power
from random_worlds import Features, features, random_jobs, random_world
from small_worlds import (
    FirstFit,
    RandomRule,
    drive,
    make_engine,
    make_job,
    make_pool,
    make_world,
    run_jobs,
    same,
)

from slurm_energy.policy.placement import Discipline
from slurm_energy.twin.engine.job import COMPUTING, ENDED, STARTING, WAITING, plain_job
from slurm_energy.twin.engine.ledger import COMPONENTS
from slurm_energy.twin.engine.loop import Engine
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.pool_state import DOWN, PoolState
from slurm_energy.twin.engine.simulation import policy_stream
from slurm_energy.twin.world import Outage

STATES = {"COMPLETED", "TIMEOUT", "FAILED", "NODE_FAIL", "CANCELLED", "REJECTED", "PENDING", "RUNNING"}
FINAL = STATES - {"PENDING", "RUNNING"}
JOBS = 16


def rule_for(chosen: Features) -> RandomRule:
    return RandomRule(
        routes=chosen.routes, shares=chosen.shares, control_interval_seconds=15.0 if chosen.controls else None
    )


def random_run(chosen: Features, *, horizon: float | None = 2_000.0) -> Outcome:
    world = random_world(chosen)
    jobs = random_jobs(chosen, world, JOBS)
    return run_jobs(world, jobs, rule_for(chosen), seed=chosen.seed, horizon_seconds=horizon)


@given(features)
def test_parts_add_up_to_the_total_and_none_is_negative(chosen: Features) -> None:
    outcome = random_run(chosen)
    assert outcome.balance_error < 1e-9
    assert set(outcome.joules_by_component) == set(COMPONENTS)
    assert all(value >= -1e-6 for value in outcome.joules_by_component.values())
    assert (outcome.energy_joules >= 0.0).all()
    assert (outcome.sample_watts >= -1e-9).all()
    samples = float((outcome.sample_watts * np.diff(outcome.sample_seconds)).sum())
    assert samples == pytest.approx(outcome.total_joules, rel=1e-9)


@given(features)
def test_every_job_ends_once_with_figures_that_fit_its_state(chosen: Features) -> None:
    outcome = random_run(chosen)
    assert outcome.job_id.tolist() == list(range(JOBS))
    for index, state in enumerate(outcome.state):
        submitted, started, ended = (
            float(column[index])
            for column in (outcome.submitted_seconds, outcome.started_seconds, outcome.ended_seconds)
        )
        assert state in STATES
        assert (ended < float("inf")) == (state in FINAL)
        assert ended >= submitted and started >= submitted
        assert outcome.units[index] <= outcome.true_units[index] * (1.0 + 1e-9) + 1e-9
        assert outcome.units_lost[index] >= 0.0
        if state == "COMPLETED":
            assert outcome.units[index] == pytest.approx(outcome.true_units[index])
            assert submitted <= started <= outcome.last_started_seconds[index] <= ended
        if state in {"CANCELLED", "REJECTED"}:
            assert started == float("inf") and outcome.energy_joules[index] == outcome.gpu_seconds[index] == 0.0
        if outcome.restarts[index] == 0 and started < ended < float("inf"):
            assert outcome.run_seconds[index] == pytest.approx(ended - started)
            assert outcome.gpu_seconds[index] == pytest.approx((ended - started) * outcome.gpus[index])


@given(features)
def test_no_more_devices_are_used_than_there_are(chosen: Features) -> None:
    outcome = random_run(chosen)
    per_gpu = 2 if chosen.shares else 1
    assert outcome.gpu_seconds.sum() <= outcome.total_gpus * outcome.end_seconds * per_gpu * (1.0 + 1e-9)


@given(features)
def test_the_same_seed_gives_the_same_run(chosen: Features) -> None:
    assert same(random_run(chosen), random_run(chosen))


@given(features)
def test_without_failures_a_run_ends_and_only_jobs_that_wait_for_a_stranger_are_left(chosen: Features) -> None:
    calm = Features(**{**chosen.__dict__, "fails": False, "shares": False, "controls": False})
    world = random_world(calm)
    jobs = random_jobs(calm, world, JOBS)
    outcome = run_jobs(world, jobs, FirstFit())
    stuck = {job.job_id for job in jobs if job.job_id in (*job.after_ok, *job.after_any)}
    for job in jobs:
        if stuck & {*job.after_ok, *job.after_any}:
            stuck.add(job.job_id)
    left = {job_id for job_id, state in enumerate(outcome.state) if state not in FINAL}
    assert left <= stuck


def check_nodes(pool: PoolState) -> None:
    """Assert that devices, CPUs, memory and buckets of a pool's nodes agree with the jobs on them."""
    held = [0] * pool.pool.nodes
    for run in pool.runs.values():
        assert run.phase in {STARTING, COMPUTING}
        assert sum(used for _, used, _ in run.allocation) == (run.gpus if run.allocation else 0)
        assert bool(run.allocation) or run.partner is not None
        for node, used, taken in run.allocation:
            assert 0 < used <= taken
            assert pool.runs_on[node][run.job_id] is run
            held[node] += taken
    for node in range(pool.pool.nodes):
        assert pool.free[node] == pool.gpus_per_node - pool.broken[node] - held[node] >= 0
        assert pool.power[node] != DOWN or not pool.runs_on[node]
        assert pool.pool.cpus_per_node == 0 or 0 <= pool.cpus_free[node] <= pool.pool.cpus_per_node
        assert pool.memory_free[node] >= -1e-9
        if not pool.runs_on[node]:
            assert (pool.cpus_free[node], pool.memory_free[node]) == (
                pool.pool.cpus_per_node,
                pool.pool.memory_gib_per_node,
            )
    assert pool.free_total == sum(free for node, free in enumerate(pool.free) if pool.power[node] != DOWN)


def check(engine: Engine) -> None:
    """Assert what must hold of a run in flight."""
    execution, view = engine._execution, engine.view
    for pool in execution.pools:
        if pool.by_node:
            check_nodes(pool)
        else:
            assert pool.free_total == pool.total - sum(pool.held(run.job, run.gpus) for run in pool.runs.values()) >= 0
    for place in engine._places:
        assert view.free_gpus[place.index] == execution.pools[place.pool_index].free_total
    runs = list(engine.runs.values())
    assert view.num_waiting == sum(run.phase == WAITING for run in runs)
    for place in engine._places:
        waiting = sum(run.phase == WAITING and run.job.routed_place == place.index for run in runs)
        assert view.waiting_jobs[place.index] == waiting
    assert {run.job_id for run in view.running_jobs()} == {run.job_id for run in runs if run.phase == COMPUTING}
    on_devices = [run for run in runs if run.phase in {STARTING, COMPUTING}]
    assert {run.job_id for run in on_devices} == {job_id for pool in execution.pools for job_id in pool.runs}
    for run in on_devices:
        assert run.partner is None or (run.partner.partner is run and run.partner.set_clock == run.set_clock)
    parts = sum(watts for ledger in execution.ledgers for watts in ledger.power_watts)
    assert view.power_watts == pytest.approx(parts + sum(run.watts for run in on_devices), abs=1e-6)
    assert all(watts >= -1e-6 for ledger in execution.ledgers for watts in ledger.power_watts)
    assert all(run.watts == run.coming_watts == 0.0 for run in runs if run.phase in {WAITING, ENDED})
    assert view.coming_watts == pytest.approx(sum(run.coming_watts for run in on_devices), abs=1e-6)
    assert all(run.coming_watts == 0.0 for run in runs if run.phase == COMPUTING)
    check_power(engine)


def check_energy(engine: Engine, rule: RandomRule) -> None:
    """Assert that a run has the power that its state gives at every event, and the energy that follows from it."""
    account = engine.sampler = PowerAccount(engine)
    drive(engine, rule, check)
    account.check(engine.outcome(rule.name))


NEIGHBOUR_ON_A_HOT_BOARD = Features(
    seed=3278111510, suspends=True, fails=True, shares=True, heats=True, changes=True, slices=True, backfill="none"
)
"""A job begins beside one whose clock heat has lowered."""


@given(features, st.sampled_from((None, 300.0, 1_000.0)))
@example(NEIGHBOUR_ON_A_HOT_BOARD, 300.0)
def test_power_and_energy_are_those_of_the_state_of_nodes_and_jobs(chosen: Features, horizon: float | None) -> None:
    world, rule = random_world(chosen), rule_for(chosen)
    if horizon is None and (chosen.fails or chosen.controls):
        horizon = 2_000.0
    check_energy(make_engine(world, random_jobs(chosen, world, JOBS), rule, seed=chosen.seed, horizon=horizon), rule)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from((60.0, 90.0)))
def test_power_and_energy_of_plain_jobs_are_those_of_their_state(seed: int, routes: bool, busy_watts: float) -> None:
    random = Random(seed)
    host = {"host_idle_watts": 60.0, "host_busy_watts": busy_watts}
    world = make_world(
        make_pool("a", **host), make_pool("b", gpus_per_node=8, **host), discipline=Discipline(backfill="none")
    )
    jobs = [
        plain_job(number, 7.0 * number, random.uniform(1.0, 200.0), "training", (1, 2, 4)[: random.randint(1, 3)], 0)
        for number in range(20)
    ]
    rule = RandomRule(routes=routes, control_interval_seconds=25.0)
    check_energy(make_engine(world, jobs, rule, seed=seed, horizon=1_000.0), rule)


@given(features)
def test_the_parts_of_a_run_agree_before_every_decision(chosen: Features) -> None:
    world = random_world(chosen)
    times = [0.0]

    def look(engine: Engine) -> None:
        assert engine.now >= times[-1]
        times.append(engine.now)
        check(engine)

    rule = rule_for(chosen)
    engine = make_engine(world, random_jobs(chosen, world, JOBS), rule, seed=chosen.seed, horizon=1_000.0)
    drive(engine, rule, look)


@given(features)
def test_a_run_is_the_same_for_a_rule_that_answers_at_once_and_for_one_that_is_driven(chosen: Features) -> None:
    world, rule = random_world(chosen), rule_for(chosen)
    at_once = random_run(chosen, horizon=1_000.0)
    jobs = random_jobs(chosen, world, JOBS)
    engine = make_engine(world, jobs, rule, seed=chosen.seed, horizon=1_000.0)
    rule.begin(engine.view, policy_stream(chosen.seed))
    drive(engine, rule, lambda engine: None)
    assert same(replace(at_once, decisions=0), engine.outcome(rule.name))


@given(features)
def test_without_heat_and_neighbours_a_lower_clock_never_draws_more_nor_runs_faster(chosen: Features) -> None:
    calm = Features(
        **{**chosen.__dict__, "fails": False, "shares": False, "heats": False, "controls": False, "suspends": False}
    )
    world = random_world(calm)
    seen: list[tuple[float, ...]] = []
    for clock in (0, 1, 2):
        jobs = random_jobs(calm, world, 1)
        jobs[0].max_slowdown = jobs[0].deadline_seconds = jobs[0].time_limit_seconds = float("inf")
        jobs[0].after_ok = jobs[0].after_any = ()
        outcome = run_jobs(world, jobs, FirstFit(clock))
        seconds = float(outcome.run_seconds[0])
        seen.append((seconds, float(outcome.energy_joules[0]) / seconds if seconds else 0.0))
    assert seen[0][0] >= seen[1][0] >= seen[2][0]
    assert seen[0][1] <= seen[1][1] + 1e-9 <= seen[2][1] + 2e-9


@given(st.integers(0, 2**32), st.sampled_from(("none", "easy")), st.booleans(), st.booleans())
def test_a_pool_of_which_only_the_number_of_free_devices_matters_runs_as_one_told_node_by_node(
    seed: int, backfill: Literal["none", "easy"], plain: bool, routes: bool
) -> None:
    random = Random(seed)
    jobs = [
        plain_job(number, 7.0 * number, random.uniform(1.0, 200.0), "training", (1, 2, 4)[: random.randint(1, 3)], 0)
        if plain
        else make_job(
            number,
            7.0 * number,
            random.uniform(1.0, 200.0),
            random.randint(1, 4),
            time_limit_seconds=random.choice((float("inf"), 40.0)),
            exclusive=random.random() < 0.1,
        )
        for number in range(20)
    ]
    discipline = Discipline(backfill=backfill)
    never = Outage(pool="b", at_seconds=1e12, until_seconds=2e12, nodes=1), Outage(pool="a", at_seconds=1e12, nodes=1)
    found = [
        run_jobs(
            make_world(make_pool("a"), make_pool("b", gpus_per_node=8), discipline=discipline, outages=outages),
            jobs,
            RandomRule(routes=routes, control_interval_seconds=25.0),
            seed=seed,
        )
        for outages in ((), never)
    ]
    assert found[0].state == found[1].state
    for name in ("started_seconds", "ended_seconds", "energy_joules", "units", "gpu_seconds", "run_seconds"):
        assert getattr(found[0], name) == pytest.approx(getattr(found[1], name), rel=1e-9)
    for name in ("place", "gpus", "clock"):
        assert getattr(found[0], name).tolist() == getattr(found[1], name).tolist()
    assert found[0].total_joules == pytest.approx(found[1].total_joules, rel=1e-9)
    assert (found[0].clamped, found[0].decisions) == (found[1].clamped, found[1].decisions)
