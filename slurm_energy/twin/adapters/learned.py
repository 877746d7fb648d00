"""A network that chooses where and how wide a job starts, and at which clock, in the twin.

The daemon's form of it is asked at submission (`twin/served.py` puts it into the twin as it is). Here it is asked when
the job could start, with every place and device count that has room: the form in which it learns.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.ids import PartitionName
from slurm_energy.errors import PolicyError
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.job_features import JobWishes, submitted_vector
from slurm_energy.graph.options import RunOption
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule
from slurm_energy.policy.prices import BALANCED_WEIGHTS
from slurm_energy.policy.rules.tables import Prepared
from slurm_energy.twin.adapters.run_options import PlacedOption, RunOptionCosts, placed_options
from slurm_energy.twin.adapters.served import job_request
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.snapshot.source import SnapshotSource

_FIRST_SECOND = 1.0


class Chosen(Protocol):
    """A choice among options."""

    @property
    def option(self) -> int:
        """Index of the option."""
        ...

    @property
    def clock(self) -> int | None:
        """Index among its clocks, None where it has none."""
        ...


class NetworkOnCluster(Protocol):
    """A network that follows one cluster."""

    @property
    def graph(self) -> ClusterGraph:
        """The cluster as it sees it."""
        ...

    def follow_at_once(self, snapshot: ClusterSnapshot) -> None:
        """Bring its state to a snapshot."""
        ...

    def choose(self, job_x: Floats, options: Sequence[RunOption]) -> Chosen | None:
        """Return what it would do; None when no option is open."""
        ...


class LearnedRule(PlacementRule):
    """Asks a network at every start; clocks are the exact oracle's unless the network is to choose them too."""

    def __init__(
        self,
        create: Callable[[], NetworkOnCluster],
        *,
        version: str,
        learned_clocks: bool = False,
        weights: tuple[float, float] = BALANCED_WEIGHTS,
    ) -> None:
        """Take a network.

        Args:
            create: Makes it, once for each run.
            version: Of the network.
            learned_clocks: Whether it chooses clocks.
            weights: w_time and w_energy of every job.
        """
        self.name = "gnn"
        self.version = version
        self._create = create
        self._learned_clocks = learned_clocks
        self._weights = weights
        self._chooser: NetworkOnCluster | None = None
        self._situation = Situation()

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Start with an empty graph."""
        self._chooser = self._create()
        self._situation = Situation()

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the network's choice."""
        chooser = self._chooser
        if chooser is None:
            raise PolicyError("the rule was asked before its run began")
        chooser.follow_at_once(self._situation.snapshot(job, view))
        options = self._situation.options(job, view, chooser.graph, with_clocks=self._learned_clocks)
        vector = self._situation.job_vector(job, view, chooser.graph, self._weights)
        chosen = chooser.choose(vector, [one.option for one in options])
        if chosen is None:
            return None
        option = options[chosen.option]
        clock = option.oracle_clock
        if self._learned_clocks and chosen.clock is not None:
            clock = option.clocks[chosen.clock]
        return Placement(option.place, option.gpus, clock)


class Situation:
    """The twin at a start, as a network needs it: snapshot, the job's vertex, its options."""

    def __init__(self) -> None:
        self._source = SnapshotSource()
        self._costs = Prepared(RunOptionCosts.of)

    def snapshot(self, job: WaitingJob, view: ClusterView) -> ClusterSnapshot:
        """Return the cluster as the daemon would see it, without the job that is asked about."""
        return self._source.snapshot(_twin(view), view.now_seconds + _FIRST_SECOND, without=job.job_id)

    def options(
        self, job: WaitingJob, view: ClusterView, graph: ClusterGraph, *, with_clocks: bool
    ) -> list[PlacedOption]:
        """Return every way of starting the job now."""
        partitions = [graph.partition_index[PartitionName(place.partition)] for place in view.places]
        costs = self._costs.of(view.options(job))
        return placed_options(job, _twin(view), costs, partitions, with_clocks=with_clocks)

    def job_vector(
        self,
        job: WaitingJob,
        view: ClusterView,
        graph: ClusterGraph,
        weights: tuple[float, float] = BALANCED_WEIGHTS,
    ) -> Floats:
        """Return the job as the vertex that a decision is asked for, [TASK].

        Args:
            job: The job.
            view: The cluster.
            graph: The cluster as the network sees it.
            weights: Its w_time and w_energy.
        """
        assert isinstance(job, Job)
        seconds = view.options(job).seconds_per_unit
        fastest = float(seconds.min())
        expected = job.estimated_units * fastest
        return submitted_vector(
            job_request(job),
            view.now_seconds + _FIRST_SECOND,
            graph.facts,
            runtime=RuntimeEstimate(seconds=expected, upper_seconds=expected, source="history"),
            wishes=JobWishes(max_slowdown=job.max_slowdown, time_weight=weights[0], energy_weight=weights[1]),
            kind=job.kind,
        )


def _twin(view: ClusterView) -> TwinView:
    if not isinstance(view, TwinView):
        raise PolicyError("a network is asked in the twin only")
    return view
