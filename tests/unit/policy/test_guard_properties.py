"""Whatever the cluster, the job and the policy: a decision is valid, and none is ever refused by an exception."""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_factory import (
    A40,
    A100,
    NOW,
    V100,
    changes_job,
    ids,
    make_config,
    make_node,
    make_partition,
    make_snapshot,
    make_waiting_job,
)
from property_examples import EXAMPLES

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState, PartitionState
from slurm_energy.domain.decision import ClockChoice, EnergyDecision, PolicyAnswer, Reason, RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest
from slurm_energy.energy_model.catalog import CATALOG, gpu_type_from_slurm_type
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.policy.base import Case, Policy
from slurm_energy.policy.guard import Guard, decision_entry, job_max_slowdown
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.policy.rules.slurm_order import FixedClockRule
from slurm_energy.policy.site.candidates import has_idle_room, refusal
from slurm_energy.policy.site.settings import site_board_limits

NAMES = ("p0", "p1", "p2", "p3")
SLURM_TYPES = ("a100", "a100", "a40", "a40", "v100", "v100", "h100", "mi300x", None)
words = st.sampled_from(("chem", "bio", "phys"))
some_words = st.lists(words, max_size=2).map(tuple)
rarely = st.sampled_from((False,) * 7 + (True,))
minutes = st.none() | st.sampled_from((0.0, 1.0, 60.0, 600.0, 10_000.0, math.inf)) | st.floats(0.0, 1e6)
maybe_nan = st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[PartitionState, ...]:
    names = draw(st.permutations(NAMES).map(lambda order: order[:3]) | st.lists(st.sampled_from(NAMES), unique=True))
    closed = draw(rarely)
    return tuple(
        make_partition(
            name,
            is_default=index == 0 and not draw(rarely),
            up=not draw(rarely),
            max_time_minutes=draw(minutes),
            default_time_minutes=draw(minutes),
            max_nodes=draw(st.none() | st.integers(0, 4)) if closed else None,
            allow_groups=draw(some_words) if closed else (),
            allow_accounts=draw(some_words) if closed else (),
            deny_qos=draw(some_words) if closed else (),
            root_only=draw(rarely),
        )
        for index, name in enumerate(names)
    )


@st.composite
def nodes(draw: st.DrawFn) -> NodeState:
    count = draw(st.sampled_from((8, 8, 4, 1, 0)))
    gpus = tuple(
        NodeGpus(slurm_type=slurm_type, count=count, allocated=draw(st.sampled_from((0, 0, 0, 4, 9))))
        for slurm_type in draw(st.lists(st.sampled_from(SLURM_TYPES), min_size=1, max_size=2))
    )
    cpus = draw(st.sampled_from((0, 0, 32, 64)))
    name = draw(st.sampled_from(NAMES))
    features = draw(st.sampled_from(((), ("nvlink",), ("ib",), ("ib", "nvlink"))))
    return make_node("n", name, None, gpus=gpus, available=not draw(rarely), cpus_allocated=cpus, features=features)


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    waiting = [
        make_waiting_job(index + 1, draw(st.sampled_from(NAMES)), draw(st.none() | st.integers(0, 4)))
        for index in range(draw(st.sampled_from((0, 0, 0, 1, 2))))
    ]
    found = tuple(draw(st.lists(nodes(), min_size=4, max_size=8)))
    taken = NOW - draw(st.sampled_from((0.0,) * 12 + (59.0, 61.0, -61.0)))
    known = draw(partitions()) or (make_partition("p0"),)
    return make_snapshot(*found, partitions=known, jobs=tuple(waiting), taken_at_seconds=taken)


@st.composite
def jobs(draw: st.DrawFn) -> JobRequest:
    demands = st.builds(
        GpuDemand,
        count=st.sampled_from((1, 1, 2, 4, 8, 0)),
        slurm_type=st.sampled_from((None,) * 9 + ("a100", "a40", "h100")),
    )
    return JobRequest(
        user_id=draw(st.sampled_from((0, 1000))),
        account=draw(st.none() | words),
        qos=draw(st.none() | words),
        partitions=tuple(
            PartitionName(name) for name in draw(st.lists(st.sampled_from((*NAMES, "gone")), max_size=4, unique=True))
        ),
        time_limit_minutes=draw(st.sampled_from((600.0, None, None, -5.0, math.nan)) | minutes),
        nodes_min=draw(st.sampled_from((1, 1, 1, 0, 2, 3))),
        tasks=draw(st.none() | st.integers(0, 8)),
        cpus_per_task=draw(st.none() | st.integers(0, 16)),
        memory_per_node_mib=draw(maybe_nan) if draw(rarely) else None,
        gpus=tuple(draw(st.lists(demands, max_size=2) if draw(rarely) else st.tuples(demands))),
        features=draw(st.text(max_size=5)) if draw(rarely) else None,
        array="1-9" if draw(rarely) else None,
        exclusive=draw(rarely),
        gpu_frequency_given=draw(rarely),
        options=EnergyOptions(
            mode=draw(st.sampled_from((None, None, None, EnergyMode.SAVER, *EnergyMode))),
            max_slowdown=draw(st.sampled_from((None, None, 0.0, 0.1, 2.0)) | st.floats(0.0, 2.0)),
            deadline_seconds=draw(st.floats(NOW - 100.0, NOW + 1e6)) if draw(rarely) else None,
            quiet=draw(st.booleans()),
        ),
    )


estimates = st.none() | st.builds(
    lambda seconds, more: RuntimeEstimate(seconds=seconds, upper_seconds=seconds + more, source="history"),
    st.floats(0.0, 1e6),
    st.floats(0.0, 1e6) | st.just(math.inf),
)


@st.composite
def forged_clocks(draw: st.DrawFn) -> object:
    clock = ClockChoice(
        gpu_type=GpuTypeName(draw(st.sampled_from((*map(str, CATALOG), "mi300x")))),
        sm_clock_mhz=draw(st.integers(1, 10_000)),
        default_clock_mhz=draw(st.integers(1, 10_000)),
        predicted_slowdown=draw(maybe_nan),
        predicted_energy_change=draw(maybe_nan),
    )
    if draw(st.integers(0, 9)) == 0:
        object.__setattr__(clock, "sm_clock_mhz", draw(maybe_nan | st.integers() | st.text(max_size=3) | st.none()))
    return clock


@st.composite
def forged_answers(draw: st.DrawFn) -> object:
    answer = PolicyAnswer()
    names = st.sampled_from((*NAMES, "gone", "\x1b[31m"))
    fields: dict[str, st.SearchStrategy[Any]] = {
        "partitions": st.none() | st.lists(names, max_size=3).map(tuple) | st.integers(),
        "clocks": st.lists(forged_clocks(), max_size=3).map(tuple) | st.none(),
        "prefer": st.sampled_from((None, "nvlink", "nvlink", "ib", "gone", "a&b", 7)),
        "reasons": st.lists(st.sampled_from(Reason) | st.text(max_size=3), max_size=3).map(tuple) | st.none(),
        "notes": st.lists(st.text(max_size=300) | st.integers(), max_size=20).map(tuple) | st.none(),
    }
    for name in draw(st.sets(st.sampled_from(sorted(fields)))):
        object.__setattr__(answer, name, draw(fields[name]))
    return draw(st.just(answer) | st.none() | st.integers())


class HostilePolicy:
    """Returns what was drawn, or raises it."""

    def __init__(self, answer: object) -> None:
        self.name: Any = answer
        self.version = "\n\x1b[31m"
        self.answer = answer

    def decide(self, case: Case) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


hostile = (forged_answers() | st.sampled_from((ValueError("x"), KeyError(), RecursionError()))).map(HostilePolicy)
fixed = st.dictionaries(st.sampled_from((A100, A40, V100)), st.integers(1, 3000)).map(
    lambda clocks: FixedClockRule(clocks_mhz=clocks, max_slowdown=0.05)
)
route = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True).map(
    lambda names: HostilePolicy(PolicyAnswer(partitions=tuple(PartitionName(name) for name in names)))
)
hint = st.sampled_from(("nvlink", "nvlink", "ib")).map(lambda feature: HostilePolicy(PolicyAnswer(prefer=feature)))
policies = st.sampled_from((0, 1, 1, 1, 2, 3, 4)).flatmap(
    lambda kind: (hostile, st.just(OraclePolicy()), fixed, route, hint)[kind]
)
configs = st.builds(
    make_config,
    routing_open=st.sampled_from((True, True, True, False)),
    node_hints=st.sampled_from((True, True, False)),
    routing_partitions=st.sampled_from(((), (), (), ("p1",), ("p2", "p3"))),
    default_mode=st.sampled_from(("balanced",) * 6 + ("saver", "observe", "off")),
    max_slowdown=st.sampled_from((0.0, 0.05, 0.2, 2.0)),
    unknown_runtime_share=st.floats(0.0, 1.0),
    time_limit_margin=st.sampled_from((0.0, 0.02, 0.1, 0.9)),
    min_energy_saving=st.sampled_from((0.0, 0.01, 0.1)),
    gpu_power_limits_watts=st.sampled_from(({"a100": 500.0}, {}, {"a100": 300.0, "a40": 200.0}, {"v100": 10.0})),
)


def landing(job: JobRequest, snapshot: ClusterSnapshot, decision: EnergyDecision) -> list[PartitionState]:
    """Return the partitions in which Slurm may start the job under this decision."""
    default = [partition.name for partition in snapshot.partitions if partition.is_default]
    names = decision.partitions or job.partitions or tuple(default)
    return [partition for partition in snapshot.partitions if partition.name in names]


def limit_seconds(job: JobRequest, partition: PartitionState) -> float:
    for limit in (job.time_limit_minutes, partition.default_time_minutes, partition.max_time_minutes):
        if limit is not None:
            return 60.0 * limit
    return math.inf


def check(
    decision: EnergyDecision,
    job: JobRequest,
    snapshot: ClusterSnapshot,
    config: Config,
    runtime: RuntimeEstimate | None,
    groups: tuple[str, ...] | None,
) -> None:
    assert len(decision.message.encode()) <= 512
    assert decision.message.isprintable()
    assert all(note.isprintable() for note in (*decision.notes, decision.policy, decision.policy_version))
    assert decision.reasons and len(set(decision.reasons)) == len(decision.reasons)
    assert decision_entry(decision, job.time_limit_minutes).encode()
    if decision.mode in (EnergyMode.OFF, EnergyMode.OBSERVE) or job.gpu_count == 0:
        assert not changes_job(decision)
    if decision.partitions is not None:
        check_partitions(decision, job, snapshot, config, groups)
    if decision.prefer is not None:
        check_hint(decision, job, snapshot, config)
    assert not (job.gpu_frequency_given and decision.clocks)
    for clock in decision.clocks:
        check_clock(clock, decision, job, snapshot, config, runtime)


def check_partitions(
    decision: EnergyDecision,
    job: JobRequest,
    snapshot: ClusterSnapshot,
    config: Config,
    groups: tuple[str, ...] | None,
) -> None:
    assert decision.partitions
    assert len(job.partitions) != 1
    case = Case(job=job, snapshot=snapshot, now_seconds=NOW, user_groups=groups)
    for name in decision.partitions:
        partition = snapshot.partition_by_name[name]
        assert refusal(case, partition) is None
        assert has_idle_room(case, partition)
        if job.partitions:
            assert name in job.partitions
        else:
            assert config.routing.open
            assert partition.is_default or not config.routing.partitions or name in config.routing.partitions


def check_hint(decision: EnergyDecision, job: JobRequest, snapshot: ClusterSnapshot, config: Config) -> None:
    assert config.routing.node_hints
    assert not job.features and job.reservation is None
    places = {partition.name for partition in landing(job, snapshot, decision)}
    having = [node for node in snapshot.nodes if decision.prefer in node.features and places & set(node.partitions)]
    assert sum(node.available and node.gpu_count >= 1 for node in having) >= max(1, job.nodes_min)


def check_clock(
    clock: ClockChoice,
    decision: EnergyDecision,
    job: JobRequest,
    snapshot: ClusterSnapshot,
    config: Config,
    runtime: RuntimeEstimate | None,
) -> None:
    row = CATALOG[clock.gpu_type]
    assert clock.sm_clock_mhz in row.sm_clocks_mhz
    assert clock.default_clock_mhz == row.default_sm_clock_mhz
    assert clock.sm_clock_mhz < clock.default_clock_mhz
    assert -clock.predicted_energy_change >= config.guard.min_energy_saving
    bound = job_max_slowdown(job, config)
    assert 0.0 <= clock.predicted_slowdown <= bound
    limit_watts = site_board_limits(config).watts(clock.gpu_type)
    for curve in curves_of(clock.gpu_type):
        assert curve.on_board(limit_watts).slowdown(clock.sm_clock_mhz) <= bound + 1e-8
    stretch = 1.0 + clock.predicted_slowdown
    for partition in landing(job, snapshot, decision):
        types = snapshot.slurm_gpu_types_by_partition.get(partition.name, ())
        if clock.gpu_type not in {gpu_type_from_slurm_type(slurm_type) for slurm_type in types if slurm_type}:
            continue
        limit = limit_seconds(job, partition)
        if math.isinf(limit) and runtime is None:
            assert job.options.deadline_seconds is None
            continue
        predicted = config.guard.unknown_runtime_share * limit if runtime is None else runtime.upper_seconds
        assert predicted * stretch <= limit * (1.0 - config.guard.time_limit_margin) * (1 + 1e-9)
        if job.options.deadline_seconds is not None and runtime is not None:
            assert NOW + predicted * stretch <= job.options.deadline_seconds * (1 + 1e-9)


@settings(max_examples=8 * EXAMPLES, suppress_health_check=[HealthCheck.data_too_large])
@given(
    policy=policies,
    job=jobs(),
    snapshot=snapshots(),
    config=configs,
    runtime=estimates,
    groups=st.none() | some_words,
)
def test_decision_is_valid_whatever_the_policy_the_job_and_the_cluster(
    policy: Policy,
    job: JobRequest,
    snapshot: ClusterSnapshot,
    config: Config,
    runtime: RuntimeEstimate | None,
    groups: tuple[str, ...] | None,
) -> None:
    decision = Guard(config, ids()).decide(policy, job, snapshot, NOW, runtime, groups)
    check(decision, job, snapshot, config, runtime, groups)
    assert Guard(config, ids()).decide(policy, job, snapshot, NOW, runtime, groups) == decision


@st.composite
def orderly_cases(draw: st.DrawFn) -> tuple[JobRequest, ClusterSnapshot]:
    """Return a plain job and a cluster of open partitions, one GPU type each, some of them full."""
    types = [draw(st.sampled_from(("a100", "a40", "v100"))) for _ in NAMES]
    found = [
        make_node(
            f"{name}-{index}",
            name,
            slurm_type,
            allocated=draw(st.sampled_from((0, 0, 2, 4))),
            features=("nvlink",) if index == 2 else draw(st.sampled_from(((), ("ib",)))),
        )
        for name, slurm_type in zip(NAMES, types, strict=True)
        for index in (1, 2)
    ]
    known = tuple(make_partition(name, is_default=name == "p0", up=not draw(rarely)) for name in NAMES)
    listed = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    job = JobRequest(
        user_id=1000,
        partitions=tuple(PartitionName(name) for name in listed),
        time_limit_minutes=draw(st.sampled_from((60.0, 600.0, None))),
        gpus=(GpuDemand(count=draw(st.sampled_from((1, 2, 4)))),),
        options=EnergyOptions(max_slowdown=draw(st.none() | st.floats(0.0, 2.0))),
    )
    return job, make_snapshot(*found, partitions=known)


@pytest.mark.slow
def test_decision_that_routes_or_slows_is_valid() -> None:
    seen = {"partitions": 0, "clocks": 0, "refused": 0, "hints": 0}

    @settings(max_examples=1000)
    @given(
        policy=route | route | route | hint | fixed | st.just(OraclePolicy()),
        case=orderly_cases(),
        config=configs,
        runtime=estimates,
    )
    def run(
        policy: Policy, case: tuple[JobRequest, ClusterSnapshot], config: Config, runtime: RuntimeEstimate | None
    ) -> None:
        job, snapshot = case
        decision = Guard(config, ids()).decide(policy, job, snapshot, NOW, runtime)
        check(decision, job, snapshot, config, runtime, None)
        seen["partitions"] += decision.partitions is not None
        seen["clocks"] += bool(decision.clocks)
        seen["hints"] += decision.prefer is not None
        seen["refused"] += not {Reason.PARTITION_NOT_ALLOWED, Reason.NO_IDLE_PARTITION}.isdisjoint(decision.reasons)

    run()
    assert min(seen.values()) >= 5, f"the cases are too tame: {seen}"


@given(bounds=st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 2.0)), name=st.sampled_from(("a100", "a40", "v100")))
def test_larger_bound_never_saves_less(bounds: tuple[float, float], name: str) -> None:
    partition = make_partition(name, is_default=True, max_time_minutes=None)
    snapshot = make_snapshot(make_node("n", name, name), partitions=(partition,))
    changes = []
    for bound in sorted(bounds):
        job = JobRequest(user_id=1, gpus=(GpuDemand(count=1),), options=EnergyOptions(max_slowdown=bound))
        decision = Guard(make_config(), ids()).decide(OraclePolicy(), job, snapshot, NOW)
        changes.append(sum(clock.predicted_energy_change for clock in decision.clocks))
    assert changes[0] >= changes[1]
