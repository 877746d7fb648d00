"""A measurement of decisions in a terminal and as a page."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from slurm_energy.evaluation.decision_speed.figures import DecisionBench, InProcess, ThroughDaemon, goals_of, growth
from slurm_energy.policy.automatic import SHIPPED
from slurm_energy.reporting.fitted import FittedColumn, FittedTable, print_fitted
from slurm_energy.reporting.visible import visible

_STOLEN_SHARE = 0.02
_HOW = """\
A synthetic cluster of four GPU types in six partitions, 70 % of the GPUs held by running jobs, leaf switches of 32
nodes. {weights}.

- In a process of its own, {pending} jobs pending: decisions follow each other, and {rate} times a second one node or
  one job is different; such a change is taken in before the next decision. *Decision* is the policy's answer, *change*
  is taking in one change, *both* the two together where a change had come. *Reading* is taking in at once what changes
  between two readings of the daemon, as the daemon does; *minute* is when the clock of all running jobs moves on;
  *rebuild* is the state from nothing.
- The plain network is two layers of torch_geometric's `HeteroConv` with `SAGEConv`, width 64, over the same whole graph
  at every decision: its forward pass alone.
- Through the socket: a daemon of its own, {queue} jobs pending, read every {interval} s from scripts in the place of
  Slurm's commands. They print rows with every field of Slurm 22.05, different at every reading. One client on the same
  machine asks for one decision after another, 5 ms apart, a connection for each. *By the policy* is the share that the
  learned policy answered in time; its baseline answered the others. A network of prices answers in the daemon, one of
  options in its own process. Where the host of a virtual machine kept 2 % of a processor or more from it, decisions are
  asked for again, up to five times, and the figures are those of the least disturbed time.
- Peak memory is VmHWM: what processes share counts in each of them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTable:
    """One table; the first columns are text where `text_columns` says so, all others numbers."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: frozenset[int] = frozenset()


def bench_tables(bench: DecisionBench) -> tuple[BenchTable, ...]:
    """Return the tables that have rows."""
    tables = (_alone(bench), _through_daemon(bench), _memory(bench), _goals(bench))
    return tuple(table for table in tables if table.rows)


def print_bench(bench: DecisionBench, console: Console) -> None:
    """Print the tables."""
    for table in bench_tables(bench):
        console.print(Text(table.title, style="bold"))
        print_fitted(_fitted_table(table), console)
        console.print()
    for line in remarks(bench):
        console.print(Text(visible(line), style="dim"))


def bench_page(bench: DecisionBench, command: str) -> str:
    """Return the Markdown page.

    Args:
        bench: The figures.
        command: How they were made.
    """
    machine = bench.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    cores = "1 core" if machine.cpu_cores == 1 else f"{machine.cpu_cores} cores"
    date = time.strftime("%Y-%m-%d", time.gmtime(bench.created_at_seconds))
    lines = [
        "# Benchmarks of decisions",
        "",
        f"Written by `{command}`. Wall times on the machine below; read ratios first.",
        "",
        f"- Date: {date}; {cores}, {visible(machine.processor)}; load before the start {machine.load:.1f}; {versions}.",
        "",
    ]
    for table in bench_tables(bench):
        lines += [f"## {table.title}", "", *_markdown(table), ""]
    how = _HOW.format(
        pending=f"{bench.pending:,}",
        queue=f"{bench.queue:,}",
        rate=f"{bench.changes_per_second:g}",
        interval=f"{bench.interval_seconds:g}",
        weights=_weights(bench.checkpoint),
    )
    lines += ["## How", "", how]
    notes = remarks(bench)
    return "\n".join([*lines, *(f"- {visible(note)}" for note in notes), *([""] if notes else [])])


def _weights(checkpoint: str | None) -> str:
    """Return in words which network was asked."""
    if checkpoint is None:
        return "The policy is a rule, without a network"
    if checkpoint == SHIPPED:
        return "The policy is the network of prices that comes with the package, the default"
    if checkpoint:
        return f"The policy's weights are those of {visible(checkpoint)}"
    return "The policy is a network of options with random weights, which cost as much as learned ones"


def remarks(bench: DecisionBench) -> tuple[str, ...]:
    """Return what a reader must know of this run."""
    return tuple(_remarks(bench))


def _remarks(bench: DecisionBench) -> Iterator[str]:
    for alone in bench.in_process:
        where = f"At {alone.nodes:,} nodes, {alone.threads} thread{'s' * (alone.threads > 1)}"
        if alone.network_share is not None and alone.network_share < 1.0:
            yield f"{where}: the network was asked in {alone.network_share:.0%} of the decisions only."
        if alone.changes_per_second < 0.9 * bench.changes_per_second:
            yield (
                f"{where}: {alone.changes_per_second:.0f} single changes a second were taken in, "
                f"{bench.changes_per_second:g} were due."
            )
    for row in bench.through_daemon:
        if row.network_share is not None and row.network_share < 1.0:
            yield f"Daemon at {row.nodes:,} nodes: for {row.network_share:.0%} of the jobs only there was a choice."
        if row.stolen_share is not None and row.stolen_share >= _STOLEN_SHARE:
            yield (
                f"Daemon at {row.nodes:,} nodes: the host of this virtual machine kept {row.stolen_share:.0%} of a "
                "processor from it in the meantime, milliseconds at a time; the 99th percentile is the host's then."
            )


def _alone(bench: DecisionBench) -> BenchTable:
    headings = (
        "nodes", "GPUs", "jobs", "threads", "decision p50 ms", "p99 ms", "change p50 ms", "p99 ms", "both p50 ms",
        "over 16 nodes", "reading ms", "minute s", "rebuild s", "plain network ms", "its edges",
    )  # fmt: skip
    rows = tuple(_alone_row(bench.in_process, row) for row in bench.in_process)
    return BenchTable(title="In a process of its own", headings=headings, rows=rows)


def _alone_row(rows: Sequence[InProcess], row: InProcess) -> tuple[str, ...]:
    times = growth(rows, row)
    return (
        f"{row.nodes:,}",
        f"{row.gpus:,}",
        f"{row.jobs:,}",
        str(row.threads),
        f"{row.decision.median:.2f}",
        f"{row.decision.p99:.2f}",
        f"{row.change.median:.2f}",
        f"{row.change.p99:.2f}",
        f"{row.together.median:.2f}",
        "" if times is None else f"{times:.2f}",
        f"{1e3 * row.reading_seconds:.1f}",
        f"{row.minute_seconds:.2f}",
        f"{row.rebuild_seconds:.2f}",
        "" if row.peer is None else f"{row.peer.median:.1f}",
        "" if row.peer is None else f"{row.peer_edges:,}",
    )


def _through_daemon(bench: DecisionBench) -> BenchTable:
    headings = (
        "nodes", "GPUs", "jobs", "policy", "decisions", "p50 ms", "p99 ms", "max ms", "by the policy", "readings",
        "first answer s", "first by the policy s",
    )  # fmt: skip
    rows = tuple(_daemon_row(row) for row in bench.through_daemon)
    return BenchTable(title="Through the daemon's socket", headings=headings, rows=rows, text_columns=frozenset({3}))


def _daemon_row(row: ThroughDaemon) -> tuple[str, ...]:
    return (
        f"{row.nodes:,}",
        f"{row.gpus:,}",
        f"{row.jobs:,}",
        row.policy,
        f"{row.exchange.runs:,}",
        f"{row.exchange.median:.2f}",
        f"{row.exchange.p99:.2f}",
        f"{row.exchange.largest:.1f}",
        "" if row.learned_share is None else f"{row.learned_share:.1%}",
        str(row.snapshots),
        f"{row.first_answer_seconds:.2f}",
        f"{row.first_decision_seconds:.2f}",
    )


def _memory(bench: DecisionBench) -> BenchTable:
    names = tuple(dict.fromkeys(process.name for row in bench.through_daemon for process in row.memory))
    rows = []
    for row in bench.through_daemon:
        peaks = {process.name: f"{process.peak_megabytes:.0f}" for process in row.memory}
        shared = row.proportional_megabytes
        cells = (f"{row.nodes:,}", *(peaks.get(name, "") for name in names), f"{row.peak_megabytes:.0f}")
        rows.append((*cells, "" if shared is None else f"{shared:.0f}"))
    return BenchTable(
        title="Peak memory of the daemon's processes, MB",
        headings=("nodes", *names, "sum of peaks", "at the end, shared once"),
        rows=tuple(rows),
    )


def _goals(bench: DecisionBench) -> BenchTable:
    rows = tuple(
        (
            goal.what,
            f"{goal.found:,.2f}" if goal.found < 100.0 else f"{goal.found:,.0f}",
            f"≤ {goal.bound:,g} {goal.unit}",
            "met" if goal.met else "missed",
            goal.remark,
        )
        for goal in goals_of(bench)
    )
    return BenchTable(
        title="Goals",
        headings=("what", "figure", "goal", "", "beside it"),
        rows=rows,
        text_columns=frozenset({0, 2, 3, 4}),
    )


def _markdown(table: BenchTable) -> list[str]:
    marks = ["---" if index in table.text_columns else "---:" for index in range(len(table.headings))]
    rows = [" | ".join(row) for row in (table.headings, tuple(marks), *table.rows)]
    return [f"| {row} |" for row in rows]


def _fitted_table(table: BenchTable) -> FittedTable:
    columns = [
        FittedColumn(
            heading=heading,
            is_number=index not in table.text_columns,
            rank=index,
            shortest=12 if index in table.text_columns else None,
        )
        for index, heading in enumerate(table.headings)
    ]
    return FittedTable(
        columns=columns, rows=table.rows, styles=["red" if "missed" in row else None for row in table.rows]
    )
