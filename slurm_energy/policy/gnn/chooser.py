"""A network at work on one cluster: follows its state, and chooses among the ways of running a job."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import torch

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.errors import PolicyError
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import RunOption, decision_block, together
from slurm_energy.graph.partitions import Changes, ClusterFacts
from slurm_energy.policy.gnn.cache import keeper_of
from slurm_energy.policy.gnn.decision_level import Decisions
from slurm_energy.policy.gnn.embeddings import BatchIndex, Published, batch_index
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
        self.cluster_facts = ClusterFacts({}, graph.facts, graph.members.sums(graph.nodes.store))
        """What belongs to the published state; the graph may be ahead of it, and have renumbered its partitions."""
        self._facts_for: Published | None = None
        self._updating: Generator[None, None, Changes] | None = None
        self._snapshot: ClusterSnapshot | None = None
        self._published: Published | None = None
        self._moments: BatchIndex | None = None

    @property
    def snapshot(self) -> ClusterSnapshot | None:
        """The snapshot that the graph shows."""
        return self._snapshot

    @property
    def is_updating(self) -> bool:
        """Whether graph and embeddings are between two snapshots."""
        return self._updating is not None or self.keeper.is_stale

    def follow(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Bring graph and embeddings to a snapshot in short steps; answers in between are from the state before.

        Steps that were broken off are taken up by the next call, whatever snapshot it has.
        """
        yield from self._update()
        if snapshot is not self._snapshot:
            self._snapshot, self._updating = snapshot, self.graph.update_steps(snapshot)
            yield from self._update()
        for _ in self.keeper.steps():
            self._remember()
            yield
        self._remember()

    def _update(self) -> Iterator[None]:
        """Bring an update of the graph to its end."""
        while self._updating is not None:
            try:
                next(self._updating)
            except StopIteration as end:
                self._updating = None
                self.keeper.note(end.value)
            yield

    def _remember(self) -> None:
        """Keep what belongs to the state that has just been published."""
        graph = self.graph
        if self.keeper.published is not self._facts_for:
            self._facts_for = self.keeper.published
            self.cluster_facts = ClusterFacts(graph.partition_index, graph.facts, graph.members.sums(graph.nodes.store))

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
            decisions = self.network.decide(published, moments, decision_block(job_x, ordered), critics=False)
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

    def state(self) -> tuple[Published, BatchIndex]:
        """Return what decisions are made from.

        Raises:
            PolicyError: nothing has been published yet.
        """
        published = self.keeper.published
        if published is None:
            raise PolicyError("the network has no state of the cluster yet")
        if published is not self._published or self._moments is None:
            self._published, self._moments = published, batch_index(published)
        return published, self._moments


def _likeliest_clock(log_prob: torch.Tensor, options: Sequence[RunOption], option: int) -> int | None:
    """Return the likeliest open clock of an option."""
    first = sum(len(one.clocks) for one in options[:option])
    own = log_prob[first : first + len(options[option].clocks)]
    if not len(own) or not bool(torch.isfinite(own).any()):
        return None
    return int(own.argmax())
