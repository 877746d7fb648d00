"""What the masks promise: which partitions an answer may name, where a job has room, and when a node is hinted at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, cast

from slurm_energy.config import Config, GuardConfig, RoutingConfig
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState
from slurm_energy.domain.decision import Reason, RuntimeEstimate
from slurm_energy.domain.ids import ClusterName, GpuTypeName, NodeName
from slurm_energy.domain.job import GpuDemand, JobRequest
from slurm_energy.energy_model.relative_speed import RelativeCost
from slurm_energy.evaluation.gate.logic.cases import (
    A40,
    A100,
    GHOST,
    HOME,
    NOW,
    OTHER,
    SymbolComparison,
    candidate,
    case_of,
    job_of,
    partition,
)
from slurm_energy.evaluation.gate.logic.symbols import Path
from slurm_energy.policy.base import Case
from slurm_energy.policy.guard import partitions as guard_partitions
from slurm_energy.policy.site import candidates as site
from slurm_energy.policy.site.comparison import Candidate, first_tried, landing_on, rivals_of, time_ratio, with_room


def opens_only_what_the_user_may_use(path: Path) -> None:
    """No partition outside the user's list; none that is closed to him; none that slurmctld's side would leave out."""
    asked = path.choice("asked", ((), (HOME,), (HOME, OTHER)))
    tie = path.choice("tie", ("none", "tied", "reservation", "array"))
    job = JobRequest(
        user_id=1000,
        gpus=(GpuDemand(count=1),),
        partitions=asked,
        tied=tie == "tied",
        reservation="maintenance" if tie == "reservation" else None,
        array="0-3" if tie == "array" else None,
        time_limit_minutes=10.0,
    )
    is_open = path.boolean("routing open")
    listed = path.choice("listed", ((), (OTHER,), (HOME,))) if is_open and not asked else ()
    up = path.boolean("other up") if tie == "none" else True
    tier = path.whole("tier of the other", 0, 3) if tie == "none" and up else 1
    known = path.boolean("home's GPUs known")
    snapshot = ClusterSnapshot(
        cluster=ClusterName("c"),
        taken_at_seconds=NOW,
        partitions=(partition(HOME), partition(OTHER, up=up, priority_tier=tier)),
        nodes=(_node("a", HOME, "a100" if known else "no-such-gpu"), _node("b", OTHER, "a40")),
    )
    config = Config(routing=RoutingConfig(open=is_open, partitions=listed, less_gpu_memory=True))
    case = site.at_site(Case(job=job, snapshot=snapshot, now_seconds=NOW), config)
    named = {one.partition.name for one in case.candidates if one.may_be_named}
    landed = {one.partition.name for one in case.candidates if one.is_submitted_to}
    path.promise(landed == set(asked or (HOME,)), "the job can land wherever it is submitted to")
    wide = asked == (HOME, OTHER) or (not asked and is_open and listed != (HOME,))
    # Slurm tries partitions of a higher tier first whatever their order: one of a lower tier cannot be put before.
    in_order = bool(tier == 1) if not asked else bool(tier >= 1)
    other = wide and tie == "none" and up and known and in_order
    path.promise((OTHER in named) == other, "a partition may be named exactly where user, site and Slurm let it be")
    path.promise(case.may_route == bool(named), "a choice is open where more than one is")


def refuses_what_slurm_would(path: Path) -> None:
    """A partition is open to a job exactly where every limit of it lets the job in; what is unknown counts as a no."""
    limit = path.maybe("job limit", lambda: path.real("minutes", 0.0))
    longest = path.maybe("partition limit", lambda: path.real("longest", 0.0))
    nodes, most, least = (
        path.whole("nodes", 1),
        path.maybe("max nodes", lambda: path.whole("most", 0)),
        path.whole("min", 0),
    )
    memory = path.maybe("memory", lambda: path.real("memory", 0.0))
    max_memory = path.maybe("max memory", lambda: path.real("max memory", 0.0))
    tasks = path.maybe("tasks", lambda: path.whole("tasks", 1))
    cpus = path.choice("max cpus", (None, 0, 2, 8))
    per_task = path.choice("cpus per task", (None, 3))
    job = JobRequest(
        user_id=1000, gpus=(GpuDemand(count=1),), time_limit_minutes=limit, nodes_min=nodes, memory_per_node_mib=memory,
        tasks=tasks, cpus_per_task=per_task, account="physics", qos=None,
    )  # fmt: skip
    home = partition(
        HOME, max_time_minutes=longest, max_nodes=most, min_nodes=least, max_memory_per_node_mib=max_memory,
        max_cpus_per_node=cpus,
    )  # fmt: skip
    snapshot = SimpleNamespace(slurm_gpu_types_by_partition={HOME: ("a100",)})
    why = site.refusal(case_of(job, SymbolComparison(path), snapshot=snapshot), home)
    fits = (
        (longest is None or limit is None or bool(limit <= longest))
        and (most is None or bool(nodes <= most))
        and bool(nodes >= least)
        and (cpus is None or bool((tasks or 1) * (per_task or 1) <= cpus * nodes))
        and (max_memory is None or memory is None or bool(memory <= max_memory))
    )
    path.promise((why is None) == fits, "open exactly where every limit lets the job in")


def refuses_the_closed(path: Path) -> None:
    """A list of accounts, QOS or groups, a closed or reserved partition, or a missing GPU type keeps a job out."""
    user = path.choice("user", (1000, 0))
    account = path.choice("account", (None, "physics", "biology"))
    allowed = path.choice("allowed", ((), ("physics",)))
    denied = path.choice("denied", ((), ("biology",)))
    which = path.choice("list", ("account", "qos", "groups", "flags", "type"))
    changes: dict[str, Any] = {}
    job_changes: dict[str, Any] = {}
    groups = None
    expected = (not allowed or account in allowed) and account not in denied
    if account is None:
        expected = not allowed and not denied
    if which == "account":
        changes, job_changes = {"allow_accounts": allowed, "deny_accounts": denied}, {"account": account}
    elif which == "qos":
        changes, job_changes = {"allow_qos": allowed, "deny_qos": denied}, {"qos": account}
    elif which == "groups":
        changes = {"allow_groups": allowed}
        groups = None if account is None else (account,)
        expected = not allowed or user == 0 or groups == ("physics",)
    elif which == "flags":
        up, root_only, reserved = (path.boolean(name) for name in ("up", "root only", "reserved"))
        reservation = path.choice("reservation", (None, "r"))
        changes = {"up": up, "root_only": root_only, "needs_reservation": reserved}
        job_changes = {"reservation": reservation}
        expected = up and not (root_only and user != 0) and not (reserved and reservation is None)
    else:
        wanted = path.choice("wanted", (None, "a100", "a40"))
        job_changes = {"gpus": (GpuDemand(count=1, slurm_type=wanted),)}
        expected = wanted != "a40"
    job = JobRequest(**cast(Any, {"user_id": user, "gpus": (GpuDemand(count=1),)} | job_changes))
    snapshot = SimpleNamespace(slurm_gpu_types_by_partition={HOME: ("a100",)})
    case = case_of(job, SymbolComparison(path), snapshot=snapshot, user_groups=groups)
    why = site.refusal(case, partition(HOME, **changes))
    path.promise((why is None) == expected, "closed exactly to those that it is closed to")


def finds_room_only_where_it_is(path: Path) -> None:
    """A job has room where enough GPUs are free on nodes that meet its other needs, after all that wait have theirs."""
    wanted, nodes = path.whole("GPUs", 1, 16), path.choice("nodes", (1, 2))
    free = [path.whole(f"free on {name}", 0, 8) for name in "ab"]
    is_counted = path.boolean("others ask too")
    waiting, claimed = (path.whole(name, 0, 8) if is_counted else 0 for name in ("waiting", "claimed"))
    cpus, memory = path.whole("free cpus on a", 0, 64), path.real("free memory on a", 0.0)
    asked_memory = path.real("memory", 0.0)
    kind = path.choice("kind", ("plain", "a100", "a40", "exclusive", "no tasks", "feature", "array"))
    job = JobRequest(
        user_id=1000, gpus=(GpuDemand(count=wanted, slurm_type=kind if kind[0] == "a" and kind != "array" else None),),
        nodes_min=nodes, tasks=None if kind == "no tasks" else nodes, cpus_per_task=None if kind == "no tasks" else 4,
        exclusive=kind == "exclusive", memory_per_node_mib=asked_memory,
        features="ib" if kind == "feature" else None, array="0-3" if kind == "array" else None,
    )  # fmt: skip
    holding = (
        _node("a", HOME, "a100", count=8, allocated=8 - free[0], cpus=64, cpus_allocated=64 - cpus, memory_mib=1e9,
              memory_allocated_mib=1e9 - memory, features=("ib",)),
        _node("b", HOME, "a100", count=8, allocated=8 - free[1], cpus=64, memory_mib=None),
    )  # fmt: skip
    up = path.boolean("up")
    home = partition(HOME, up=up)
    snapshot = ClusterSnapshot(cluster=ClusterName("c"), taken_at_seconds=NOW, partitions=(home,), nodes=holding)
    snapshot.__dict__["waiting_gpus_by_partition"] = {HOME: waiting} if is_counted else {}
    claims = {HOME: claimed} if is_counted else {}
    case = case_of(job, SymbolComparison(path), snapshot=snapshot, claimed_gpus=claims)
    found = site.has_idle_room(case, home)
    if job.array is not None or not up:
        path.promise(not found, "no room for an array, and none in a partition that is down")
        return
    needed = -(-(job.tasks or 1) * (job.cpus_per_task or 1) // nodes)
    a_serves = bool(free[0] >= 1) and bool(cpus >= needed) and bool(memory >= asked_memory)
    a_serves = a_serves and not (job.exclusive and bool(cpus < 64))
    if job.gpu_types == {"a40"}:
        path.promise(not found, "no room on another type")
        return
    b_serves = bool(free[1] >= 1) and job.features is None
    usable = [gpus for gpus, serves in zip(free, (a_serves, b_serves), strict=True) if serves]
    large = sum(bool(gpus * nodes >= wanted) for gpus in usable)
    enough = bool(sum(usable) >= wanted + waiting + claimed) and large >= nodes
    enough = enough and bool(free[0] + free[1] >= wanted + waiting + claimed)
    path.promise(found == enough, "room exactly where the GPUs are")


def lands_where_it_is_named_and_submitted(path: Path) -> None:
    """Clocks are chosen for every partition in which a job can start: those named, then its own."""
    both = (
        candidate(HOME, None, may_be_named=path.boolean("home open"), has_idle_room=path.boolean("home idle")),
        candidate(OTHER, None, is_submitted_to=path.boolean("other submitted")),
    )
    named = path.choice("named", (None, (OTHER,), (HOME,)))
    landing = [one.partition.name for one in landing_on(both, named)]
    own = [one.partition.name for one in both if one.is_submitted_to]
    expected = own if named is None else [*named, *(name for name in own if name not in named)]
    path.promise(landing == expected, "named ones first, then those it was submitted to")
    tried = [one.partition.name for one in first_tried(both, named)]
    path.promise(tried == (own if named is None else list(named)), "named ones alone are tried first")
    known = tuple(replace(one, gpu_types=(A40,)) for one in both)
    free = [one.partition.name for one in with_room(known)]
    path.promise((HOME in free) == (both[0].may_be_named and both[0].has_idle_room), "room in open, free ones alone")
    path.promise(not with_room(both), "and in none of unknown GPUs")


def names_open_partitions_with_room(path: Path) -> None:
    """No partition that the job may not be sent to; a proposal of open, free and fast ones is not changed."""
    found = {
        HOME: candidate(HOME, A100, may_be_named=path.boolean("home open"), has_idle_room=path.boolean("home idle")),
        OTHER: candidate(
            OTHER,
            A40 if path.boolean("known types") else None,
            may_be_named=path.boolean("other open"),
            has_idle_room=path.boolean("other idle"),
        ),
    }
    proposed = path.choice("proposed", (None, (HOME,), (OTHER,), (OTHER, HOME), (GHOST,), (HOME, GHOST)))
    comparison = SymbolComparison(path, known=path.boolean("compared"))
    bound, limit, upper = path.real("bound", 0.0, 2.0), path.real("limit minutes", 1.0), 3600.0
    may_route = path.boolean("may route")
    runtime = RuntimeEstimate(seconds=0.0, upper_seconds=upper, source="history", gpu_type=A100)
    job = job_of(time_limit_minutes=limit)
    case = case_of(
        job, comparison, runtime=runtime, max_slowdown=bound, candidates=tuple(found.values()), may_route=may_route
    )
    guard = GuardConfig()
    verdict = guard_partitions.allowed_partitions(proposed, case, guard)
    if proposed is None:
        path.promise(verdict.partitions is None and not verdict.reasons, "no proposal leaves the job where it is")
        return
    path.promise(verdict.partitions in (None, proposed), "the proposal or nothing")
    path.promise((verdict.partitions is None) == bool(verdict.reasons), "a refusal has a reason, and no other answer")
    open_ones = may_route and all(name in found and found[name].may_be_named for name in proposed)
    if not open_ones:
        path.promise(verdict.reasons == (Reason.PARTITION_NOT_ALLOWED,), "a partition that is not open is refused")
        return
    if not all(found[name].has_idle_room for name in proposed):
        path.promise(verdict.reasons == (Reason.NO_IDLE_PARTITION,), "a partition without room is refused")
        return
    if not all(found[name].gpu_types for name in proposed):
        path.promise(verdict.reasons == (Reason.UNKNOWN_GPU_TYPE,), "a partition of unknown GPUs is refused")
        return
    is_slow = False
    for name in proposed:
        gpu_type = found[name].gpu_types[0]
        longer = _longer_than_at_home(comparison, gpu_type, list(found.values()))
        here: Any = 1.0
        if gpu_type == A40 and comparison.known:
            cost = cast(RelativeCost, comparison.cost(A40, A100))
            here = cost.worst_time_ratio
            here = here if cost.source == "runs of this name" or here >= 1.0 else 1.0
        elif gpu_type == A40:
            here = 1.0  # nothing is known of it: history counts as it is
        is_slow = (
            is_slow or bool(longer > 1.0 + bound) or bool(upper * here > 60.0 * limit * (1.0 - guard.time_limit_margin))
        )
    path.promise((verdict.partitions is None) == is_slow, "slow ones are refused, and no others")


def _longer_than_at_home(comparison: SymbolComparison, gpu_type: GpuTypeName, found: Sequence[Candidate]) -> Any:
    """Return how much longer than where Slurm starts the job work takes, at its worst; infinite where it is unknown.

    Where Slurm would make it wait, it is beside the fastest type with room.
    """
    home = next((one for one in found if one.is_submitted_to and one.has_idle_room), None)
    rivals = [one for one in found if one.may_be_named and one.has_idle_room and one.gpu_types]
    if home is not None:
        types = home.gpu_types
    elif len(rivals) < 2:
        types = tuple(name for one in rivals for name in one.gpu_types)
    elif comparison.known:
        is_a100_fastest = cast(RelativeCost, comparison.cost(A40, A100)).time_ratio >= 1.0
        types = (A100 if is_a100_fastest else A40,)
    else:
        types = ()
    cost = comparison.cost(gpu_type, types[0]) if types else None
    if cost is None:
        return inf
    worst = cost.worst_time_ratio
    return worst if worst > 1.0 else 1.0


def adds_a_hint_only_where_slurm_would_take_it(path: Path) -> None:
    """A node feature is no more than a hint: never in place of the user's own words, never one that stops the job."""
    proposed = path.choice("proposed", (None, "fast"))
    job = job_of(
        features=path.choice("features", (None, "ib")),
        prefer=path.choice("prefer", (None, "slow")),
        reservation=path.choice("reservation", (None, "maintenance")),
        nodes_min=path.whole("nodes", 1, 2),
        tasks=path.maybe("tasks", lambda: path.whole("tasks", 1, 64)),
        cpus_per_task=path.choice("cpus per task", (None, 2)),
        memory_per_node_mib=path.real("memory", 0.0, 1e6),
    )
    cpus, gpus = path.whole("node cpus", 0, 128), path.whole("gpus", 0, 8)
    memory = path.maybe("known memory", lambda: path.real("node memory", 1.0, 1e6))
    has, available = path.boolean("has the feature"), path.boolean("available")
    node = SimpleNamespace(
        available=available, cpus=cpus, memory_mib=memory, gpu_count=gpus,
        gpus=(SimpleNamespace(slurm_type="a100", count=gpus),), features=("fast",) if has else (),
    )  # fmt: skip
    opened = path.boolean("opened")
    snapshot = SimpleNamespace(nodes_by_partition={HOME: (node,)})
    case = case_of(job, SymbolComparison(path), snapshot=snapshot)
    routing = RoutingConfig(node_hints=opened)
    verdict = guard_partitions.allowed_hint(proposed, case, [candidate(OTHER, A40), candidate(HOME, A100)], routing)
    own_words = job.features is not None or job.prefer is not None or job.reservation is not None
    could = proposed is not None and opened and not own_words and has and available
    could = could and bool(job.nodes_min <= 1) and bool(cpus >= (job.tasks or 1) * (job.cpus_per_task or 1))
    could = could and bool(gpus >= 1) and bool((memory or 0.0) >= cast(float, job.memory_per_node_mib))
    path.promise(verdict.prefer == (proposed if could else None), "a hint exactly where the node could run the job")
    path.promise(bool(verdict.notes) == (proposed is not None and not could), "and a note where it is left out")


def counts_the_nodes_that_a_hint_needs(path: Path) -> None:
    """A job of several nodes is hinted at a feature where enough nodes have it, each large enough for its share."""
    nodes, share_gpus = path.choice("nodes", (1, 2)), path.choice("GPUs", (1, 4))
    asked = path.maybe("memory", lambda: path.real("memory asked", 1.0, 1e6))
    cpus = [path.whole(f"cpus of {name}", 0, 128) for name in "ab"]
    gpus = [path.whole("gpus of a", 0, 4), 2]
    mib = [path.real("memory of a", 1.0, 1e6), path.choice("memory of b", (5e5, None))]
    is_mixed = path.boolean("a second type, which no node has")
    demands = (GpuDemand(count=share_gpus), *((GpuDemand(count=1, slurm_type="a40"),) if is_mixed else ()))
    job = job_of(nodes_min=nodes, gpus=demands, tasks=nodes, cpus_per_task=4, memory_per_node_mib=asked)
    pool = tuple(
        SimpleNamespace(
            available=True, cpus=cpus[one], memory_mib=mib[one], gpu_count=gpus[one],
            gpus=(SimpleNamespace(slurm_type="a100", count=gpus[one]),), features=("fast",),
        )
        for one in (0, 1)
    )  # fmt: skip
    case = case_of(job, SymbolComparison(path), snapshot=SimpleNamespace(nodes_by_partition={HOME: pool}))
    found = guard_partitions.allowed_hint("fast", case, [candidate(HOME, A100)], RoutingConfig(node_hints=True))
    # Without its own memory a job may be given that of the largest node; a node of unknown memory may be that.
    largest: Any = inf if mib[1] is None else max(cast(float, mib[0]), mib[1])
    least: Any = largest if asked is None else asked
    able = [
        one
        for one in (0, 1)
        if not is_mixed
        and bool(cpus[one] >= 4)
        and bool(gpus[one] * nodes >= share_gpus)
        and least != inf
        and bool((mib[one] or 0.0) >= least)
    ]
    path.promise((found.prefer is not None) == (len(able) >= nodes), "a hint exactly where enough nodes hold it")


def finds_the_fastest_rival(path: Path) -> None:
    """The fastest type is the one that needs least time in the mean; others are held against each at their worst."""
    known = path.boolean("compared")
    comparison = cast(Any, SymbolComparison(path, known=known))
    order = path.choice("order", ((A100, A40), (A40, A100)))
    found = rivals_of([candidate(HOME, order[0]), candidate(OTHER, order[1])], comparison)
    path.promise((found is None) == (not known), "none where two cannot be compared")
    if found is None:
        return
    cost = comparison.cost(A40, A100)
    fastest, slower = (A40, A100) if cost.time_ratio < 1.0 else (A100, A40)
    path.promise(found.fastest == fastest, "the one of the least mean time")
    path.promise(found.types == order, "among all")
    path.promise(time_ratio(fastest, found, comparison) == 1.0, "the fastest takes as long as itself")
    longer = time_ratio(slower, found, comparison)
    worst: Any = comparison.costs[slower, fastest].worst_time_ratio
    path.promise(longer is not None and longer == (worst if worst > 1.0 else 1.0), "the slower as long as at its worst")
    unknown = cast(Any, SymbolComparison(path, known=False))
    path.promise(time_ratio(slower, found, unknown) is None, "nothing is said of what cannot be compared")
    path.promise(rivals_of([], comparison) is None, "nor of none")


def _node(name: str, where: Any, gpu: str, **changes: Any) -> NodeState:
    gpus = NodeGpus(slurm_type=gpu, count=changes.pop("count", 4), allocated=changes.pop("allocated", 0))
    given = {
        "name": NodeName(name), "partitions": (where,), "states": ("IDLE",), "available": True, "cpus": 64,
        "cpus_allocated": 0, "gpus": (gpus,),
    }  # fmt: skip
    return NodeState(**cast(Any, given | changes))


MASK_PROMISES: Mapping[str, Callable[[Path], None]] = {
    "partitions of the user's list": opens_only_what_the_user_may_use,
    "limits of a partition": refuses_what_slurm_would,
    "closed partitions": refuses_the_closed,
    "room": finds_room_only_where_it_is,
    "landing": lands_where_it_is_named_and_submitted,
    "open partitions with room": names_open_partitions_with_room,
    "node hint": adds_a_hint_only_where_slurm_would_take_it,
    "nodes of a hint": counts_the_nodes_that_a_hint_needs,
    "fastest rival": finds_the_fastest_rival,
}
