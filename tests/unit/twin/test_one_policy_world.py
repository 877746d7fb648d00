"""One policy world: a rule answers alike whether it sees the simulated cluster or what Slurm would say of it.

The same moment is looked at twice: through the twin's own view with what a submission to Slurm can carry out, and
through a snapshot of it as the daemon has one. Every answer of every rule must be the same, to the last bit.
"""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from random import Random
from typing import Any

import pytest
from small_worlds import FirstFit, drive, make_device, make_engine, make_job, make_load, make_pool, make_world, steps_of

from slurm_energy.config import Config, PolicyConfig, RoutingConfig
from slurm_energy.daemon.decide import Decider, Known, KnownUser
from slurm_energy.daemon.ipc.frames import PolicyQuestion
from slurm_energy.daemon.snapshot.changes import SnapshotDifference
from slurm_energy.daemon.snapshot.feed import SnapshotCopy
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import PolicyAnswer, Reason
from slurm_energy.domain.ids import DecisionId, PartitionName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.policy.base import Case, DetachablePolicy, FollowingPolicy
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.jobs import JobAsSubmitted, WaitingJob
from slurm_energy.policy.placement import AT_SUBMISSION, ClusterView, OptionTable, PlacementRule
from slurm_energy.policy.registry import create_policy, create_rule, policy_names, rule_names
from slurm_energy.policy.site.candidates import asked_partitions, has_idle_room
from slurm_energy.policy.submission.view import SnapshotView, SubmittedJob
from slurm_energy.slurm.json_client import ClusterReading
from slurm_energy.twin.adapters.view import TwinView, job_request
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.places import option_table
from slurm_energy.twin.engine.pool_state import DOWN
from slurm_energy.twin.snapshot.source import SnapshotSource
from slurm_energy.twin.world import SuspendSettings, World
from slurm_energy.wire.messages import SubmittedFields as SubmittedMessage

RULES = [
    *(name for name in rule_names() if name != "clairvoyant"),
    "total-cost:V=50,slowdown=0.3,by_place=1,type_headroom=0.2,awake_time=0.5,max_node_wait=0.5,makespan=100",
    "adaptive-price:k=20,by_place=1,share=1",
    "edp:exponent=2,wake=0",
]
JOBS = 1_000
"""Jobs and snapshots over all worlds, each seen by every rule."""
WORLDS = 10


class TwinAtSubmission:
    """The twin's view of a job that is being submitted, with what Slurm can carry out and tells."""

    capabilities = AT_SUBMISSION
    coming_watts = 0.0

    def __init__(self, view: TwinView, job: Job, table: OptionTable) -> None:
        self._view, self._job, self._table = view, job, table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)  # all that is not hidden below is the twin's own

    def options(self, job: WaitingJob) -> OptionTable:
        return self._table

    def snapshot_without(self, job: WaitingJob) -> ClusterSnapshot:
        return self._view.snapshot_without(self._job)

    def submission(self, job: WaitingJob) -> JobAsSubmitted:
        return self._view.submission(self._job)

    def allowed_places(self, job: WaitingJob) -> tuple[int, ...]:
        return self._view.allowed_places(self._job)

    def room(self, job: WaitingJob) -> list[int]:
        gpus = job.gpu_counts[0]
        room = [0] * len(self._view.places)
        for place in self.allowed_places(job) if job.routed_place is None else (job.routed_place,):
            pool = self._view.pools[self._view.twin_places[place].pool_index]
            free = [left for left, power in zip(pool.free, pool.power, strict=True) if power != DOWN]
            if max(free) >= gpus and sum(free) >= gpus + self._waiting_gpus(place):
                room[place] = gpus
        return room

    def _waiting_gpus(self, place: int) -> int:
        queues = [queue for queue in self._view._waiting.all_queues() if place in queue.places]
        return sum(run.job.gpu_counts[0] for queue in queues for run in queue.first(queue.size))

    def partners(self, job: WaitingJob) -> tuple[()]:
        return ()

    def running_jobs(self) -> tuple[()]:
        return ()

    def nodes(self, place: int) -> tuple[()]:
        return ()

    def criticality(self, job: WaitingJob) -> float:
        return 1.0


def random_site(random: Random) -> World:
    """Return a cluster of partitions with one pool each, some of whose nodes sleep, with budgets and prices."""
    heavy, light = make_load(), make_load(watts=(40.0, 60.0, 110.0), seconds_per_unit=(5.0, 3.0, 2.5))
    devices = [
        make_device("a100", loads={"training": heavy, "light": light}),
        make_device("a40", loads={"training": light, "light": light}, free_watts=25.0),
    ]
    pools = [
        make_pool(
            f"pool{number}",
            device=random.choice(("a100", "a40")),
            nodes=random.randint(2, 4),
            gpus_per_node=random.randint(2, 4),
            host_idle_watts=60.0,
            host_busy_watts=60.0 * random.choice((1.0, 1.5)),
            region="north",
            suspend=SuspendSettings(
                idle_seconds=random.choice((0.0, 20.0)), resume_seconds=15.0, suspended_watts=4.0, resume_watts=120.0
            )
            if random.random() < 0.6
            else None,
        )
        for number in range(random.randint(2, 4))
    ]
    return make_world(
        *pools,
        devices=devices,
        power_budget_watts=steps_of(6_000.0, 1_500.0, every=70.0),
        price_per_kwh={"north": steps_of(0.1, 0.4, every=55.0), "": steps_of(0.2, every=1.0)},
        carbon_grams_per_kwh={"north": steps_of(300.0, 100.0, every=35.0)},
    )


def random_jobs(random: Random, world: World, jobs: int) -> list[Job]:
    names = [partition.name for partition in world.partitions]
    times = sorted(round(random.uniform(1.0, 4.0 * jobs), 2) for _ in range(jobs))
    return [
        make_job(
            number,
            submitted=time,
            units=round(random.uniform(1.0, 150.0), 3),
            gpus=random.randint(1, 2),
            kind=random.choice(("training", "light")),
            time_limit_seconds=60.0 * random.choice((inf, 1.0, 10.0)),
            deadline_seconds=random.choice((inf, time + 300.0)),
            max_slowdown=random.choice((0.05, 0.5)),
            partitions=tuple(random.sample(names, random.randint(1, len(names)))),
            user="ann",
            account="lab",
            name=random.choice(("train", "serve")),
        )
        for number, time in enumerate(times)
    ]


def seen_in_the_twin(view: TwinView, job: Job) -> tuple[ClusterView, SubmittedJob]:
    table = option_table(view.world, job.kind, job.gpu_counts, places=view.twin_places)
    asked = SubmittedJob(
        gpu_counts=job.gpu_counts,
        submitted_seconds=job.submitted_seconds,
        estimated_units=job.estimated_units,
        time_limit_seconds=job.time_limit_seconds,
        deadline_seconds=job.deadline_seconds,
        max_slowdown=job.max_slowdown,
        user=job.user,
        account=job.account,
        name=job.name,
        kind=job.kind,
    )
    return TwinAtSubmission(view, job, table), asked


def seen_in_a_snapshot(snapshot: ClusterSnapshot, view: TwinView, job: Job) -> tuple[SnapshotView, SubmittedJob]:
    """Return what the daemon would show: of the twin it has what no snapshot can say, the places' own figures."""
    request = job_request(job)
    case = Case(job=request, snapshot=snapshot, now_seconds=snapshot.taken_at_seconds)
    allowed = {partition.name: has_idle_room(case, partition) for partition in asked_partitions(case)}
    names = [place.partition for place, _ in snapshot.gpu_places]
    gpus = request.gpu_count
    seen = SnapshotView(
        snapshot=snapshot,
        now_seconds=snapshot.taken_at_seconds,
        places=view.places,
        free_gpus=[room.free for _, room in snapshot.gpu_places],
        table=option_table(view.world, job.kind, (gpus,), places=view.twin_places),
        open_places=tuple(index for index, name in enumerate(names) if name in allowed),
        room_by_place=[gpus if allowed.get(name) else 0 for name in names],
    )
    limit, options = request.time_limit_minutes, request.options
    return seen, SubmittedJob(
        request=request,
        runtime=view.submission(job).runtime,
        gpu_counts=(gpus,),
        submitted_seconds=request.submitted_at_seconds - 1.0,  # the twin's time 0 is Unix second 1
        estimated_units=job.estimated_units,
        time_limit_seconds=inf if limit is None else 60.0 * limit,
        deadline_seconds=job.deadline_seconds,
        max_slowdown=options.max_slowdown or 0.0,
        user=request.user_name or "",
        account=request.account or "",
        name=request.name,
        kind=job.kind,
    )


class Twice(FirstFit):
    """Lets jobs run as they fit, and at each arrival asks every rule in both worlds."""

    routes = True

    def __init__(self, made: Mapping[str, Callable[[], PlacementRule]]) -> None:
        super().__init__()
        self._source = SnapshotSource()
        self._pairs = [(text, make(), make()) for text, make in made.items()]
        self._begun = False
        self.asked = 0
        self.answers: set[tuple[str, object]] = set()

    def route(self, job: WaitingJob, view: ClusterView) -> None:
        assert isinstance(job, Job)
        assert isinstance(view, TwinView)
        snapshot = self._source.snapshot(view, view.now_seconds, without=job.job_id)
        twin, own = seen_in_the_twin(view, job)
        daemon, asked = seen_in_a_snapshot(snapshot, view, job)
        for text, one, other in self._pairs:
            if not self._begun:
                one.begin(twin, Random(7))
                other.begin(daemon, Random(7))
            answers = [_answers(one, own, twin), _answers(other, asked, daemon)]
            assert answers[0] == answers[1], (text, job)
            self.answers.add((text, answers[0][1]))
        self._begun = True
        self.asked += 1


def _answers(rule: PlacementRule, job: SubmittedJob, view: ClusterView) -> tuple[object, object]:
    routed = rule.route(job, view) if rule.routes else None
    if isinstance(routed, int):
        job = replace(job, routed_place=routed)
    return routed, rule.place(job, view) if any(view.room(job)) else None


def answered_alike(made: Mapping[str, Callable[[], PlacementRule]], seed: int) -> None:
    """Ask every rule about the jobs of one world, in the twin and on snapshots."""
    random = Random(seed)
    world = random_site(random)
    rule = Twice(made)
    drive(make_engine(world, random_jobs(random, world, JOBS // WORLDS), rule, seed=seed), rule, lambda _: None)
    assert rule.asked == JOBS // WORLDS
    several = {text for text, _ in rule.answers if len({a for t, a in rule.answers if t == text}) > 1}
    assert several == set(made), "each rule gives different answers to different jobs"


WORLD_SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, WORLDS))]


@pytest.mark.parametrize("seed", WORLD_SEEDS)
def test_every_rule_answers_alike_in_the_twin_and_on_a_snapshot(seed: int) -> None:
    answered_alike({text: partial(create_rule, text) for text in RULES}, seed)


NETWORK_SEEDS = [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, WORLDS))]
"""The long form takes all worlds: a thousand jobs under every kind of network, as under every rule here."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", NETWORK_SEEDS)
def test_every_network_answers_alike_in_the_twin_and_on_a_snapshot(seed: int) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the daemon extra has it")
    answered_alike(network_rules(), seed)


@pytest.mark.parametrize("jobs", [30, pytest.param(JOBS, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", policy_names())
def test_arena_and_daemon_decide_alike(name: str, jobs: int) -> None:
    """The whole way: guard and policy in the arena's process, and what the daemon makes of message and snapshot."""
    config = replace(Config(), policy=PolicyConfig(name=name, max_slowdown=0.3), routing=RoutingConfig(open=True))
    assert decided_alike(create_policy(config), create_policy(config), config, seed=name, jobs=jobs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["options", "options and clocks", "prices"])
def test_a_network_decides_alike_in_the_arena_and_from_a_process_of_its_own(kind: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the daemon extra has it")
    config = replace(
        Config(),
        policy=PolicyConfig(name="gnn", max_slowdown=2.0),
        routing=RoutingConfig(open=True, less_gpu_memory=True),
    )
    answers = decided_alike(network_policy(kind), OwnProcess(network_policy(kind)), config, seed=kind, jobs=8)
    assert len(answers) > 1


def network_rules() -> dict[str, Callable[[], PlacementRule]]:
    """Return what makes each kind of network as a rule, and prices as each base has them."""
    from slurm_energy.policy.gnn.configuration import NetworkConfig  # torch, where it is installed
    from slurm_energy.policy.gnn.network import create_network
    from slurm_energy.policy.gnn.priced_answers import PricedRule
    from slurm_energy.policy.gnn.serving import NetworkPrices, ServedPrices

    network = create_network(NetworkConfig(hidden=12, heads=6, quantiles=4, policy="prices"), seed=3)
    return {
        "options": partial(network_policy, "options"),
        "options and clocks": partial(network_policy, "options and clocks"),
        "prices by settings": lambda: PricedRule(partial(NetworkPrices, network), refresh_seconds=20.0),
        "prices by mode": lambda: PricedRule(partial(ServedPrices, network), EnergyMode.BALANCED, refresh_seconds=20.0),
    }


def network_policy(kind: str) -> Any:
    """Return a small network of options or of prices, the same at every call."""
    from slurm_energy.graph.cluster_graph import ClusterGraph  # torch, where it is installed
    from slurm_energy.policy.gnn.configuration import NetworkConfig
    from slurm_energy.policy.gnn.network import create_network
    from slurm_energy.policy.gnn.policy import GnnPolicy
    from slurm_energy.policy.gnn.serving import PricedPolicy

    small = NetworkConfig(hidden=12, heads=6, quantiles=4)
    if kind == "prices":
        return PricedPolicy(create_network(replace(small, policy="prices"), seed=1), ClusterGraph(), version="1")
    clocks: Any = "learned" if kind == "options and clocks" else "oracle"
    return GnnPolicy(create_network(small, seed=1), ClusterGraph(), version="1", clocks=clocks)


class OwnProcess:
    """A network behind all that lies between the daemon and its process: snapshots in parts, packed questions.

    One that can be left behind answers in the daemon itself, unpacked.
    """

    def __init__(self, policy: Any) -> None:
        self.name, self.version = policy.name, policy.version
        self._policy = policy
        self._difference, self._copy = SnapshotDifference(), SnapshotCopy()
        self._snapshot: ClusterSnapshot | None = None

    def follow(self, snapshot: ClusterSnapshot) -> None:
        reading = ClusterReading(
            partitions=snapshot.partitions,
            nodes=snapshot.nodes,
            jobs=snapshot.jobs,
            switches=snapshot.switches,
            clusters=snapshot.clusters,
        )
        for part in self._difference.parts(reading):
            self._copy.take(pickle.loads(pickle.dumps(part)))
        self._snapshot = self._copy.snapshot(snapshot.cluster, snapshot.taken_at_seconds)
        for _ in self._policy.warm_up_steps(self._snapshot):
            pass

    def decide(self, case: Case) -> PolicyAnswer:
        if isinstance(self._policy, DetachablePolicy):
            left: Any = pickle.loads(pickle.dumps(self._policy.detached()))
            answer: PolicyAnswer = left.decide(case)
            return answer
        question = pickle.loads(pickle.dumps(PolicyQuestion.of(case)))
        assert self._snapshot is not None
        answer = self._policy.decide(replace(question.case, snapshot=self._snapshot))
        return pickle.loads(pickle.dumps(answer))  # type: ignore[no-any-return]


def decided_alike(arena: Any, daemon: Any, config: Config, *, seed: str, jobs: int = 30) -> set[object]:
    """Ask one policy as the arena does and one as the daemon does, and return the different answers."""
    random = Random(seed)
    world = random_site(random)
    guards = [Guard(config, _numbers()) for _ in range(2)]
    decider = Decider(daemon, guards[1])
    source, different = SnapshotSource(), set[object]()

    class Both(FirstFit):
        routes = True

        def route(self, job: WaitingJob, view: ClusterView) -> None:
            assert isinstance(job, Job)
            assert isinstance(view, TwinView)
            now = view.now_seconds + 1.0
            snapshot = source.snapshot(view, now, without=job.job_id)
            if isinstance(arena, FollowingPolicy):
                arena.warm_up(snapshot)
            sent = pickle.loads(pickle.dumps(snapshot))
            if isinstance(daemon, OwnProcess):
                daemon.follow(sent)
            one = guards[0].decide(arena, job_request(job), snapshot, now, user_groups=())
            other = decider.decide(
                _message(job), Known(snapshot=sent, user=KnownUser(name="ann", groups=frozenset())), now
            )
            assert one == other.decision
            assert Reason.POLICY_ERROR not in one.reasons, one.notes
            different.add((one.partitions, one.clocks))

    rule = Both()
    submitted = random_jobs(random, world, jobs)
    for job in submitted:
        job.deadline_seconds = inf  # Slurm's is a date in local time
    drive(make_engine(world, submitted, rule), rule, lambda _: None)
    return different


def _message(job: Job) -> SubmittedMessage:
    request = job_request(job)
    return SubmittedMessage(
        user_id=request.user_id,
        name=request.name,
        account=request.account,
        partitions=tuple(PartitionName(one) for one in job.partitions),
        time_limit_minutes=request.time_limit_minutes,
        tres_per_job=f"gres/gpu:{request.gpu_count}",
        max_slowdown=request.options.max_slowdown,
    )


def _numbers() -> Any:
    numbers = count(1)
    return lambda: DecisionId(f"{next(numbers):016x}")
