"""The daemon's policies in the twin: the same guard, the same answer, on the clocks and partitions of the world."""

from dataclasses import replace
from math import inf

import pytest

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot, PartitionState
from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.errors import ConfigError, PolicyError
from slurm_energy.evaluation.contenders import create_contender, served_names
from slurm_energy.policy.base import Case, FollowingPolicy
from slurm_energy.policy.registry import create_policy, create_rule, known_policy_names
from slurm_energy.twin.adapters.served import ServedPolicy, served_policy
from slurm_energy.twin.adapters.view import job_request
from slurm_energy.twin.engine.events import WorkloadArrivals
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.loop import Engine
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.snapshot.source import SnapshotSource
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import shipped_world

LAB = shipped_world("lab")


def make_job(number: int = 1, **changes: object) -> Job:
    job = Job(job_id=number, submitted_seconds=0.0, true_units=1_000.0, kind="training", partitions=("a100",))
    for name, value in changes.items():
        setattr(job, name, value)
    return job


def served(name: str, *jobs: Job) -> Outcome:
    return run(LAB, Workload(name="jobs", jobs=jobs), create_contender(name))


def test_the_oracle_lowers_the_clock_and_saves_energy_inside_its_bound() -> None:
    before, after = served("daemon/slurm-default", make_job()), served("daemon/oracle:exchange=0", make_job())
    assert after.clock[0] < before.clock[0]
    assert after.energy_joules[0] < before.energy_joules[0]
    assert 1.0 < after.run_seconds[0] / before.run_seconds[0] <= 1.0 + Config().policy.max_slowdown + 1e-6


def test_a_larger_bound_lowers_the_clock_further() -> None:
    careful, bold = (
        served("daemon/oracle:exchange=0", make_job()),
        served("daemon/oracle:exchange=0,max_slowdown=0.2", make_job()),
    )
    assert bold.clock[0] < careful.clock[0]


def test_a_job_s_own_bound_is_kept() -> None:
    assert (
        served("daemon/oracle:exchange=0", make_job(max_slowdown=0.0)).clock[0] == served("fcfs", make_job()).clock[0]
    )


def test_a_time_limit_without_room_keeps_the_default_clock_and_counts_as_clamped() -> None:
    default = served("fcfs", make_job()).run_seconds[0]
    earlier = [make_job(number, name="lammps", max_slowdown=0.0) for number in range(1, 4)]
    late = {"name": "lammps", "submitted_seconds": 3.0 * default}
    tight = make_job(4, time_limit_seconds=60.0 * (default // 60.0 + 1.0), **late)
    outcome = served("daemon/oracle:exchange=0", *earlier, tight)
    assert outcome.state == ["COMPLETED"] * 4
    assert outcome.clamped == 1
    assert outcome.clock[3] == served("fcfs", make_job()).clock[0]


def test_the_daemon_is_told_no_run_time_that_it_has_not_measured() -> None:
    default = served("fcfs", make_job()).run_seconds[0]
    site = replace(LAB, knowledge="site")
    clocks = {
        int(run(site, Workload(name="one", jobs=(job,)), create_contender("daemon/oracle:exchange=0")).clock[0])
        for job in (make_job(time_limit_seconds=limit) for limit in (1.1 * default, 1.5 * default, 7 * 86_400.0))
    }
    assert len(clocks) == 1


def test_changing_nothing_is_what_slurm_does() -> None:
    jobs = [make_job(number, submitted_seconds=10.0 * number) for number in range(20)]
    plain = run(LAB, Workload(name="jobs", jobs=tuple(jobs)), create_rule("slurm-default"))
    assert served("daemon/slurm-default", *jobs).total_joules == pytest.approx(plain.total_joules, rel=1e-12)


def test_an_open_site_sends_jobs_that_name_no_partition_elsewhere_and_none_is_lost() -> None:
    jobs = [make_job(number, partitions=()) for number in range(40)]
    closed, opened = served("daemon/oracle:exchange=0", *jobs), served("daemon/oracle:open=1", *jobs)
    assert set(closed.place) == {0}
    assert len(set(opened.place)) > 1
    assert opened.state == ["COMPLETED"] * 40


def test_where_no_partition_is_the_default_a_job_that_names_none_is_submitted_to_all_and_has_clocks_for_all() -> None:
    world = replace(LAB, partitions=tuple(replace(partition, is_default=False) for partition in LAB.partitions))
    jobs = tuple(make_job(number, partitions=()) for number in range(60))

    def outcome(text: str) -> Outcome:
        return run(world, Workload(name="jobs", jobs=jobs), create_contender(text))

    slurm, oracle = outcome("daemon/slurm-default"), outcome("daemon/oracle:exchange=0,max_slowdown=0.5")
    for place in (0, 1):  # A100 and A40
        assert (slurm.place == place).any()
        assert (oracle.place == place).any()
        assert oracle.clock[oracle.place == place].max() < slurm.clock[slurm.place == place].min()


def test_two_runs_are_the_same() -> None:
    policy = served_policy("oracle")
    workload = Workload(name="jobs", jobs=(make_job(1), make_job(2, submitted_seconds=5.0)))
    first, second = (run(LAB, workload, policy) for _ in range(2))
    assert first.total_joules == second.total_joules
    assert sum(policy.reasons.values()) >= 2


def test_the_snapshot_shows_what_is_held() -> None:
    engine = Engine(LAB, WorkloadArrivals([make_job(gpu_counts=(3,))]), seed=1)
    rule = create_rule("slurm-default")
    steps = engine.steps()
    job = next(steps)
    before = SnapshotSource().snapshot(engine.view, 1.0)
    assert job is not None
    with pytest.raises(StopIteration):
        steps.send(rule.place(job, engine.view))
    names = [partition.name for partition in before.partitions]
    assert names == [partition.name for partition in LAB.partitions]
    assert isinstance(before.default_partition, PartitionState)
    gpus = sum(gpus.count for node in before.nodes for gpus in node.gpus)
    assert gpus == sum(pool.nodes * pool.gpus_per_node for pool in LAB.pools)
    assert sum(gpus.allocated for node in before.nodes for gpus in node.gpus) == 0


def test_a_request_says_what_the_job_says() -> None:
    job = make_job(
        gpu_counts=(2, 4), time_limit_seconds=7_200.0, deadline_seconds=9_000.0, max_slowdown=inf, user="ann"
    )
    request = job_request(job)
    (demand,) = request.gpus
    assert (demand.count, demand.max_count, request.time_limit_minutes) == (2, 4, 120.0)
    assert (request.options.deadline_seconds, request.options.max_slowdown) == (9_001.0, None)
    assert request.user_name == "ann"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("daemon/orcale", PolicyError, "does not exist"),
        ("daemon/oracle:speed=1", ConfigError, "has no setting 'speed"),
        ("daemon/oracle:exchange=0,max_slowdown=3", ConfigError, "out of bound"),
        ("daemon/oracle:exchange=0,max_slowdown=nan", ConfigError, "out of bound"),
        ("daemon/oracle:open=maybe", ConfigError, "not a number"),
    ],
)
def test_a_wrong_text_is_refused_by_name(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        create_contender(text)


def test_every_policy_of_the_daemon_can_contend() -> None:
    assert {create_contender(name).name for name in served_names()} == set(known_policy_names())
    with pytest.raises(ConfigError, match="checkpoint"):
        create_contender("daemon/gnn:checkpoint=")


def test_clocks_that_a_candidate_brings_for_a_name_are_used_by_its_users_jobs_alone() -> None:
    gpu_type = GpuTypeName("a100-sxm4-80gb")
    known = LearnedClock(
        sm_clock_mhz=1110,
        default_clock_mhz=1410,
        slowdown=0.02,
        error=0.004,
        energy_change=-0.3,
        runs=9,
        by_trial=False,
    )
    policy = ServedPolicy(create_policy(Config()), Config(), {("ann", "own"): {gpu_type: known}})
    jobs = tuple(make_job(number, user=user, name="own") for number, user in ((1, "ann"), (2, "bob")))
    outcome = run(LAB, Workload(name="jobs", jobs=jobs), policy)
    assert outcome.clock[0] < outcome.clock[1]


class Follower:
    """A policy with a picture of its own; notes each snapshot that it is brought to and asked with."""

    name, version = "follower", "1"

    def __init__(self) -> None:
        self.events: list[tuple[str, ClusterSnapshot]] = []

    def warm_up(self, snapshot: ClusterSnapshot) -> None:
        self.events.append(("brought", snapshot))

    def decide(self, case: Case) -> PolicyAnswer:
        self.events.append(("asked", case.snapshot))
        return PolicyAnswer()


def test_a_policy_that_follows_is_brought_to_each_snapshot_before_it_decides() -> None:
    policy = Follower()
    jobs = tuple(make_job(number, submitted_seconds=10.0 * number) for number in range(1, 4))
    outcome = run(LAB, Workload(name="jobs", jobs=jobs), ServedPolicy(policy, Config()))
    assert outcome.state == ["COMPLETED"] * 3
    assert [event for event, _ in policy.events] == ["brought", "asked"] * 3
    for (_, brought), (_, decided_with) in zip(policy.events[::2], policy.events[1::2], strict=True):
        assert brought is decided_with
    asked_with = [snapshot for event, snapshot in policy.events if event == "asked"]
    assert [snapshot.taken_at_seconds for snapshot in asked_with] == [11.0, 21.0, 31.0]
    assert [len(snapshot.jobs) for snapshot in asked_with] == [0, 1, 2]


def test_a_policy_that_keeps_no_picture_is_only_asked() -> None:
    class Plain:
        name, version = "plain", "1"

        def __init__(self) -> None:
            self.asked = 0

        def decide(self, case: Case) -> PolicyAnswer:
            self.asked += 1
            return PolicyAnswer()

    policy = Plain()
    assert not isinstance(policy, FollowingPolicy) and isinstance(Follower(), FollowingPolicy)
    run(LAB, Workload(name="jobs", jobs=(make_job(1), make_job(2))), ServedPolicy(policy, Config()))
    assert policy.asked == 2


def light_world() -> World:
    """Return a site without a default partition, where jobs of kind `lstm` gain nothing from the dearest type."""
    return shipped_world("philly-a100")


def lstm_jobs(names: tuple[str, ...], count: int, **changes: object) -> tuple[Job, ...]:
    return tuple(
        Job(
            job_id=number + 1,
            submitted_seconds=900.0 * number,
            true_units=600.0,
            kind="lstm",
            name=names[number % len(names)],
            **changes,  # type: ignore[arg-type]  # values by name
        )
        for number in range(count)
    )


def test_a_served_policy_learns_what_a_name_costs_and_ends_where_it_is_cheap() -> None:
    world = light_world()
    named = run(
        world,
        Workload(name="jobs", jobs=lstm_jobs(("lstm-a", "lstm-b"), 80)),
        create_contender("daemon/oracle:exchange=0"),
    )
    nameless = run(
        world, Workload(name="jobs", jobs=lstm_jobs(("",), 80)), create_contender("daemon/oracle:exchange=0")
    )
    h100 = named.places.index("h100")
    # By data sheets an H100 is the cheapest; of this work it draws more than it saves in time.
    assert set(nameless.place.tolist()) == {h100}
    assert named.place[0] == h100
    assert set(named.place[-20:].tolist()) == {named.places.index("a100")}
    assert named.energy_joules[-20:].sum() < 0.8 * nameless.energy_joules[-20:].sum()


def test_what_a_run_learned_is_forgotten_by_the_next() -> None:
    world, rule = light_world(), create_contender("daemon/oracle:exchange=0")
    workload = Workload(name="jobs", jobs=lstm_jobs(("lstm-a",), 40))
    first, second = run(world, workload, rule), run(world, workload, rule)
    assert first.place.tolist() == second.place.tolist()


def test_a_name_that_only_fails_on_a_type_is_not_sent_there_again() -> None:
    jobs = lstm_jobs(("lstm-a",), 60, fails_after_units=300.0)
    outcome = run(light_world(), Workload(name="jobs", jobs=jobs), create_contender("daemon/oracle:exchange=0"))
    assert set(outcome.state) == {"FAILED"}
    h100 = outcome.places.index("h100")
    assert outcome.place[0] == h100
    # In the end it has failed wherever it was sent, and Slurm's own choice is left.
    assert h100 not in outcome.place[-20:].tolist()
