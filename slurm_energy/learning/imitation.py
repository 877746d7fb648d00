"""Learning to do what a rule does, from its decisions in the twin: cross-entropy on its choices.

A second loss ties the network's objectives to time and energy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DecisionBlock, batch_decisions
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import ClockOption, RunOption, decision_block
from slurm_energy.learning.settings_file import RUN_BOUNDS, Bounds, check_bounds
from slurm_energy.learning.torch_device import batched_states, on_device, state_of_cluster
from slurm_energy.policy.gnn.cache import whole_blocks
from slurm_energy.policy.gnn.decision_level import Decisions
from slurm_energy.policy.gnn.embeddings import batch_index
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork, State
from slurm_energy.policy.gnn.start_options import PlacedOption, StartReader, job_columns
from slurm_energy.policy.jobs import (
    EndedJob,
    WaitingJob,
)
from slurm_energy.policy.placement import (
    ClusterView,
    Placement,
    PlacementRule,
    Postponement,
    Reroute,
)

_SECONDS = schema.column(schema.OPTION, "seconds")
_JOULES = schema.column(schema.OPTION, "joules")
_WAITED = schema.column(schema.TASK, "waited_seconds")
_MIN_LOG_PROB = -50.0
_BOUNDS: Bounds = {
    "epochs": (1, 10_000),
    "batch_size": (1, 1_000_000),
    "learning_rate": (1e-9, 0.5),
    "final_learning_rate_share": (0.0, 1.0),
    "gradient_norm": (1e-6, 1e6),
    "clock_weight": (0.0, 1000.0),
    "objective_weight": (0.0, 1000.0),
    "pooling_weight": (0.0, 1000.0),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demonstration:
    """One decision of a teacher."""

    state: Blocks
    decision: DecisionBlock
    options: tuple[RunOption, ...]
    chosen: int
    """Index of the option that it took."""
    clock: int
    """Index of the clock among the option's own."""


class DemonstratedRule(PlacementRule):
    """Does what another rule does and writes down every so many of its decisions; nothing of the run changes."""

    def __init__(self, teacher: PlacementRule, *, every: int = 1, most: int = 100_000) -> None:
        """Store the settings.

        Args:
            teacher: The rule to watch.
            every: One in so many starts is written down.
            most: How many are kept.
        """
        self.name = teacher.name
        self.version = teacher.version
        self.routes = teacher.routes
        self.discipline = teacher.discipline
        self.control_interval_seconds = teacher.control_interval_seconds
        self.observes_ends = teacher.observes_ends
        self.demonstrations: list[Demonstration] = []
        self._teacher = teacher
        self._every = every
        self._most = most
        self._starts = 0
        self._graph = ClusterGraph()
        self._reader = StartReader()

    def begin(self, view: ClusterView, random: Random) -> None:
        """Start a run; what was written down before stays."""
        self._teacher.begin(view, random)
        self._graph, self._reader = ClusterGraph(), StartReader()

    def route(self, job: WaitingJob, view: ClusterView) -> int | tuple[int, ...] | Reroute | None:
        """Ask the teacher."""
        return self._teacher.route(job, view)

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | Postponement | None:
        """Ask the teacher, and write down what it started."""
        placement = self._teacher.place(job, view)
        if isinstance(placement, Placement):
            self._starts += 1
            if self._starts % self._every == 0 and len(self.demonstrations) < self._most:
                self._write_down(job, view, placement)
        return placement

    def ended(self, job: EndedJob) -> None:
        """Tell the teacher."""
        self._teacher.ended(job)

    def control(self, view: ClusterView) -> Mapping[int, int]:
        """Ask the teacher."""
        return self._teacher.control(view)

    def _write_down(self, job: WaitingJob, view: ClusterView, placement: Placement) -> None:
        self._graph.update(view.snapshot_without(job))
        options = self._reader.options(job, view, self._graph.partition_index, with_clocks=True)
        chosen = _index(options, placement)
        if chosen is None:
            return
        plain = tuple(option.option for option in options)
        self.demonstrations.append(
            Demonstration(
                state=whole_blocks(self._graph),
                decision=decision_block(job_columns(job, view, self._graph.facts), plain),
                options=plain,
                chosen=chosen,
                clock=_carried_out(placement.clock, plain[chosen].clocks),
            )
        )


def _index(options: list[PlacedOption], placement: Placement) -> int | None:
    """Return the option of a placement; None for one that shares a GPU or has no room, which no option stands for."""
    if placement.partner is not None:
        return None
    for index, option in enumerate(options):
        if option.place == placement.place and option.gpus == placement.gpus:
            return index
    return None


def _carried_out(clock: int, clocks: Sequence[ClockOption]) -> int:
    """Return the lowest open clock from the asked one up, as the guard does; the default one, the last, is open."""
    last = len(clocks) - 1
    asked = last if clock == -1 else min(max(clock, 0), last)
    return next(index for index in range(asked, last + 1) if clocks[index].open)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationSettings:
    """How a network is trained on demonstrations."""

    epochs: int = 10
    batch_size: int = 32
    learning_rate: float = 2e-3
    final_learning_rate_share: float = 0.05
    """Reached along half a cosine."""
    gradient_norm: float = 1.0
    """Longer gradients are cut to it."""
    clock_weight: float = 0.5
    """Of the clock's cross-entropy beside the option's."""
    objective_weight: float = 0.1
    """Of what the tied heads say of time, energy and fairness."""
    pooling_weight: float = 0.05
    """Of the link and entropy terms of differentiable pooling."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_bounds(self, "learner", _BOUNDS)
        check_bounds(self, "training", {"seed": RUN_BOUNDS["seed"]})


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationProgress:
    """How the training stands after an epoch."""

    epoch: int
    loss: float
    agreement: float
    """Share of the epoch's decisions in which the likeliest option was the teacher's."""
    clock_agreement: float


class Seen(Protocol):
    """A decision about one job, as far as the network sees it."""

    @property
    def state(self) -> Blocks:
        """The cluster without the job."""
        ...

    @property
    def decision(self) -> DecisionBlock:
        """The job with its options."""
        ...


def train_by_imitation(
    network: HierarchicalNetwork,
    demonstrations: Sequence[Demonstration],
    settings: ImitationSettings,
    report: Callable[[ImitationProgress], None] | None = None,
) -> ImitationProgress:
    """Train a network in place, on the device that it is on, and return how it ended.

    The same seed on one CPU thread gives the same weights.

    Raises:
        ValueRangeError: there are no demonstrations.
    """
    if not demonstrations:
        raise ValueRangeError("there are no demonstrations to learn from: the number must be at least 1")
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate, weight_decay=1e-4)
    batches = -(-len(demonstrations) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimiser,
        settings.epochs * batches,
        eta_min=settings.learning_rate * settings.final_learning_rate_share,
    )
    generator = np.random.default_rng(settings.seed)
    network.train()
    progress = ImitationProgress(epoch=0, loss=0.0, agreement=0.0, clock_agreement=0.0)
    for epoch in range(1, settings.epochs + 1):
        sums = np.zeros(3)
        for batch in _batches(demonstrations, settings.batch_size, generator):
            optimiser.zero_grad(set_to_none=True)
            loss, agreed, clocks_agreed = imitation_loss(network, batch, settings)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            torch.nn.utils.clip_grad_norm_(network.parameters(), settings.gradient_norm)
            optimiser.step()
            schedule.step()
            sums += np.array([float(loss.detach()) * len(batch), agreed, clocks_agreed])
        mean = sums / len(demonstrations)
        progress = ImitationProgress(
            epoch=epoch, loss=float(mean[0]), agreement=float(mean[1]), clock_agreement=float(mean[2])
        )
        if report is not None:
            report(progress)
    network.eval()
    return progress


def imitation_loss(
    network: HierarchicalNetwork, batch: Sequence[Demonstration], settings: ImitationSettings
) -> tuple[Tensor, int, int]:
    """Return the mean loss of some demonstrations, and in how many the likeliest option and clock are the teacher's."""
    state, decisions = answers(network, batch)
    chosen, clock = (rows.to(network.torch_device) for rows in _positions(batch))
    log_prob, clock_log_prob = decisions.options.log_prob, decisions.clock_log_prob
    loss = -log_prob[chosen].clamp(min=_MIN_LOG_PROB).mean()
    loss = loss - settings.clock_weight * clock_log_prob[clock].clamp(min=_MIN_LOG_PROB).mean()
    if network.config.attention == "objectives":
        loss = loss + settings.objective_weight * objective_loss(decisions, batch, [one.chosen for one in batch])
    if network.config.pooling in {"mixed", "differentiable"}:
        devices = state.devices
        loss = loss + settings.pooling_weight * (devices.link_loss + 0.1 * devices.entropy_loss)
    first_option, first_clock = _starts(batch)
    agreed = clocks_agreed = 0
    for index, one in enumerate(batch):
        own = log_prob[first_option[index] : first_option[index] + len(one.options)]
        agreed += int(own.argmax()) == one.chosen
        begin = first_clock[index] + sum(len(option.clocks) for option in one.options[: one.chosen])
        clocks = clock_log_prob[begin : begin + len(one.options[one.chosen].clocks)]
        clocks_agreed += int(clocks.argmax()) == one.clock
    return loss, agreed, clocks_agreed


def answers(network: HierarchicalNetwork, batch: Sequence[Seen]) -> tuple[State, Decisions]:
    """Return the states and answers for some decisions side by side, on the network's device.

    A state that several share is worked out once.
    """
    device = network.torch_device
    index_of: dict[int, int] = {}
    states: list[Blocks] = []
    for one in batch:
        if index_of.setdefault(id(one.state), len(states)) == len(states):
            states.append(one.state)
    state = network.state(batched_states(states, device))
    moments = batch_index(state.published, state_of_cluster(states, device))
    numbers = [index_of[id(one.state)] for one in batch]
    decisions = batch_decisions([one.decision for one in batch], [one.top for one in states], numbers)
    return state, network.decide(state.published, moments, on_device(decisions, device))


def objective_loss(decisions: Decisions, batch: Sequence[Seen], chosen: Sequence[int]) -> Tensor:
    """Return the squared error of the tied heads: log time, log energy, and how long the job has waited.

    Args:
        decisions: The network's answers for the batch.
        batch: What was decided about.
        chosen: Row of the option that was taken, among those of its own decision.
    """
    goals = np.array(
        [
            [
                one.decision.option_x[row, _SECONDS],
                one.decision.option_x[row, _JOULES],
                one.decision.job_x[0, _WAITED],
            ]
            for one, row in zip(batch, chosen, strict=True)
        ],
        dtype=np.float32,
    )
    tied = decisions.objectives
    return torch.nn.functional.mse_loss(tied, torch.from_numpy(goals).to(tied.device))


def _positions(batch: Sequence[Demonstration]) -> tuple[Tensor, Tensor]:
    """Return the rows of the teacher's options and clocks in the batch."""
    options, clocks = _starts(batch)
    chosen = [first + one.chosen for first, one in zip(options, batch, strict=True)]
    clock = [
        first + sum(len(option.clocks) for option in one.options[: one.chosen]) + one.clock
        for first, one in zip(clocks, batch, strict=True)
    ]
    return torch.tensor(chosen), torch.tensor(clock)


def _starts(batch: Sequence[Demonstration]) -> tuple[list[int], list[int]]:
    """Return the first option row and the first clock row of each demonstration."""
    options, clocks = [0], [0]
    for one in batch:
        options.append(options[-1] + len(one.options))
        clocks.append(clocks[-1] + sum(len(option.clocks) for option in one.options))
    return options[:-1], clocks[:-1]


def _batches(
    demonstrations: Sequence[Demonstration], size: int, generator: np.random.Generator
) -> Iterator[list[Demonstration]]:
    order = generator.permutation(len(demonstrations))
    for begin in range(0, len(order), size):
        yield [demonstrations[index] for index in order[begin : begin + size]]
