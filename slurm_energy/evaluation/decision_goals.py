"""Goals for the speed and the memory of decisions, and whether a run meets them."""

from collections.abc import Iterator
from dataclasses import dataclass

from slurm_energy.evaluation.decision_figures import DecisionBench, growth

GROWTH_GOALS = {256: 1.5, 4096: 3.0}
"""Times the 16-node figure; the paper has 5.9 at 256 nodes: 47 ms over 8 ms."""
MEMORY_GOALS = {256: 500.0, 4096: 1000.0}
"""MB of all the daemon's processes; the paper has 2,400 MB at 256 nodes."""
PAPER_GROWTH = {256: "the paper: 5.9, 47 ms over 8 ms"}
PAPER_MEMORY = {256: "the paper: 2,400 MB"}
EXCHANGE_NODES, EXCHANGE_P99_MILLISECONDS = 256, 5.0
REBUILD_SECONDS = 2.0
COLD_START_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure against its bound."""

    what: str
    found: float
    bound: float
    unit: str
    remark: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure keeps its bound."""
        return self.found <= self.bound


def goals_of(bench: DecisionBench) -> tuple[Goal, ...]:
    """Return every goal that the run can tell about."""
    return (*_growth_goals(bench), *_rebuild_goals(bench), *_daemon_goals(bench))


def _growth_goals(bench: DecisionBench) -> Iterator[Goal]:
    for row in bench.in_process:
        found = growth(bench.in_process, row)
        if found is not None and row.nodes in GROWTH_GOALS:
            yield Goal(
                what=f"change and decision at {row.nodes:,} nodes over 16 nodes, {_threads(row.threads)}",
                found=found,
                bound=GROWTH_GOALS[row.nodes],
                unit="times",
                remark=PAPER_GROWTH.get(row.nodes, ""),
            )


def _rebuild_goals(bench: DecisionBench) -> Iterator[Goal]:
    most = max((row.nodes for row in bench.in_process), default=0)
    for row in bench.in_process:
        if row.nodes == most:
            what = f"state from nothing at {row.nodes:,} nodes, {_threads(row.threads)}"
            yield Goal(what=what, found=row.rebuild_seconds, bound=REBUILD_SECONDS, unit="s")


def _daemon_goals(bench: DecisionBench) -> Iterator[Goal]:
    for row in bench.through_daemon:
        where = f"at {row.nodes:,} nodes"
        if row.nodes == EXCHANGE_NODES:
            what = f"99 of 100 decisions over the socket {where}"
            yield Goal(what=what, found=row.exchange.p99, bound=EXCHANGE_P99_MILLISECONDS, unit="ms")
        if row.nodes in MEMORY_GOALS:
            yield Goal(
                what=f"peak memory of all processes {where}",
                found=row.peak_megabytes,
                bound=MEMORY_GOALS[row.nodes],
                unit="MB",
                remark=PAPER_MEMORY.get(row.nodes, ""),
            )
        what = f"start to the first answer of the policy {where}"
        yield Goal(what=what, found=row.first_decision_seconds, bound=COLD_START_SECONDS, unit="s")


def _threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
