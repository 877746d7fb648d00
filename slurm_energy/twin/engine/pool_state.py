"""Which devices of a pool are free: node by node, or as one number where nodes do not matter.

Nodes are kept in buckets by their free devices, so that the best fit is found without walking over nodes.
"""

from collections.abc import Sequence
from math import ceil, inf

from slurm_energy.twin.engine.job import Allocation, Job, JobRun
from slurm_energy.twin.world import Pool, World

AWAKE, SUSPENDED, WAKING, DOWN = range(4)
_ROUNDING = 1.0 + 1e-9


class PoolState:
    """Free devices of one pool."""

    def __init__(self, pool: Pool, *, by_node: bool) -> None:
        self.pool = pool
        self.by_node = by_node
        """False for a pool of one node of which only the number of free devices matters."""
        self.total = pool.nodes * pool.gpus_per_node
        self.free_total = self.total
        """Over nodes that are not down, suspended ones too."""
        self.gpus_per_node = pool.gpus_per_node
        self.runs: dict[int, JobRun] = {}
        """Jobs that hold devices, by id, in the order of their start."""
        if by_node:
            self._set_up_nodes()

    def _set_up_nodes(self) -> None:
        pool = self.pool
        self.power = [AWAKE] * pool.nodes
        self.free = [pool.gpus_per_node] * pool.nodes
        self.broken = [0] * pool.nodes
        """Devices of each node that are down."""
        self.cpus_free = [pool.cpus_per_node] * pool.nodes
        self.memory_free = [pool.memory_gib_per_node] * pool.nodes
        self.runs_on: list[dict[int, JobRun]] = [{} for _ in range(pool.nodes)]
        self.ready_seconds = [0.0] * pool.nodes
        """When a waking node will be awake."""
        self.idle_version = [0] * pool.nodes
        """Grows whenever a node is used: an older suspend timer means nothing."""
        self._shares: dict[int, _Share] = {}
        """CPUs and memory that were taken with an allocation, by the identity of its list: it passes from a job to the
        neighbour that stays on the GPU, whose own request is another."""
        self._awake: list[dict[int, None]] = [{} for _ in range(pool.gpus_per_node + 1)]
        self._awake[pool.gpus_per_node] = dict.fromkeys(range(pool.nodes))
        self._asleep: dict[int, None] = {}

    def room(self, job: Job, limit: int) -> int:
        """Return the largest of the job's device counts up to `limit` that would fit now, 0 for none.

        Every smaller one fits too: it may be the harder one, as it has the job's CPUs and memory on fewer nodes.
        """
        free, counts = self.free_total, job.gpu_counts
        if free < counts[0]:
            return 0
        if not self.by_node:
            if not job.is_plain and job.exclusive and free < self.total:
                return 0
            most = counts[-1]
            if most <= free and most <= limit:
                return most
            free = min(free, limit)
            return max((count for count in counts if count <= free), default=0)
        possible = [count for count in counts if count <= min(free, limit)]
        if job.cpus or job.memory_gib:
            unfit = next(
                (index for index, count in enumerate(possible) if self.find(job, count) is None), len(possible)
            )
            return possible[unfit - 1] if unfit else 0
        return next((count for count in reversed(possible) if self.find(job, count) is not None), 0)

    def find(
        self, job: Job, gpus: int, *, without: frozenset[int] = frozenset(), wish: int | None = None
    ) -> Allocation | None:
        """Return where the job would run with so many devices now, None when it does not fit. Nothing is taken.

        It packs: a part of a node goes where the fewest devices stay free, awake nodes first, whole nodes from nodes
        that are all free; a job that may spread takes the fullest nodes first. Nodes in `without` are left alone. The
        part of a node goes to `wish` where that has room.
        """
        if not self.by_node:
            return [] if self.held(job, gpus) <= self.free_total else None
        if gpus > self.free_total:
            return None
        whole, rest = divmod(gpus, self.gpus_per_node)
        if job.exclusive:
            whole, rest = ceil(gpus / self.gpus_per_node), 0
        share = _Share(job, gpus)
        if job.spread and not job.exclusive:
            return self._spread(gpus, share, without)
        taken = self._whole_nodes(whole, min(gpus, self.gpus_per_node), share, without)
        if taken is None:
            return None
        if job.exclusive:
            return _exclusive(taken, gpus, self.gpus_per_node)
        found: Allocation = [(node, self.gpus_per_node, self.gpus_per_node) for node in taken]
        if rest:
            node = self._part_of_a_node(rest, share, without.union(taken), wish)
            if node is None:
                return None
            found.append((node, rest, rest))
        return found

    def take(self, run: JobRun, allocation: Allocation, gpus: int) -> list[int]:
        """Give devices to a job; return the suspended nodes among them, which must wake."""
        self.runs[run.job_id] = run
        if not self.by_node:
            self.free_total -= self.held(run.job, gpus)
            return []
        self.free_total -= sum(held for _, _, held in allocation)
        share = self._shares[id(allocation)] = _Share(run.job, gpus)
        asleep = []
        for node, used, held in allocation:
            self._move(node, -held)
            self.cpus_free[node] -= share.cpus(used)
            self.memory_free[node] -= share.memory(used)
            self.runs_on[node][run.job_id] = run
            self.idle_version[node] += 1
            if self.power[node] == SUSPENDED:
                asleep.append(node)
        return asleep

    def give_back(self, run: JobRun, gpus: int) -> list[int]:
        """Take devices back from a job; return the nodes that are idle now."""
        del self.runs[run.job_id]
        if not self.by_node:
            self.free_total += self.held(run.job, gpus)
            return []
        self.free_total += sum(held for node, _, held in run.allocation if self.power[node] != DOWN)
        share = self._shares.pop(id(run.allocation))
        idle = []
        for node, used, held in run.allocation:
            self._move(node, held)
            self.cpus_free[node] += share.cpus(used)
            self.memory_free[node] += share.memory(used)
            del self.runs_on[node][run.job_id]
            if not self.runs_on[node]:
                self.memory_free[node] = self.pool.memory_gib_per_node
            if not self.runs_on[node] and self.power[node] == AWAKE:
                self.idle_version[node] += 1
                idle.append(node)
        return idle

    @property
    def suspended_nodes(self) -> int:
        """Nodes that are suspended."""
        return len(self._asleep) if self.by_node else 0

    def held(self, job: Job, gpus: int) -> int:
        """Return how many devices of a pool of one node a job keeps from others: all of them when it is exclusive."""
        return self.total if job.exclusive else gpus

    def set_power(self, node: int, power: int) -> None:
        """Change whether a node is awake, suspended, waking or down; a node that goes down must hold no job."""
        self._leave(node)
        before, self.power[node] = self.power[node], power
        if before != DOWN and power == DOWN:
            self.free_total -= self.free[node]
        if before == DOWN and power != DOWN:
            self.free_total += self.free[node]
        self._enter(node)

    def break_device(self, node: int) -> None:
        """Take a free device of a node out of use."""
        self.broken[node] += 1
        self._move(node, -1)
        self.free_total -= self.power[node] != DOWN

    def repair_device(self, node: int) -> None:
        """Bring a broken device back."""
        self.broken[node] -= 1
        self._move(node, 1)
        self.free_total += self.power[node] != DOWN

    def is_idle(self, node: int) -> bool:
        """Return whether a node is awake and holds no job."""
        return self.power[node] == AWAKE and not self.runs_on[node]

    def sleeping_needed(self, gpus: int) -> int:
        """Return how many suspended nodes the start of a packed job with so many devices would wake."""
        if not self.by_node or not self._asleep:
            return 0
        whole, rest = divmod(gpus, self.gpus_per_node)
        awake = len(self._awake[self.gpus_per_node])
        needed = max(0, whole - awake)
        if rest:
            needed += awake <= whole and not any(self._awake[rest : self.gpus_per_node])
        return min(needed, len(self._asleep))

    def opened_nodes(self, gpus: int) -> int:
        """Return how many nodes without any job the start of a packed job with so many devices would take."""
        if not self.by_node:
            return 0
        whole, rest = divmod(gpus, self.gpus_per_node)
        return whole + (rest > 0 and not any(self._awake[rest : self.gpus_per_node]))

    def _whole_nodes(self, count: int, used: int, share: "_Share", without: frozenset[int]) -> list[int] | None:
        if count == 0:
            return []
        taken = []
        for bucket in (self._awake[self.gpus_per_node], self._asleep):
            for node in bucket:
                whole = self.free[node] == self.gpus_per_node and node not in without
                if whole and self._has(node, used, share):
                    taken.append(node)
                    if len(taken) == count:
                        return taken
        return None

    def _part_of_a_node(self, gpus: int, share: "_Share", without: frozenset[int], wish: int | None) -> int | None:
        if wish is not None and self._may_take(wish, gpus, share, without):
            return wish
        for bucket in self._awake[gpus:]:
            for node in bucket:
                if node not in without and self._has(node, gpus, share):
                    return node
        return next(
            (node for node in self._asleep if node not in without and self._has(node, gpus, share)),
            None,
        )

    def _spread(self, gpus: int, share: "_Share", without: frozenset[int]) -> Allocation | None:
        found: Allocation = []
        left = gpus
        for bucket in (*self._awake[1:], self._asleep):
            for node in bucket:
                part = 0 if node in without else min(left, self.free[node])
                while part and not self._has(node, part, share):
                    part -= 1
                if part:
                    found.append((node, part, part))
                    left -= part
                    if left == 0:
                        return found
        return None

    def _may_take(self, node: int, gpus: int, share: "_Share", without: frozenset[int]) -> bool:
        """Return whether a node that a rule named is there, up and has room."""
        return (
            0 <= node < len(self.free)
            and node not in without
            and self.power[node] != DOWN
            and self._has(node, gpus, share)
        )

    def _has(self, node: int, gpus: int, share: "_Share") -> bool:
        return (
            self.free[node] >= gpus
            and self.memory_free[node] * _ROUNDING >= share.memory(gpus)
            and (self.pool.cpus_per_node == 0 or self.cpus_free[node] >= share.cpus(gpus))
        )

    def _move(self, node: int, devices: int) -> None:
        self._leave(node)
        self.free[node] += devices
        self._enter(node)

    def _leave(self, node: int) -> None:
        if self.power[node] == SUSPENDED:
            self._asleep.pop(node, None)
        elif self.power[node] != DOWN:
            del self._awake[self.free[node]][node]

    def _enter(self, node: int) -> None:
        if self.power[node] == SUSPENDED:
            self._asleep[node] = None
        elif self.power[node] != DOWN:
            self._awake[self.free[node]][node] = None


class _Share:
    """CPUs and memory of a job, spread over its devices."""

    __slots__ = ("_cpus", "_gpus", "_memory")

    def __init__(self, job: Job, gpus: int) -> None:
        self._cpus, self._memory, self._gpus = job.cpus, job.memory_gib, gpus

    def cpus(self, devices: int) -> int:
        return ceil(self._cpus * devices / self._gpus) if self._cpus else 0

    def memory(self, devices: int) -> float:
        return self._memory * devices / self._gpus if self._memory else 0.0


def _exclusive(nodes: Sequence[int], gpus: int, gpus_per_node: int) -> Allocation:
    """Return whole nodes for a job that uses only some of their devices."""
    found: Allocation = []
    left = gpus
    for node in nodes:
        used = min(left, gpus_per_node)
        found.append((node, used, gpus_per_node))
        left -= used
    return found


def needs_nodes(world: World, index: int) -> bool:
    """Return whether nodes of a pool must be distinguished."""
    pool = world.pools[index]
    return (
        pool.nodes > 1
        or pool.suspend is not None
        or pool.jobs_per_gpu > 1
        or pool.cpus_per_node > 0
        or pool.memory_gib_per_node < inf
        or world.failures.node_mtbf_seconds < inf
        or world.failures.gpu_mtbf_seconds < inf
        or any(outage.pool == pool.name for outage in world.outages)
    )
