"""Slowdown against where Slurm would have started jobs: each job's own bound counts."""

from research.results.slurm_place import SlurmPlaceRule, slurm_place_figures
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world.file import shipped_world


def test_a_job_is_beyond_its_own_bound_and_else_beyond_the_site_s() -> None:
    world = shipped_world("lab")
    jobs = tuple(
        Job(job_id=number, submitted_seconds=at, true_units=3600.0, kind="training", max_slowdown=bound)
        for number, at, bound in ((1, 0.0, 2.0), (2, 0.0, float("inf")), (3, 20_000.0, 2.0))
    )
    rule = SlurmPlaceRule(create_rule("fixed-clock:a100=0.62"))
    outcome = run(world, Workload(name="two", jobs=jobs), rule)
    assert set(rule.runs) == {1, 2}, "a rule is told of ends when it is asked next"
    found = slurm_place_figures(rule, world, jobs, outcome)
    assert found["slurm_place_slowdown_percent"] > 5.5
    assert found["jobs_beyond_bound_percent"] == 50.0


def test_waiting_jobs_are_decided_again_by_a_rule_that_is_watched() -> None:
    class Again:
        def __getattr__(self, name: str) -> object:
            return None

        def rerouted(self, view: object) -> dict[int, object]:
            return {7: view}

    rule = SlurmPlaceRule(Again())  # type: ignore[arg-type]  # as much of a rule as this needs
    assert rule.rerouted("view") == {7: "view"}  # type: ignore[arg-type, comparison-overlap]  # handed on
