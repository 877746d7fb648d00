"""The network of options as a policy: where, how wide and how fast a job runs, with what the network looked at.

The paper assigns tasks to devices (section 3.4). Slurm picks nodes and devices itself; what a submission can do is to
prefer a feature of nodes: a hint, no condition.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import fsum, isfinite
from random import Random
from typing import Literal, NamedTuple

import numpy as np
import torch

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import AnswerDetails, PolicyAnswer
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyMode, JobRequest
from slurm_energy.errors import ConfigError
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import Indices
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.automatic import checkpoint_folder
from slurm_energy.policy.base import Case
from slurm_energy.policy.gnn.attention_report import AttentionReport, attention_report
from slurm_energy.policy.gnn.cache import EmbeddingCache
from slurm_energy.policy.gnn.chooser import Choice, NetworkChooser
from slurm_energy.policy.gnn.configuration import Clocks
from slurm_energy.policy.gnn.embeddings import PRESSURE, BatchIndex, TopKind
from slurm_energy.policy.gnn.network import HierarchicalNetwork
from slurm_energy.policy.gnn.serving import PricedPolicy, load_network, use_threads
from slurm_energy.policy.gnn.start_options import PlacedOption, StartReader, job_columns
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule
from slurm_energy.policy.prices import MODE_WEIGHTS, JobWeights, site_weights
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.policy.submission.adapter import SubmissionAdapter

_NODES_TRAINED = "node_agreement"
"""Metric of a checkpoint whose head over nodes was trained; without it a node hint would be a throw of dice."""
_LIKELIEST = 3
"""Partitions whose probability an answer has."""
logger = logging.getLogger(__name__)
MAX_NODES = 256
"""Nodes that are looked at, spread evenly over those with room: the cost must not grow with the partition."""
_DEVICE_OPTION = schema.width(schema.DEVICE_OPTION)
_IS_FREE = schema.column(schema.DEVICE_OPTION, "is_free")
_FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")
"""Names that mean only themselves in `--prefer`; others have its operators, or are too long to be one name."""


class _Look(NamedTuple):
    """What the network said of one question."""

    options: Sequence[PlacedOption]
    partitions: tuple[PartitionName, ...]
    """Of each option."""
    choice: Choice


class GnnPolicy(PlacementRule):
    """The hierarchical graph network; deterministic, and total as far as the guard needs it.

    It is asked with every place and device count that has room, wherever a job could start (`place`). At a submission
    to Slurm that is as for every rule (`SubmissionAdapter`); `decide` adds what the network looked at. Where
    `warm_up_steps` brings it to snapshots, it answers from the last one; else it looks at the cluster at each question.
    """

    name = "gnn"

    def __init__(  # noqa: PLR0913  # what a site sets
        self,
        network: HierarchicalNetwork,
        graph: ClusterGraph,
        *,
        version: str,
        clocks: Clocks = "oracle",
        default_mode: EnergyMode = EnergyMode.BALANCED,
        node_hints: bool = False,
        weights: Mapping[EnergyMode, JobWeights] = MODE_WEIGHTS,
        configured: Mapping[str, str] | None = None,
    ) -> None:
        self.version = version
        self._node_hints = node_hints
        self._default_mode = default_mode
        self._weights = weights
        self._network = network
        self._chooser = self.new_chooser(graph)
        self._is_brought = False
        """Whether the graph is brought to snapshots, and not at each question."""
        self._clocks = clocks
        self._reader = StartReader()
        self._adapter = SubmissionAdapter(configured or {})
        self._looks: list[_Look] | None = None
        """Of the submission that is being decided."""

    def new_chooser(self, graph: ClusterGraph) -> NetworkChooser:
        """Return the network at work on a graph; of a sampled one, draws begin again."""
        return NetworkChooser(self._network, graph)

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Start a run with an empty graph, unless the graph is brought to snapshots."""
        self._reader = StartReader()
        if not self._is_brought:
            self._chooser = self.new_chooser(ClusterGraph())

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the likeliest way of starting the job now, at the clock of least energy or at the network's own."""
        chooser, learned = self._chooser, self._clocks == "learned"
        if not self._is_brought:
            chooser.follow_at_once(view.snapshot_without(job))
        known = chooser.cluster_facts
        options = self._reader.options(job, view, known.partition_index, with_clocks=learned)
        if self._looks and len(options) == 1 and not learned:  # a clock alone is asked for: there is nothing to choose
            return Placement(options[0].place, options[0].gpus, options[0].oracle_clock)
        columns = job_columns(job, view, known.facts, self._weights_of(view.submission(job).request))
        choice = chooser.choose(columns, [option.option for option in options])
        if choice is None:
            return None
        if self._looks is not None:
            names = tuple(PartitionName(view.places[option.place].partition) for option in options)
            self._looks.append(_Look(options, names, choice))
        option = options[choice.option]
        clock = option.clocks[choice.clock] if learned and choice.clock is not None else option.oracle_clock
        return Placement(option.place, option.gpus, clock)

    def for_rehearsal(self, snapshot: ClusterSnapshot) -> "GnnPolicy":  # noqa: ARG002  # the form of rules that remember
        """Return itself: what it is asked leaves no trace."""
        return self

    def warm_up_steps(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Bring graph and embeddings to a snapshot in short steps; answers in between come from the state before."""
        self._is_brought = True
        yield from self._chooser.follow(snapshot)

    def warm_up(self, snapshot: ClusterSnapshot) -> None:
        """Bring graph and embeddings to a snapshot."""
        for _ in self.warm_up_steps(snapshot):
            pass

    def decide(self, case: Case) -> PolicyAnswer:
        """Return the likeliest partition with room, a clock for each GPU type there, and the attention behind it."""
        if self._chooser.keeper.published is None:
            self.warm_up(case.snapshot)
        self._looks = []
        try:
            answer = super().decide(case)
            first = self._looks[0] if self._looks else None
        finally:
            self._looks = None
        if first is None:
            return answer
        report = self.report(first.choice)
        prefer = None
        if self._node_hints:
            prefer = node_hint(self._chooser, first.choice, case.job, first.partitions[first.choice.option])
        return replace(
            answer,
            prefer=prefer,
            notes=(*answer.notes, *report.sentences()),
            details=AnswerDetails(attention=asdict(report.shares), preference=_preference(first)),
        )

    def _weights_of(self, job: JobRequest) -> JobWeights:
        """Return what time and energy are worth to a job; one whose mode has no weights is as a balanced one."""
        mode = job.options.mode or self._default_mode
        return self._weights.get(mode, self._weights[EnergyMode.BALANCED])

    def report(self, choice: Choice) -> AttentionReport:
        """Return what the network looked at for a choice."""
        published, moments = self._chooser.state()
        kinds, names = top_vertices(
            moments, published.kind, published.partition, self._chooser.cluster_facts.partition_index
        )
        layers = [layer[0] for layer in choice.decisions.attention]
        used = (published.structure[:, PRESSURE][moments.vertex[0]]).tolist()
        room = [None, *(1.0 - share for share in used)]  # read of partitions only
        return attention_report(layers, kinds, names, self._chooser.network.config.attention, room)


def top_vertices(
    moments: BatchIndex, kind: torch.Tensor, partition: torch.Tensor, names: Iterable[PartitionName]
) -> tuple[list[int], list[str]]:
    """Return kind and name of each place at the top, the job's first; for a single moment.

    Args:
        moments: Of the state.
        kind: Kind of each vertex, [top].
        partition: Partition of each vertex, [top].
        names: Partitions in the order of their numbers.
    """
    partitions = list(names)
    order = moments.vertex[0].tolist()
    kinds = [int(TopKind.JOB), *kind[order].tolist()]
    owners = partition[order].tolist()
    return kinds, ["job", *("" if owner < 0 else str(partitions[owner]) for owner in owners)]


def _preference(look: _Look) -> dict[str, float]:
    """Return the probabilities of the likeliest partitions."""
    found: dict[str, float] = {}
    for name, probability in zip(look.partitions, look.choice.probabilities, strict=True):
        found[str(name)] = found.get(str(name), 0.0) + float(probability)
    return dict(sorted(found.items(), key=lambda item: -item[1])[:_LIKELIEST])


def node_hint(chooser: NetworkChooser, choice: Choice, job: JobRequest, partition: PartitionName) -> str | None:
    """Return the feature whose nodes the network would take for a job; None where none stands out.

    Args:
        chooser: Keeps the embeddings; without a cache of them there is no hint.
        choice: What it said of the job.
        job: The job.
        partition: Where it goes.
    """
    keeper, graph = chooser.keeper, chooser.graph
    if not isinstance(keeper, EmbeddingCache) or chooser.is_updating:
        return None  # in between slots may stand for other nodes than their embeddings do
    slots = nodes_with_room(graph, partition, max(1, -(-job.gpu_count // max(1, job.nodes_min))))
    if len(slots) < 2 or int(slots.max()) >= len(keeper.node):
        return None
    pair_x = torch.zeros(len(slots), _DEVICE_OPTION)
    pair_x[:, _IS_FREE] = 1.0
    with torch.inference_mode():
        log_prob = chooser.network.assignment(
            choice.decisions.job,
            keeper.node[torch.from_numpy(slots)],
            torch.zeros(len(slots), dtype=torch.int64),
            torch.arange(len(slots)),
            pair_x,
            torch.ones(len(slots), dtype=torch.bool),
        )
        probability = log_prob.exp().tolist()
    states = graph.nodes.states
    return preferred_feature(probability, [states[slot].features for slot in slots.tolist()])


def nodes_with_room(graph: ClusterGraph, partition: PartitionName, gpus: int) -> Indices:
    """Return the slots of at most `MAX_NODES` available nodes of a partition with so many free GPUs."""
    place = graph.partition_index.get(partition)
    if place is None:
        return np.zeros(0, dtype=np.int64)
    nodes, places = graph.members.flat()
    slots: Indices = nodes[places == place]
    store = graph.nodes.store
    slots = slots[(store["free"][slots] >= gpus) & (store["gpus"][slots] > 0) & (store["available"][slots] > 0)]
    if len(slots) > MAX_NODES:
        slots = slots[np.linspace(0, len(slots) - 1, MAX_NODES).astype(np.int64)]
    return slots


def preferred_feature(
    probabilities: Sequence[float],
    features: Sequence[Collection[str]],
    *,
    min_mass: float = 0.5,
    min_lift: float = 1.2,
) -> str | None:
    """Return the one Slurm feature whose nodes hold the most probability for their number, as a hint for `--prefer`.

    That is the largest lift: share of the probability over share of the nodes. Of equal lifts the larger share of the
    probability wins, then the name that sorts first. A probability that is not finite or negative counts as 0; nodes
    for which either argument is too short are left out.

    Args:
        probabilities: Probability of each node; they need not add up to 1.
        features: Slurm features of each node.
        min_mass: Share of the probability that the feature's nodes must hold: a hint speaks for most of it.
        min_lift: Least lift; below it the feature tells nothing that all nodes do not have as well.

    Returns:
        None when no feature is far enough ahead, or its name would not be taken as one name by Slurm.
    """
    pairs = zip(probabilities, features, strict=False)
    nodes = [(p if isfinite(p) and p > 0.0 else 0.0, set(names)) for p, names in pairs]
    highest = max((p for p, _ in nodes), default=0.0)
    if highest <= 0.0:
        return None
    weights: dict[str, list[float]] = {}
    for probability, names in nodes:
        for name in names:
            # Over the highest one, so that even absurdly large numbers add up.
            weights.setdefault(name, []).append(probability / highest)
    total = fsum(probability / highest for probability, _ in nodes)
    ranked = []
    for name, parts in weights.items():
        mass = fsum(parts) / total
        lift = mass * len(nodes) / len(parts)
        if mass >= min_mass and lift >= min_lift and _FEATURE.fullmatch(name):
            ranked.append((-lift, -mass, name))
    return min(ranked)[2] if ranked else None


def load_policy(config: Config) -> GnnPolicy | PricedPolicy:
    """Return the policy of the checkpoint that the configuration names: of options or of prices, as it was trained.

    Raises:
        CheckpointError: it cannot be used.
        ConfigError: none is named.
    """
    if not config.policy.checkpoint:
        raise ConfigError("policy.checkpoint is empty: name the folder of a learned policy, or choose another policy")
    use_threads(config.policy.threads)
    folder = checkpoint_folder(config)
    network, metadata = load_network(folder)
    graph = ClusterGraph(
        {slurm_type: GpuTypeName(name) for slurm_type, name in config.gpu_types.items()}, site_board_limits(config)
    )
    mode = EnergyMode(config.policy.default_mode)
    if network.config.policy == "prices":
        return PricedPolicy(network, graph, version=metadata.version, default_mode=mode, configured=config.gpu_types)
    node_hints = config.routing.node_hints and _NODES_TRAINED in metadata.metrics
    if config.routing.node_hints and not node_hints:
        logger.warning("node hints stay off: the head over nodes was not trained checkpoint=%s", folder)
    clocks: Literal["oracle", "learned"] = config.policy.clocks
    return GnnPolicy(
        network,
        graph,
        version=metadata.version,
        clocks=clocks,
        default_mode=mode,
        node_hints=node_hints,
        weights=site_weights(config.policy),
        configured=config.gpu_types,
    )
