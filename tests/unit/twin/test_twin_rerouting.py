"""Jobs that are decided again while they wait, in the simulated cluster: the same lever as the daemon's."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from slurm_energy.config import Config
from slurm_energy.policy.placement import ClusterView, PlacementRule, Reroute
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.adapters.served import served_policy
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world.file import shipped_world

LAB = shipped_world("lab")
NODES = 4
HOUR = 3600.0


def make_job(number: int, **changes: Any) -> Job:
    job = Job(job_id=number, submitted_seconds=0.0, true_units=10 * HOUR, kind="training", gpu_counts=(4,))
    for name, value in changes.items():
        setattr(job, name, value)
    return job


def full_cluster() -> list[Job]:
    """Fill all partitions: a100 for ten hours, a40 for a while, v100 for days."""
    jobs = [make_job(number, partitions=("a100",)) for number in range(1, 1 + NODES)]
    jobs += [make_job(10 + number, partitions=("a40",), gpu_counts=(8,), true_units=600.0) for number in range(NODES)]
    return jobs + [make_job(20 + number, partitions=("v100",), true_units=50 * HOUR) for number in range(2)]


def run_with(redecide: Literal["off", "on"], *late: Job) -> Outcome:
    routing = replace(Config().routing, open=True, less_gpu_memory=True, redecide=redecide, redecide_seconds=60.0)
    config = replace(Config(), routing=routing, policy=replace(Config().policy, max_slowdown=2.0))
    jobs = sorted([*full_cluster(), *late], key=lambda job: job.submitted_seconds)
    return run(LAB, Workload(name="full", jobs=tuple(jobs)), served_policy("oracle", config))


def start_of(outcome: Outcome, job_id: int) -> tuple[float, int]:
    at = list(outcome.job_id).index(job_id)
    return float(outcome.started_seconds[at]), int(outcome.place[at])


def test_a_job_that_waits_goes_where_room_appears_only_if_it_is_decided_again() -> None:
    late = {"submitted_seconds": 10.0, "gpu_counts": (4,), "true_units": 60.0}
    kept, _ = start_of(run_with("off", make_job(50, **late)), 50)
    moved, place = start_of(run_with("on", make_job(50, **late)), 50)
    assert moved < kept / 2
    assert place == 1, "a40"


def test_a_job_that_named_its_partition_waits_there() -> None:
    late = {"submitted_seconds": 10.0, "partitions": ("a100",), "true_units": 60.0}
    assert start_of(run_with("on", make_job(50, **late)), 50) == start_of(run_with("off", make_job(50, **late)), 50)


def test_a_job_that_left_its_partition_open_goes_where_room_is_and_where_it_appears() -> None:
    late = {"submitted_seconds": 10.0, "partitions": ("a100",), "open": True, "true_units": 60.0}
    assert start_of(run_with("on", make_job(50, **late)), 50)[1] == 1, "a40, decided again"
    soon = {**late, "submitted_seconds": 2 * HOUR}
    started, place = start_of(run_with("off", make_job(50, **soon)), 50)
    assert place == 1, "a40, at its submission"
    assert started < 2 * HOUR + 60.0
    closed = {**soon, "open": False}
    assert start_of(run_with("on", make_job(50, **closed)), 50)[1] == 0


def test_every_job_runs_once_however_often_it_is_decided() -> None:
    late = [make_job(100 + n, submitted_seconds=10.0 + n, gpu_counts=(1 + n % 4,), true_units=900.0) for n in range(40)]
    outcome = run_with("on", *late)
    assert outcome.state == ["COMPLETED"] * (10 + 40)
    assert sorted(outcome.job_id) == sorted([*(job.job_id for job in full_cluster()), *(job.job_id for job in late)])


class Restless(PlacementRule):
    """Sends jobs to and fro, and speaks of jobs and places that are not there."""

    name = "restless"
    control_interval_seconds = 30.0

    def __init__(self) -> None:
        self._rule = create_rule("slurm-default")
        self._turn = 0

    def begin(self, view: ClusterView, random: Any) -> None:
        self._rule.begin(view, random)

    def place(self, job: Any, view: ClusterView) -> Any:
        return self._rule.place(job, view)

    def rerouted(self, view: ClusterView) -> Mapping[int, Reroute]:
        self._turn += 1
        wanted = (self._turn % 2,)
        return {number: Reroute(wanted, 2 if self._turn % 3 else 4) for number in range(200)} | {50: Reroute((999,))}


def test_wild_answers_lose_no_job_and_touch_none_that_runs() -> None:
    late = [make_job(100 + n, submitted_seconds=10.0 + n, true_units=900.0) for n in range(20)]
    outcome = run(LAB, Workload(name="full", jobs=(*full_cluster(), *late)), Restless())
    assert outcome.state == ["COMPLETED"] * (10 + 20)


def test_a_waiting_job_that_gets_another_number_of_gpus_gets_the_limit_that_goes_with_it() -> None:
    late = make_job(50, submitted_seconds=10.0, partitions=("a100",), true_units=1e6, time_limit_seconds=600.0)
    late.gpu_counts, late.asked_gpus = (1, 2, 4), 4

    class Resizing(Restless):
        def rerouted(self, view: ClusterView) -> Mapping[int, Reroute]:
            return {50: Reroute(None, 2)}

    outcome = run(LAB, Workload(name="full", jobs=(*full_cluster(), late)), Resizing())
    assert int(outcome.gpus[-1]) == 2
    assert float(outcome.run_seconds[-1]) == 1200.0
    assert (late.range_counts, late.asked_limit_seconds) == ((1, 2, 4), 600.0), "those of the next run"
