"""A network at work as a source of prices: the state is looked at now and then, a job costs microseconds."""

import numpy as np
import torch
from numpy.typing import NDArray

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.errors import PolicyError
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.gnn.chooser import NetworkChooser
from slurm_energy.policy.gnn.network import HierarchicalNetwork
from slurm_energy.policy.gnn.published_prices import PublishedPrices

_Array = NDArray[np.float32]


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

    @property
    def device_raw(self) -> _Array:
        """Raw price of devices by partition."""
        return self.published.device_raw

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
        published, moments = self._chooser.state()
        with torch.inference_mode():
            context = self._head.context(published, moments)
        self.published = self.published._replace(
            state=(context.job[0] - self._usual_job).numpy().copy(), device_raw=context.devices.numpy().copy()
        )
        if not self.published.is_finite:
            raise PolicyError("the network's prices are not finite")

    def job_raw(self, job_x: Floats) -> _Array:
        """Return the raw prices of a job at the state last looked at, [prices]."""
        return self.published.job_raw(job_x)


def _weights(layer: torch.nn.Linear) -> tuple[_Array, _Array]:
    weight = layer.weight.detach().numpy().copy()
    return weight, np.zeros(len(weight), dtype=np.float32) if layer.bias is None else layer.bias.detach().numpy().copy()
