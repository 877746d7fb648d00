"""A network at work on one cluster: follows its state, and chooses among the ways of running a job."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.ids import PartitionName
from slurm_energy.errors import PolicyError
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import RunOption, decision_block, together
from slurm_energy.policy.gnn.decision_level import Decisions
from slurm_energy.policy.gnn.keepers import keeper_of
from slurm_energy.policy.gnn.levels import Published
from slurm_energy.policy.gnn.moments import Moments, moments_of
from slurm_energy.policy.gnn.network import HierarchicalNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the network would do with a job."""

    option: int
    """Index of the likeliest open option."""
    clock: int | None
    """Index of the likeliest open clock among that option's; None where it has none."""
    probabilities: tuple[float, ...]
    """Of each option."""
    decisions: Decisions
    """Everything else, for explanations and learning."""


class NetworkChooser:
    """Holds graph and embeddings of one cluster; not a policy yet: it does not know what a guard allows.

    Raises:
        PolicyError: from `choose`, when no state has been published or the network's answer is not finite.
    """

    def __init__(self, network: HierarchicalNetwork, graph: ClusterGraph) -> None:
        self.graph = graph
        self.network = network.eval()
        self.keeper = keeper_of(network, graph)
        self.partition_index: Mapping[PartitionName, int] = {}
        """Numbers of the partitions in what is published; the graph may be ahead of it and number them anew."""
        self._numbered: Published | None = None
        self._snapshot: ClusterSnapshot | None = None
        self._published: Published | None = None
        self._moments: Moments | None = None

    @property
    def snapshot(self) -> ClusterSnapshot | None:
        """The snapshot that the graph shows."""
        return self._snapshot

    def follow(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Bring graph and embeddings to a snapshot in short steps; answers in between are from the state before."""
        if snapshot is not self._snapshot:
            self.keeper.note(self.graph.update(snapshot))
            self._snapshot = snapshot
            yield
        for _ in self.keeper.steps():
            self._remember_numbers()
            yield
        self._remember_numbers()

    def _remember_numbers(self) -> None:
        """Keep the numbers of the partitions that belong to what has just been published."""
        if self.keeper.published is not self._numbered:
            self._numbered, self.partition_index = self.keeper.published, self.graph.partition_index

    def follow_at_once(self, snapshot: ClusterSnapshot) -> None:
        """Bring graph and embeddings to a snapshot."""
        for _ in self.follow(snapshot):
            pass

    def choose(self, job_x: Floats, options: Sequence[RunOption]) -> Choice | None:
        """Return the choice among some options; None when none is open.

        Args:
            job_x: The job as a vertex, [TASK].
            options: Ways of running it.
        """
        if not any(option.open for option in options):
            return None
        published, moments = self.state()
        ordered = together(options)
        with torch.inference_mode():
            decisions = self.network.decide(published, moments, decision_block(job_x, ordered))
            log_prob = decisions.options.log_prob
            if bool(torch.isnan(log_prob).any()) or not bool(torch.isfinite(log_prob).any()):
                raise PolicyError("the network's answer is not finite")
            place = int(log_prob.argmax())
            rows = {id(option): row for row, option in enumerate(ordered)}
            probability = log_prob.exp().tolist()
            return Choice(
                option=next(index for index, option in enumerate(options) if option is ordered[place]),
                clock=_likeliest_clock(decisions.clock_log_prob, ordered, place),
                probabilities=tuple(probability[rows[id(option)]] for option in options),
                decisions=decisions,
            )

    def state(self) -> tuple[Published, Moments]:
        """Return what decisions are made from.

        Raises:
            PolicyError: nothing has been published yet.
        """
        published = self.keeper.published
        if published is None:
            raise PolicyError("the network has no state of the cluster yet")
        if published is not self._published or self._moments is None:
            self._published, self._moments = published, moments_of(published)
        return published, self._moments


def _likeliest_clock(log_prob: torch.Tensor, options: Sequence[RunOption], option: int) -> int | None:
    """Return the likeliest open clock of an option."""
    first = sum(len(one.clocks) for one in options[:option])
    own = log_prob[first : first + len(options[option].clocks)]
    if not len(own) or not bool(torch.isfinite(own).any()):
        return None
    return int(own.argmax())
