"""What policies know in a world that hides what jobs do."""

from dataclasses import replace
from math import inf, isnan
from pathlib import Path

import numpy as np
import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule
from slurm_energy.policy.rules.slurm_order import SlurmDefaultRule
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.knowledge import JobKnowledge, KnownEnd, MeanTables, NeighbourLengths
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.places import option_table, places_of
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import load_world, shipped_world
from slurm_energy.twin.world.writer import world_to_toml

SITE = replace(shipped_world("mixed-hidden"), workload="", workload_settings={"kinds": "bloom-backward,lammps"})
OPEN = replace(SITE, knowledge="truth")


def make_job(number: int, units: float = 3_600.0, **changes: object) -> Job:
    settings: dict[str, object] = {"kind": "lammps", "user": "ann", "name": "md", "partitions": ("a100",), **changes}
    return Job(job_id=number, submitted_seconds=1.0 * number, true_units=units, **settings)  # type: ignore[arg-type]


class Watcher(SlurmDefaultRule):
    """Keeps what it is asked about and what ended."""

    routes = True
    observes_ends = True

    def __init__(self) -> None:
        self.asked: list[WaitingJob] = []
        self.ends: list[EndedJob] = []

    def route(self, job: WaitingJob, view: ClusterView) -> None:
        """Keep the job as it is shown."""
        self.asked.append(job)

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Keep it, and start it where Slurm would."""
        self.asked.append(job)
        return super().place(job, view)

    def ended(self, job: EndedJob) -> None:
        """Keep the end."""
        self.ends.append(job)


def outcome_of(rule: PlacementRule, *jobs: Job, history: tuple[KnownEnd, ...] = ()) -> Outcome:
    return run(SITE, Workload(name="jobs", jobs=jobs), rule, history=history)


def test_a_rule_is_never_shown_kind_or_length_of_a_job_and_no_amount_of_work_at_its_end() -> None:
    watcher = Watcher()
    late = replace(make_job(3, user="bob"), submitted_seconds=1e5)
    outcome = outcome_of(watcher, make_job(1, time_limit_seconds=7_200.0), make_job(2, user="bob"), late)
    assert outcome.state == ["COMPLETED"] * 3
    shown = [job for job in watcher.asked if isinstance(job, Job)]
    assert len(shown) == len(watcher.asked) >= 4
    assert all(job.kind == "" and isnan(job.true_units) and job.estimated_units != 3_600.0 for job in shown)
    assert {(job.user, job.name, job.time_limit_seconds) for job in shown} == {
        ("ann", "md", 7_200.0),
        ("bob", "md", inf),
    }
    assert [(end.kind, end.units) for end in watcher.ends] == [("", 0.0), ("", 0.0)]
    assert all(end.energy_joules > 0.0 and end.run_seconds > 0.0 for end in watcher.ends)


def test_nothing_is_hidden_where_the_world_says_so() -> None:
    watcher = Watcher()
    run(OPEN, Workload(name="jobs", jobs=(make_job(1),)), watcher)
    assert {(job.kind, job.estimated_units) for job in watcher.asked} == {("lammps", 3_600.0)}


def test_a_yardstick_is_told_the_truth_also_after_others_met_the_same_jobs() -> None:
    job = make_job(1, time_limit_seconds=1e6)
    outcome_of(Watcher(), job)
    assert job.estimated_units != job.true_units
    seen = Watcher()
    seen.knowledge = "truth"
    outcome_of(seen, job)
    assert {(one.kind, one.estimated_units) for one in seen.asked} == {("lammps", 3_600.0)}


@pytest.mark.parametrize(
    ("text", "knowledge"),
    [
        ("total-cost", "site"),
        ("clairvoyant", "truth"),
        ("clairvoyant/greedy", "truth"),
        ("neighbours/edp", "neighbours"),
    ],
)
def test_only_what_says_so_in_its_name_is_told_more(text: str, knowledge: str) -> None:
    assert create_contender(text).knowledge == knowledge


def test_tables_are_means_over_the_kinds_of_the_workload_whatever_kind_is_asked_for() -> None:
    places = places_of(SITE)
    mean = MeanTables(SITE, places).table("", (1,))
    one, other = (option_table(SITE, kind, (1,)) for kind in ("bloom-backward", "lammps"))
    known = np.isfinite(one.seconds_per_unit)
    expected = 0.5 * (one.seconds_per_unit + other.seconds_per_unit)
    assert np.allclose(mean.seconds_per_unit[known], expected[known])
    assert np.allclose(mean.joules_per_unit[known], 0.5 * (one.joules_per_unit + other.joules_per_unit)[known])
    assert MeanTables(SITE, places).table("lammps", (1,)).seconds_per_unit.tolist() == mean.seconds_per_unit.tolist()


def test_lengths_come_from_ended_runs_of_the_name_and_before_them_from_the_limit() -> None:
    known = JobKnowledge(SITE, places_of(SITE), "site")
    first = make_job(1, time_limit_seconds=100_000.0)
    known.set_estimate(first, (0,))
    by_limit = first.estimated_units
    assert 0.0 < by_limit <= 100_000.0
    for number in range(2, 22):
        known.learn(an_end(make_job(number), seconds=600.0))
    known.set_estimate(first, (0,))
    assert first.estimated_units < 0.1 * by_limit


def test_runs_of_before_the_start_are_known_from_the_first_job_on() -> None:
    job = make_job(1, time_limit_seconds=100_000.0)
    outcome_of(Watcher(), job)
    without = job.estimated_units
    watcher = Watcher()
    outcome_of(watcher, job, history=tuple(an_end(make_job(number), seconds=600.0) for number in range(2, 22)))
    assert job.estimated_units < 0.1 * without
    assert len(watcher.ends) == 20


def test_neighbours_are_the_users_own_runs_that_are_most_alike() -> None:
    lengths = NeighbourLengths()
    for name, units in (("bert-large", 100.0), ("md", 7.0), ("md", 9.0), ("md", 8.0), ("md", 8.0), ("md", 8.0)):
        lengths.add(make_job(1, name=name), units, None, cut_off=False)
    assert lengths.units(make_job(2), None) == 8.0
    assert lengths.units(make_job(2, user="bob"), None) is None


def test_backfill_plans_by_limits_unless_the_rule_plans_by_estimates() -> None:
    # Two jobs fill the node; a wide one waits; a short one with a long limit fits before it only by its true length.
    small = replace(SITE, pools=tuple(replace(pool, nodes=1) for pool in SITE.pools))
    jobs = (
        make_job(1, 36_000.0, gpu_counts=(7,), time_limit_seconds=5e5),
        make_job(2, 360_000.0, gpu_counts=(8,), time_limit_seconds=5e5),
        make_job(3, 60.0, time_limit_seconds=6e5),
    )
    starts = {
        text: run(small, Workload(name="jobs", jobs=jobs), create_contender(text)).started_seconds[2]
        for text in ("slurm-default", "clairvoyant/easy-estimates")
    }
    assert starts["clairvoyant/easy-estimates"] < starts["slurm-default"]


@pytest.mark.parametrize("world", [SITE, OPEN])
def test_a_number_of_gpus_that_the_daemon_fixes_holds_in_the_queue_and_scales_the_limit(world: World) -> None:
    one_node = replace(world, pools=tuple(replace(pool, nodes=1) for pool in world.pools))
    ranged = {"gpu_counts": (1, 2, 4, 8), "asked_gpus": 8, "time_limit_seconds": 3_600.0, "name": ""}
    jobs = (
        make_job(1, 1e6, gpu_counts=(7,), time_limit_seconds=7_200.0),
        make_job(2, 1e6, **ranged),
    )
    outcome = run(one_node, Workload(name="jobs", jobs=jobs), create_contender("daemon/slurm-default"))
    assert outcome.gpus.tolist() == [7, 4], "at most 4 without runs, and no fewer because one GPU is free"
    assert outcome.state == ["TIMEOUT", "TIMEOUT"]
    assert outcome.started_seconds[1] == pytest.approx(outcome.ended_seconds[0])
    assert outcome.run_seconds[1] == pytest.approx(7_200.0), "half as many GPUs, twice the limit"
    again = run(one_node, Workload(name="jobs", jobs=jobs), create_contender("daemon/slurm-default:gpu_count=off"))
    assert again.gpus.tolist() == [7, 8]
    assert again.run_seconds[1] == pytest.approx(3_600.0), "the range and the limit are the workload's in each run"


def test_the_worlds_file_keeps_what_policies_are_told(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(world_to_toml(SITE), encoding="utf-8")
    assert load_world(path).knowledge == "site"
    path.write_text(world_to_toml(SITE).replace('knowledge = "site"', 'knowledge = "all"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="knowledge='all' is not one of truth, site"):
        load_world(path)


def an_end(job: Job, *, seconds: float) -> KnownEnd:
    return KnownEnd(
        job=replace(job, kind="", estimated_units=0.0),
        place=0,
        gpus=1,
        clock=-1,
        state="COMPLETED",
        started_seconds=-seconds,
        begun_seconds=-seconds,
        ended_seconds=0.0,
        run_seconds=seconds,
        energy_joules=1e5,
    )
