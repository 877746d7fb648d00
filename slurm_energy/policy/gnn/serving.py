"""Networks at work: from a checkpoint's folder to a chooser, a source of prices, or the daemon's policy of prices."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import isfinite, nan
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import PolicyError
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.job_features import QueueFacts
from slurm_energy.policy.base import Case
from slurm_energy.policy.checkpoint_files import CheckpointMetadata
from slurm_energy.policy.gnn.checkpoint import load_into, read_checkpoint
from slurm_energy.policy.gnn.chooser import NetworkChooser
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.priced_answers import Look, PricedAnswers, PublishedPrices
from slurm_energy.policy.site.candidates import catalogue_name
from slurm_energy.policy.submission.places import busy_watts

_Array = NDArray[np.float32]

_MEAN_OF = 2_000
"""Jobs of which a mean is taken: the work must not grow with the queue."""


def load_network(folder: Path, sampling_rate: float | None = None) -> tuple[HierarchicalNetwork, CheckpointMetadata]:
    """Return the network of a checkpoint, and what the checkpoint says of itself.

    Args:
        folder: Of the checkpoint.
        sampling_rate: Share of the nodes to work out, whatever the checkpoint says; None leaves it to that. Weights do
            not depend on it.

    Raises:
        CheckpointError: it cannot be used.
        ConfigError: the sampling rate is out of its bounds.
    """
    checkpoint = read_checkpoint(folder)
    config: NetworkConfig = checkpoint.metadata.architecture
    if sampling_rate is not None:
        config = replace(config, sampling="sampled", sampling_rate=sampling_rate)
    network = create_network(config, seed=0)
    load_into(network, checkpoint)
    return network.eval(), checkpoint.metadata


def use_threads(threads: int) -> None:
    """Let torch use so many CPU threads in this process; runs side by side are best off with one each."""
    torch.set_num_threads(threads)


class NetworkPrices:
    """Follows one cluster and gives the raw prices of jobs; the arithmetic of a job is `PublishedPrices`."""

    def __init__(self, network: HierarchicalNetwork, graph: ClusterGraph | None = None) -> None:
        """Set a network to work.

        Raises:
            PolicyError: it has no prices.
        """
        head = network.prices
        if head is None:
            raise PolicyError('the network chooses among options and has no prices: its setting policy is not "prices"')
        self._chooser = NetworkChooser(network, graph or ClusterGraph())
        self._head = head
        with torch.no_grad():  # columns of jobs as they are, where the head takes them from what is usual
            job = head.job.weight / head.usual_job.spread
            self._usual_job = job @ head.usual_job.mean
        between, between_bias = _weights(head.between)
        last, last_bias = _weights(head.last)
        self.published = PublishedPrices(
            state=np.zeros(head.hidden, dtype=np.float32),
            device_raw=np.zeros(0, dtype=np.float32),
            job=job.numpy().copy(),
            between=between,
            between_bias=between_bias,
            last=last,
            last_bias=last_bias,
        )
        """Of the state last looked at."""
        self.look: Look | None = None
        """None before the first snapshot."""

    @property
    def graph(self) -> ClusterGraph:
        """The cluster as the network sees it."""
        return self._chooser.graph

    def follow(self, snapshot: ClusterSnapshot) -> None:
        """Look at the cluster.

        Raises:
            PolicyError: what the network makes of it is not finite.
        """
        self._chooser.follow_at_once(snapshot)
        self.look = self._look_at(snapshot)

    def _look_at(self, snapshot: ClusterSnapshot) -> Look:  # noqa: ARG002  # for those that say more of it
        """Return the prices of the state that the graph was brought to."""
        published, moments = self._chooser.state()
        with torch.inference_mode():
            context = self._head.context(published, moments)
        self.published = self.published._replace(
            state=(context.job[0] - self._usual_job).numpy().copy(), device_raw=context.devices.numpy().copy()
        )
        if not self.published.is_finite:
            raise PolicyError("the network's prices are not finite")
        known, graph = self._chooser.cluster_facts, self._chooser.graph
        return Look(self.published, known._replace(partition_index=graph.partition_index, facts=graph.facts))


def _weights(layer: torch.nn.Linear) -> tuple[_Array, _Array]:
    weight = layer.weight.detach().numpy().copy()
    return weight, np.zeros(len(weight), dtype=np.float32) if layer.bias is None else layer.bias.detach().numpy().copy()


class ServedPrices(NetworkPrices):
    """Prices with what the jobs of a site take in the mean; brought to a snapshot in short steps, or at once."""

    def __init__(
        self,
        network: HierarchicalNetwork,
        graph: ClusterGraph | None = None,
        configured: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(network, graph)
        self._configured = configured or {}

    def steps(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Bring graph, embeddings and prices to a snapshot; prices in between are from before.

        Raises:
            PolicyError: what the network makes of it is not finite.
        """
        yield from self._chooser.follow(snapshot)
        self.look = self._look_at(snapshot)

    def _look_at(self, snapshot: ClusterSnapshot) -> Look:
        """Return the prices, with the mean energy of the jobs that wait or run."""
        super()._look_at(snapshot)
        known = self._chooser.cluster_facts
        return Look(
            prices=self.published,
            # Of a job that is only being submitted no other facts are asked for, and there are many of them.
            cluster_facts=known._replace(facts=QueueFacts(user_shares=known.facts.user_shares)),
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
