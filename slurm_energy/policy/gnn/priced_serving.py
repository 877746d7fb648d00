"""A network of prices as a policy of the daemon: the least cost of all that an option takes, at its prices."""

from collections.abc import Iterator, Mapping
from itertools import islice
from math import isfinite, nan

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.job_features import QueueFacts
from slurm_energy.policy.base import Case
from slurm_energy.policy.gnn.network import HierarchicalNetwork
from slurm_energy.policy.gnn.priced_answers import Look, PricedAnswers
from slurm_energy.policy.gnn.pricing import NetworkPrices
from slurm_energy.policy.site.candidates import catalogue_name
from slurm_energy.policy.submission.places import busy_watts

_MEAN_OF = 2_000
"""Jobs of which a mean is taken: the work must not grow with the queue."""


class ServedPrices(NetworkPrices):
    """Prices on the graph of a site, brought to a snapshot in short steps; prices in between are from before."""

    def __init__(
        self, network: HierarchicalNetwork, graph: ClusterGraph, configured: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(network, graph)
        self._configured = configured or {}
        self.look: Look | None = None
        """None before the first snapshot."""

    def steps(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Bring graph, embeddings and prices to a snapshot.

        Raises:
            PolicyError: what the network makes of it is not finite.
        """
        yield from self._chooser.follow(snapshot)
        self.follow(snapshot)  # the graph is there already: what is left is the state's part of the prices
        shown = self._chooser.shown
        self.look = Look(
            prices=self.published,
            # Of a job that is only being submitted no other facts are asked for, and there are many of them.
            shown=shown._replace(facts=QueueFacts(user_shares=shown.facts.user_shares)),
            mean_joules=_mean_joules(self.graph, snapshot, self._configured),
        )


class PricedPolicy:
    """The graph network of prices: partition and clock of the least cost, each part of it at a price of the moment.

    Energy is paid as it is; slowdown, time, waking and the GPUs of a full partition at the prices of the job's mode
    times the network's factors. Deterministic. `warm_up_steps` brings it to a snapshot; `decide` answers from the last
    one it was brought to, and brings itself to the given one only if there was none before.
    """

    name = "gnn"

    def __init__(
        self,
        network: HierarchicalNetwork,
        graph: ClusterGraph,
        *,
        version: str,
        default_mode: EnergyMode = EnergyMode.BALANCED,
        configured: Mapping[str, str] | None = None,
    ) -> None:
        self.version = version
        self._default_mode = default_mode
        self._configured = configured or {}
        self._prices = ServedPrices(network, graph, self._configured)

    def warm_up_steps(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Bring graph, embeddings and prices to a snapshot in short steps; answers in between are from before."""
        yield from self._prices.steps(snapshot)

    def warm_up(self, snapshot: ClusterSnapshot) -> None:
        """Bring graph, embeddings and prices to a snapshot."""
        for _ in self._prices.steps(snapshot):
            pass

    def decide(self, case: Case) -> PolicyAnswer:
        """Return the partition of the least cost, a clock for each GPU type there, and what it costs.

        Raises:
            PolicyError: the network's prices are not finite.
        """
        answers = self.detached()
        if answers is None:
            self.warm_up(case.snapshot)
            answers = self.detached()
        assert answers is not None  # it has just been brought to one
        return answers.decide(case)

    def detached(self) -> PricedAnswers | None:
        """Return what answers as this does now, without torch and in any process; None before the first snapshot."""
        look = self._prices.look
        if look is None:
            return None
        return PricedAnswers(
            version=self.version, default_mode=self._default_mode, look=look, configured=self._configured
        )


def _mean_joules(graph: ClusterGraph, snapshot: ClusterSnapshot, configured: Mapping[str, str]) -> float:
    """Return the mean energy of the jobs: their GPUs as long as they are expected to run, at what their types draw."""
    watts = dict[PartitionName, float]()
    for place, _ in snapshot.gpu_places:
        name = catalogue_name(place.slurm_type, configured)
        if name is not None:
            watts.setdefault(place.partition, busy_watts(name))
    work = [
        figures.gpus * figures.estimate_seconds * watts[job.partitions[0]]
        for job, figures in ((entry.job, entry.figures) for entry in islice(graph.jobs.entries.values(), _MEAN_OF))
        if figures.gpus > 0 and isfinite(figures.estimate_seconds) and job.partitions and job.partitions[0] in watts
    ]
    return sum(work) / len(work) if work else nan
