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

_Array = NDArray[np.float32]


class NetworkPrices:
    """Follows one cluster and gives the raw prices of jobs; the arithmetic of a job is done without torch."""

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
        self._job = _weights(head.job)[0]
        self._between, self._between_bias = _weights(head.between)
        self._last, self._last_bias = _weights(head.last)
        self._state: _Array = np.zeros(head.hidden, dtype=np.float32)
        self.device_raw: _Array = np.zeros(0, dtype=np.float32)
        """Raw price of devices by partition."""

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
        self._state, self.device_raw = context.job[0].numpy(), context.devices.numpy()
        if not (np.isfinite(self._state).all() and np.isfinite(self.device_raw).all()):
            raise PolicyError("the network's prices are not finite")

    def job_raw(self, job_x: Floats) -> _Array:
        """Return the raw prices of a job at the state last looked at, [prices]."""
        first = np.maximum(self._state + self._job @ job_x, 0.0)
        second = np.maximum(self._between @ first + self._between_bias, 0.0)
        raw: _Array = self._last @ second + self._last_bias
        return raw


def _weights(layer: torch.nn.Linear) -> tuple[_Array, _Array]:
    weight = layer.weight.detach().numpy().copy()
    return weight, np.zeros(len(weight), dtype=np.float32) if layer.bias is None else layer.bias.detach().numpy().copy()
