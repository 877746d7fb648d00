"""A comparison made by hand, with names that a terminal, a page or a spreadsheet must not take at their word."""

from dataclasses import replace

from slurm_energy.evaluation.arena.comparison import ArenaResult, FailedRun
from slurm_energy.evaluation.arena.plan import ArenaPlan
from slurm_energy.evaluation.arena.run import RunRecord, Samples
from slurm_energy.evaluation.arena.run_bounds import FrontierLine, RunBounds
from slurm_energy.evaluation.metrics import Metrics, Spread
from slurm_energy.reporting.arena.document import RunContext

HOSTILE = "<script>alert('x')</script>\x1b[31m$a_b$"


def make_metrics(scale: float = 1.0, waiting: int = 0) -> Metrics:
    spread = Spread(mean_seconds=1400.0 / scale, p95_seconds=2500.0, p99_seconds=3300.0)
    return Metrics(
        jobs=100,
        completed_jobs=90,
        finished_jobs=90,
        unfinished_jobs=10,
        ended_otherwise_jobs=0,
        jobs_by_state={"COMPLETED": 90, "RUNNING": 10},
        end_seconds=7200.0,
        total_joules=9.0e6 * scale,
        active_joules=7.0e6 * scale,
        joules_by_component={"idle": 2.0e6 * scale, "host": 0.0, "suspended": 0.0, "waking": 0.0},
        true_units=1.0e6,
        system_job_seconds=6.0e5,
        lost_units=0.0,
        joules_per_unit=9.0 * scale,
        active_joules_per_unit=7.0 * scale,
        mean_power_watts=1250.0 * scale,
        makespan_seconds=7100.0,
        energy_time_product_joule_seconds=6.4e10,
        wait=Spread(mean_seconds=0.0, p95_seconds=0.0, p99_seconds=0.0),
        run=spread,
        turnaround=spread,
        mean_wait_so_far_seconds=0.0,
        mean_bounded_slowdown=1.2,
        p95_bounded_slowdown=1.4,
        deadline_jobs=0,
        deadline_misses=0,
        gpu_utilisation_share=0.5,
        cpu_utilisation_share=None,
        waiting_at_day_end=(waiting,),
        suspended_node_hours=0.0,
        clamped_decisions=0,
        declined_decisions=0,
        decisions=100,
        mean_decision_seconds=1e-5,
        restarts=0,
        seconds_above_power_budget=None,
        carbon_grams=None,
        cost=None,
        published_units=None,
        published_joules_per_unit=None,
    )


def make_bounds(scale: float = 1.0) -> RunBounds:
    return RunBounds(
        joules=8.5e6,
        joules_per_unit=8.5,
        gap_percent=100.0 * (9.0 * scale / 8.5 - 1.0),
        arrivals_joules_per_unit=8.4,
        by_arrival_times=False,
        frontier_run_joules_per_unit=8.9,
        frontier_run_gap_percent=1.0,
        frontier_turnaround_joules_per_unit=8.9,
        frontier_turnaround_gap_percent=1.0,
    )


def make_record(policy: str, seed: int, scale: float = 1.0, waiting: int = 0) -> RunRecord:
    return RunRecord(
        policy=policy,
        rule=policy,
        seed=seed,
        metrics=make_metrics(scale * (1.0 + 0.01 * seed), waiting),
        bounds=make_bounds(scale),
        samples=Samples(
            seconds=(3600.0, 7200.0), mean_watts=(1200.0 * scale, 1300.0 * scale), waiting_jobs=(waiting, waiting)
        ),
        workload_name="poisson",
        workload_source=f"generator poisson, seed {seed}",
        bad_rows=0,
        unknown_kinds=(),
        kinds=("training",),
        open_end=False,
        frontier=FrontierLine(mean_run_seconds=(500.0, 1000.0, 4000.0), joules_per_unit=(12.0, 9.5, 8.4))
        if seed == 1
        else None,
    )


def make_result(*, seeds: tuple[int, ...] = (1, 2), hostile: bool = False) -> ArenaResult:
    policies = ("slurm-default", HOSTILE if hostile else "greedy")
    runs = [make_record(policies[0], seed, waiting=7) for seed in seeds]
    runs += [make_record(policies[1], seed, 0.9) for seed in seeds]
    failed = (FailedRun(policy="dp", seed=1, error="it could not <b>be</b>"),) if hostile else ()
    plan = ArenaPlan(policies=policies, world="pair", seeds=seeds)
    return ArenaResult(plan=plan, world_name="pair", runs=tuple(runs), failed=failed, sweeps=())


def without_runs(result: ArenaResult) -> ArenaResult:
    return replace(result, runs=())


def make_context(command: str = "slurm-energy arena run") -> RunContext:
    return RunContext(command=command, created_at_seconds=1.75e9, wall_seconds=3.0, versions={"slurm-energy": "0.1.0"})
