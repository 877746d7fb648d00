"""The network as a policy of the daemon: a job and a snapshot in, partition and clocks out, with what it looked at.

The paper assigns tasks to devices (section 3.4). Slurm picks nodes and devices itself; what a submission can do is to
prefer a feature of nodes: a hint, no condition.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import fsum, isfinite
from random import Random
from typing import Literal

import numpy as np
import torch

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import AnswerDetails, ClockChoice, PolicyAnswer, Reason
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyMode, JobRequest
from slurm_energy.energy_model.operating_point import OperatingPoint
from slurm_energy.errors import ConfigError
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import Indices
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.job_features import JobWishes, submitted_vector
from slurm_energy.policy.automatic import checkpoint_folder
from slurm_energy.policy.base import Case
from slurm_energy.policy.gnn.attention_report import AttentionReport, attention_report
from slurm_energy.policy.gnn.cache import EmbeddingCache
from slurm_energy.policy.gnn.chooser import Choice, NetworkChooser
from slurm_energy.policy.gnn.configuration import Clocks
from slurm_energy.policy.gnn.embeddings import PRESSURE, BatchIndex, TopKind
from slurm_energy.policy.gnn.network import HierarchicalNetwork
from slurm_energy.policy.gnn.serving import PricedPolicy, load_network, use_threads
from slurm_energy.policy.gnn.serving_options import ServedOption, nothing_open, partitions_to_name, served_options
from slurm_energy.policy.gnn.start_options import StartReader, job_columns
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.oracle import oracle_clocks
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule
from slurm_energy.policy.prices import MODE_WEIGHTS, JobWeights, site_weights
from slurm_energy.policy.site.comparison import clock_choice
from slurm_energy.policy.site.settings import site_board_limits

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


class GnnPolicy(PlacementRule):
    """The hierarchical graph network; deterministic, and total as far as the guard needs it.

    Where jobs are placed when they can start, it is asked with every place and device count that has room (`place`);
    at a submission to Slurm with the partitions that the job may start in (`decide`). `warm_up_steps` brings it to a
    snapshot; `decide` answers from the last one it was brought to, and brings itself to the given one only if there was
    none before.
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
    ) -> None:
        self.version = version
        self._node_hints = node_hints
        self._default_mode = default_mode
        self._weights = weights
        self._network = network
        self._chooser = self.new_chooser(graph)
        self._clocks = clocks
        self._reader = StartReader()

    def new_chooser(self, graph: ClusterGraph) -> NetworkChooser:
        """Return the network at work on a graph; of a sampled one, draws begin again."""
        return NetworkChooser(self._network, graph)

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Start a run with an empty graph."""
        self._chooser, self._reader = self.new_chooser(ClusterGraph()), StartReader()

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the likeliest way of starting the job now, at the clock of least energy or at the network's own."""
        chooser, learned = self._chooser, self._clocks == "learned"
        chooser.follow_at_once(view.snapshot_without(job))
        options = self._reader.options(job, view, chooser.graph, with_clocks=learned)
        weights = self._weights_of(view.submission(job).request)
        choice = chooser.choose(
            job_columns(job, view, chooser.graph.facts, weights), [option.option for option in options]
        )
        if choice is None:
            return None
        option = options[choice.option]
        clock = option.clocks[choice.clock] if learned and choice.clock is not None else option.oracle_clock
        return Placement(option.place, option.gpus, clock)

    def for_rehearsal(self, snapshot: ClusterSnapshot) -> "GnnPolicy":  # noqa: ARG002  # the form of rules that remember
        """Return itself: what it is asked leaves no trace."""
        return self

    def warm_up_steps(self, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Bring graph and embeddings to a snapshot in short steps; answers in between come from the state before."""
        yield from self._chooser.follow(snapshot)

    def warm_up(self, snapshot: ClusterSnapshot) -> None:
        """Bring graph and embeddings to a snapshot."""
        self._chooser.follow_at_once(snapshot)

    def decide(self, case: Case) -> PolicyAnswer:
        """Return the likeliest open partition, a clock for each GPU type there, and the attention behind it."""
        chooser, job = self._chooser, case.job
        if chooser.keeper.published is None:
            chooser.follow_at_once(case.snapshot)
        learned = self._clocks == "learned"
        options = served_options(case, chooser.cluster_facts, with_clocks=learned)
        if not any(served.option.open for served in options):
            return nothing_open(case)
        time_weight, energy_weight = self._weights_of(job)
        wishes = JobWishes(max_slowdown=case.max_slowdown, time_weight=time_weight, energy_weight=energy_weight)
        job_x = submitted_vector(
            job, case.now_seconds, chooser.cluster_facts.facts, runtime=case.runtime, wishes=wishes
        )
        choice = chooser.choose(job_x, [served.option for served in options])
        assert choice is not None  # one is open
        chosen = options[choice.option]
        partitions = partitions_to_name(chosen, case)
        clocks = oracle_clocks(case, partitions)
        if learned:
            clocks = _with_learned(clocks, chosen, choice, case)
        report = self.report(choice)
        prefer = None
        if self._node_hints:
            prefer = node_hint(chooser, choice, job, chosen.candidate.partition.name)
        return PolicyAnswer(
            partitions=partitions,
            clocks=clocks,
            prefer=prefer,
            reasons=(Reason.POLICY,),
            notes=tuple(report.sentences()),
            details=AnswerDetails(attention=asdict(report.shares), preference=_preference(options, choice)),
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


def _with_learned(
    clocks: tuple[ClockChoice, ...], chosen: ServedOption, choice: Choice, case: Case
) -> tuple[ClockChoice, ...]:
    """Return the clocks with the network's own for the one GPU type of the chosen partition."""
    if choice.clock is None or len(chosen.candidate.gpu_types) != 1:
        return clocks
    gpu_type = chosen.candidate.gpu_types[0]
    point: OperatingPoint = chosen.clocks[choice.clock]
    own = clock_choice(gpu_type, point, case.board_limits)
    others = tuple(clock for clock in clocks if clock.gpu_type != gpu_type)
    return others if own is None else (*others, own)


def _preference(options: tuple[ServedOption, ...], choice: Choice) -> dict[str, float]:
    """Return the probabilities of the likeliest partitions."""
    ranked = sorted(range(len(options)), key=lambda index: -choice.probabilities[index])[:_LIKELIEST]
    return {str(options[index].candidate.partition.name): float(choice.probabilities[index]) for index in ranked}


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
    )
