"""Who keeps nodes awake: the power of hosts and free devices, charged to the jobs on each node."""

from collections.abc import Sequence

from slurm_energy.policy.placement import PlaceInfo
from slurm_energy.twin.engine.job import Allocation

_Node = tuple[int, int]
"""Pool and number of the node."""


class _Occupied:
    """One node's jobs and since when they are these."""

    __slots__ = ("gpus", "last_job", "since")

    def __init__(self) -> None:
        self.gpus: dict[int, int] = {}
        self.since = 0.0
        self.last_job = -1


class NodeShares:
    """Charges what a node draws beyond a suspended one to its jobs by their devices.

    The time until it is suspended is charged to the last job that left it. All charges together are what awake nodes
    drew, but for waking.
    """

    def __init__(self, places: Sequence[PlaceInfo]) -> None:
        self._places = places
        self._nodes: dict[_Node, _Occupied] = {}
        self._of_job: dict[int, tuple[int, list[_Node]]] = {}
        self.joules: dict[int, float] = {}
        """By job."""

    def start(self, job_id: int, place: int, pool: int, allocation: Allocation, now: float) -> None:
        """Let a job take its devices."""
        if self._places[place].node_watts <= 0.0:
            return
        nodes = []
        for number, gpus, _ in allocation:
            node = pool, number
            occupied = self._nodes.setdefault(node, _Occupied())
            self._charge(occupied, place, now)
            occupied.gpus[job_id] = gpus
            nodes.append(node)
        self._of_job[job_id] = place, nodes

    def end(self, job_id: int, now: float) -> None:
        """Let a job give its devices back."""
        place, nodes = self._of_job.pop(job_id, (-1, []))
        for node in nodes:
            occupied = self._nodes[node]
            self._charge(occupied, place, now)
            del occupied.gpus[job_id]
            occupied.last_job = job_id

    def close(self, now: float) -> None:
        """Charge everything until the end of the run."""
        for job_id in list(self._of_job):
            self.end(job_id, now)

    def _charge(self, occupied: _Occupied, place: int, now: float) -> None:
        """Charge a node since its last change."""
        info, passed = self._places[place], now - occupied.since
        occupied.since = now
        if occupied.gpus:
            total = sum(occupied.gpus.values())
            for job_id, gpus in occupied.gpus.items():
                self._add(job_id, info.node_watts * passed * gpus / total)
        elif occupied.last_job >= 0:
            self._add(occupied.last_job, info.node_watts * min(passed, info.idle_seconds))
            occupied.last_job = -1

    def _add(self, job_id: int, joules: float) -> None:
        self.joules[job_id] = self.joules.get(job_id, 0.0) + joules
