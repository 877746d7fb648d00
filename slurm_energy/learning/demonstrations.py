"""What a rule did in the twin, as examples for a network: the state it saw, its options, and the one it took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from slurm_energy.graph.blocks import DecisionBlock
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import ClockOption, RunOption, decision_block
from slurm_energy.policy.gnn.keepers import whole_blocks
from slurm_energy.policy.gnn.network import Blocks
from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule, Postponement
from slurm_energy.twin.learned import Situation
from slurm_energy.twin.run_options import PlacedOption


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
        self._situation = Situation()

    def begin(self, view: ClusterView, random: Random) -> None:
        """Start a run; what was written down before stays."""
        self._teacher.begin(view, random)
        self._graph, self._situation = ClusterGraph(), Situation()

    def route(self, job: WaitingJob, view: ClusterView) -> int | tuple[int, ...] | None:
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
        self._graph.update(self._situation.snapshot(job, view))
        options = self._situation.options(job, view, self._graph, with_clocks=True)
        chosen = _index(options, placement)
        if chosen is None:
            return
        plain = tuple(option.option for option in options)
        self.demonstrations.append(
            Demonstration(
                state=whole_blocks(self._graph),
                decision=decision_block(self._situation.job_vector(job, view, self._graph), plain),
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
