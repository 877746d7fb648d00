"""The network where jobs are placed as they can start: what it is told, what becomes of its answer, no job is lost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from small_networks import small_checkpoint, small_network
from small_worlds import make_job, make_pool, make_world, run_jobs, same, started

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.job import EnergyMode
from slurm_energy.evaluation.arena.plan import ArenaPlan
from slurm_energy.evaluation.arena.run import run_one
from slurm_energy.evaluation.metrics import Metrics
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import RunOption
from slurm_energy.graph.partitions import ClusterFacts
from slurm_energy.graph.schema import TASK, column
from slurm_energy.policy.gnn.configuration import Clocks
from slurm_energy.policy.gnn.policy import GnnPolicy
from slurm_energy.policy.placement import ClusterView
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.workloads.csv_file import write_csv
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world import Partition
from slurm_energy.twin.world.file import shipped_world, world_names

WORLD = make_world(
    make_pool("left", nodes=2),
    make_pool("right"),
    partitions=(Partition(name="left", pools=("left",)), Partition(name="right", pools=("right",))),
)
"""A unit costs 200, 180 or 190 J beyond being free at the three clocks: the oracle's is the middle one."""
ORACLE, DEFAULT = 1, 2
MOST_JOBS = 12


@dataclass(frozen=True, slots=True)
class FakeChoice:
    option: int
    clock: int | None = None


Answer = Callable[[Sequence[RunOption]], FakeChoice | None]


@dataclass
class FakeChooser:
    """Answers by a function of the options, and remembers what it was shown."""

    answer: Answer
    graph: ClusterGraph = field(default_factory=ClusterGraph)
    snapshots: list[ClusterSnapshot] = field(default_factory=list)
    vectors: list[Floats] = field(default_factory=list)
    options: list[Sequence[RunOption]] = field(default_factory=list)

    @property
    def cluster_facts(self) -> ClusterFacts:
        return ClusterFacts(
            self.graph.partition_index, self.graph.facts, self.graph.members.sums(self.graph.nodes.store)
        )

    def follow_at_once(self, snapshot: ClusterSnapshot) -> None:
        self.snapshots.append(snapshot)
        self.graph.update(snapshot)

    def choose(self, job_x: Floats, options: Sequence[RunOption]) -> FakeChoice | None:
        assert len(self.snapshots) == len(self.options) + 1, "asked without being brought to the present state"
        self.vectors.append(job_x)
        self.options.append(options)
        return self.answer(options)


class Choosers:
    """Makes a fake for each run and keeps them."""

    def __init__(self, answer: Answer) -> None:
        self.made: list[FakeChooser] = []
        self._answer = answer

    def __call__(self) -> FakeChooser:
        self.made.append(FakeChooser(self._answer))
        return self.made[-1]


class FakePolicy(GnnPolicy):
    """The policy with another network in each run."""

    def __init__(self, choosers: Choosers, **settings: Any) -> None:
        super().__init__(small_network(1), ClusterGraph(), version="7", **settings)
        self._choosers = choosers

    def begin(self, view: ClusterView, random: Random) -> None:
        super().begin(view, random)
        self._chooser = self._choosers()  # type: ignore[assignment]  # a fake


def rule_of(answer: Answer, *, clocks: Clocks = "oracle") -> tuple[GnnPolicy, Choosers]:
    choosers = Choosers(answer)
    return FakePolicy(choosers, clocks=clocks), choosers


def network_rule(seed: int, clocks: Clocks = "oracle") -> GnnPolicy:
    return GnnPolicy(small_network(seed), ClusterGraph(), version="1", clocks=clocks)


def by_chance(seed: int) -> Answer:
    random = Random(seed)
    return lambda options: FakeChoice(random.randrange(len(options)))


def some_jobs(count: int = 30) -> list[Job]:
    random = Random(5)
    return [
        make_job(
            number, submitted=60.0 * number, units=random.uniform(20.0, 200.0), gpus=random.choice([(1,), (1, 2, 4)])
        )
        for number in range(1, count + 1)
    ]


def test_a_network_is_told_what_time_and_energy_are_worth_to_the_jobs() -> None:
    choosers = Choosers(by_chance(1))
    run_jobs(WORLD, some_jobs(3), FakePolicy(choosers, default_mode=EnergyMode.SAVER))
    columns = [column(TASK, name) for name in ("time_weight", "energy_weight")]
    assert [vector[columns].tolist() for vector in choosers.made[0].vectors] == [pytest.approx([0.2, 0.8])] * 3


@pytest.mark.parametrize("option", range(6))
def test_a_job_starts_as_chosen_at_the_clock_of_least_energy(option: int) -> None:
    rule, _ = rule_of(lambda options: FakeChoice(option))
    outcome = run_jobs(WORLD, [make_job(1, gpus=(1, 2, 4))], rule)
    places, widths = [0, 0, 0, 1, 1, 1], [1, 2, 4, 1, 2, 4]
    assert (outcome.place[0], outcome.gpus[0], outcome.clock[0]) == (places[option], widths[option], ORACLE)
    assert (outcome.rule, rule.version, outcome.clamped) == ("gnn", "7", 0)


@pytest.mark.parametrize("clock", range(3))
def test_a_chosen_clock_counts_only_where_clocks_are_learned(clock: int) -> None:
    exact, exact_choosers = rule_of(lambda options: FakeChoice(0, clock))
    free, free_choosers = rule_of(lambda options: FakeChoice(0, clock), clocks="learned")
    assert run_jobs(WORLD, [make_job(1)], exact).clock[0] == ORACLE
    assert run_jobs(WORLD, [make_job(1)], free).clock[0] == clock
    assert exact_choosers.made[0].options[0][0].clocks == ()
    assert len(free_choosers.made[0].options[0][0].clocks) == 3


def test_without_a_chosen_clock_the_exact_one_stands() -> None:
    rule, _ = rule_of(lambda options: FakeChoice(0, None), clocks="learned")
    assert run_jobs(WORLD, [make_job(1)], rule).clock[0] == ORACLE


def test_a_job_waits_when_nothing_is_chosen_and_is_asked_about_again() -> None:
    answers = iter([FakeChoice(0), None, FakeChoice(0)])
    rule, choosers = rule_of(lambda options: next(answers))
    outcome = run_jobs(WORLD, [make_job(1), make_job(2, submitted=10.0)], rule)
    assert outcome.state == ["COMPLETED", "COMPLETED"]
    assert outcome.declined == 1
    assert started(outcome)[2] == pytest.approx(200.0)  # when the first one, at half the clock, has ended
    assert len(choosers.made[0].options) == 3


def test_the_network_sees_the_cluster_as_it_is_without_the_job_it_is_asked_about() -> None:
    rule, choosers = rule_of(lambda options: FakeChoice(0))
    run_jobs(WORLD, [make_job(1), make_job(2, submitted=10.0), make_job(3, submitted=500.0)], rule)
    first, second, third = choosers.made[0].snapshots
    assert [[int(job.job_id) for job in snapshot.jobs] for snapshot in (first, second, third)] == [[], [1], []]
    assert [snapshot.taken_at_seconds for snapshot in (first, second, third)] == [1.0, 11.0, 501.0]
    used = [sum(gpus.allocated for node in s.nodes for gpus in node.gpus) for s in (first, second, third)]
    assert used == [0, 1, 0]


def test_the_job_is_told_as_one_that_is_being_submitted() -> None:
    rule, choosers = rule_of(lambda options: FakeChoice(0))
    late = make_job(2, submitted=9.0, units=500.0, gpus=(1, 2, 4), time_limit_seconds=3600.0)
    run_jobs(WORLD, [make_job(1), late], rule)
    vector = choosers.made[0].vectors[1]
    told = {feature.name: (value, feature) for feature, value in zip(TASK, vector.tolist(), strict=True)}
    wanted = {
        "is_pending": 0.0,
        "is_submitted": 1.0,
        "estimated_seconds": 125.0,  # on four devices, at the highest clock
        "time_limit_seconds": 3600.0,
        "gpus_least": 1.0,
        "gpus_most": 4.0,
        "waited_seconds": 0.0,
        "has_deadline": 0.0,
    }
    for name, value in wanted.items():
        found, feature = told[name]
        assert found == pytest.approx(feature.scaled(value)), name


def test_every_run_begins_with_a_network_that_has_seen_nothing() -> None:
    rule, choosers = rule_of(lambda options: FakeChoice(0))
    for _ in range(2):
        run_jobs(WORLD, [make_job(1)], rule)
    first, second = choosers.made
    assert first.graph is not second.graph
    assert len(first.snapshots) == len(second.snapshots) == 1


def test_random_choices_lose_no_job_and_are_never_changed_by_the_guard() -> None:
    rule, _ = rule_of(by_chance(3))
    outcome = run_jobs(WORLD, some_jobs(), rule)
    assert outcome.state == ["COMPLETED"] * 30
    assert outcome.clamped == 0
    assert {*outcome.place.tolist()} == {0, 1}
    assert {*outcome.gpus.tolist()} == {1, 2, 4}


@pytest.mark.parametrize("clocks", ["learned", pytest.param("oracle", marks=pytest.mark.slow)])
def test_the_same_weights_do_the_same_twice_and_others_do_otherwise(clocks: Clocks) -> None:
    def outcome(seed: int) -> Outcome:
        return run_jobs(WORLD, some_jobs(12), network_rule(seed, clocks))

    first, again, others = outcome(1), outcome(1), [outcome(seed) for seed in (2, 3)]
    assert same(first, again)
    assert any(not same(first, other) for other in others)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "random", seed=3)


WORLDS_IN_THE_SUITE = [
    name if place % 3 == 0 else pytest.param(name, marks=pytest.mark.long) for place, name in enumerate(world_names())
]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS_IN_THE_SUITE)
def test_an_hour_of_every_shipped_world_runs_to_its_end_with_random_weights(
    name: str, checkpoint: Path, tmp_path: Path
) -> None:
    """Energy balance and bound are checked by the arena's own run."""
    world = shipped_world(name)
    hour = create_workload(world.workload, {**world.workload_settings, "hours": 1.0}, 1).jobs
    path = tmp_path / "hour.csv"
    some = hour[:: -(-len(hour) // MOST_JOBS)]
    if any(job.after_ok for job in hour):
        some = hour[:MOST_JOBS]  # in a task graph others come before: they are needed, too
    write_csv(Workload(name=name, jobs=some), path)
    plan = ArenaPlan(policies=("gnn",), world=name, workload=path)

    def figures(policy: str) -> Metrics:
        return run_one(plan, policy, policy, seed=1).metrics

    network, default = figures(f"gnn:checkpoint={checkpoint}"), figures("slurm-default")
    assert network.jobs == default.jobs > 6
    assert (network.completed_jobs, network.unfinished_jobs) == (default.completed_jobs, 0) == (default.jobs, 0)
    assert network.true_units == pytest.approx(default.true_units)
    assert network.clamped_decisions == 0
    assert 0.0 < network.active_joules < network.total_joules
