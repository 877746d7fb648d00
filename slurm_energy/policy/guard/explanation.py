"""What a person reads of a decision: lines at submission, comparisons, what a network expected, why nothing changed."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slurm_energy.domain.decision import ClockChoice, Reason
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.relative_speed import RelativeCost
from slurm_energy.policy.base import Case
from slurm_energy.policy.guard.clocks import SlowdownRoom, exchange_text
from slurm_energy.policy.guard.gpu_count import CountedCase
from slurm_energy.policy.site.comparison import Candidate, TypeComparison, landing_types, rivals_of, with_room
from slurm_energy.policy.site.type_bound import default_candidate

MAX_MESSAGE_BYTES = 512
_OPT_OUT = "opt out with --energy=off"
_FELT = 0.005
"""Slowdown that is worth a word."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._:,+-]")
_SAY_WHY = frozenset(
    {
        Reason.USER_CLOCK,
        Reason.NO_SAVING,
        Reason.POOR_EXCHANGE,
        Reason.POLICY_ERROR,
        Reason.SLOWDOWN_BOUND,
        Reason.TIME_LIMIT,
        Reason.DEADLINE,
    }
)
"""Reasons that say by themselves why the clock stayed."""
_LISTED = 4
_SOURCES = {
    "measured": "workloads measured on both",
    "specification": "data sheets",
}


def explanation(  # noqa: PLR0913  # each part of the line
    partitions: Iterable[PartitionName] | None,
    clocks: Iterable[ClockChoice],
    prefer: str | None,
    shown_names: Mapping[GpuTypeName, str],
    *,
    count: str = "",
    sent: str = "",
    observed: bool = False,
) -> str:
    """Return what a decision does and how to opt out, at most 512 bytes of ASCII; empty when it does nothing.

    Args:
        partitions: The partitions that are tried first, None when the job stays where it is.
        clocks: The clock for each GPU type.
        prefer: The node feature whose nodes are used first, None when any will do.
        shown_names: The name of each GPU type as the cluster's users know it.
        count: What another number of GPUs does; empty where the job's own stays.
        sent: How much slower the partition may be than where Slurm would start the job.
        observed: Whether it is only recorded: the line then says what would have been.
    """
    begin, end = ("would have been: ", "") if observed else ("", _OPT_OUT)
    parts = [_clock_text(clock, shown_names) for clock in clocks]
    partition = "" if partitions is None else f"partition {_plain(','.join(partitions), 128)} first{sent}"
    nodes = "" if prefer is None else f"nodes with {_plain(prefer, 64)} first"
    where = ", ".join(filter(None, (count, partition, nodes)))
    if not parts and not where:
        return ""
    shown = len(parts)
    while True:
        rest = [f"{len(parts) - shown} more GPU types"] if shown < len(parts) else []
        what = "; or ".join([*parts[:shown], *rest])
        line = begin + "; ".join(filter(None, (f"{where}: {what}" if where and what else where or what, end)))
        if len(line.encode()) <= MAX_MESSAGE_BYTES or shown == 0:
            return line
        shown -= 1


def announcement(
    partitions: Iterable[PartitionName] | None,
    clocks: Iterable[ClockChoice],
    prefer: str | None,
    *,
    counts: bool = False,
    observed: bool,
    by_own_runs: bool = False,
) -> str:
    """Return what may be said while Slurm has yet to accept the job; empty for a decision that does nothing.

    A program that drives sbatch through a terminal may take the first number for the job's: there is no digit in it.

    Args:
        partitions: The partitions that are tried first, None when the job stays where it is.
        clocks: The clock for each GPU type.
        prefer: The node feature whose nodes are used first, None when any will do.
        counts: Whether the job gets another number of GPUs.
        observed: Whether it is only recorded.
        by_own_runs: Whether GPU types and numbers of GPUs were compared by runs of the job's name.
    """
    chosen = list(clocks)
    parts = ["another number of GPUs"] if counts else []
    parts += [] if partitions is None else ["another choice of partition"]
    parts += [] if prefer is None else ["a choice of nodes"]
    parts += ["a lower GPU clock"] if chosen else []
    if not parts:
        return ""
    effect = "what it saves for this job is not known"
    if all(clock.known_runs for clock in chosen) and (by_own_runs or (partitions is None and not counts)):
        effect = "less energy in earlier runs" if chosen or not prefer else effect
    elif chosen and all(clock.is_assumed for clock in chosen):
        effect = "what it saves is not known of these GPUs"
    if counts:
        effect += ", another run time"
    elif any(clock.predicted_slowdown >= _FELT for clock in chosen):
        effect += ", somewhat longer run"
    what = f"{' and '.join(parts)} ({effect})"
    if observed:
        return f"only observed, nothing is changed; it would have been {what}"
    return f"if accepted: {what}; {_OPT_OUT}"


def joined_line(line: str, more: str) -> str:
    """Return a line with more behind it, where both together are short enough for a line at submission."""
    both = "; ".join(filter(None, (line, more)))
    return both if len(both.encode()) <= MAX_MESSAGE_BYTES else line


def count_text(counted: CountedCase) -> str:
    """Return what another number of GPUs does, or why the job's own stays although the user named others."""
    if Reason.GPU_COUNT_REFUSED in counted.reasons:
        return " ".join(_plain(word, 32) for word in counted.notes[0].split()[:24]) if counted.notes else ""
    if not counted.changes:
        return ""
    what = f"{counted.gpus} instead of {counted.asked} GPUs"
    if counted.case.scaling is None or not counted.case.scaling.is_measured:
        return f"{what} (how this job scales is not known; most work takes {counted.longer:.2g} times as long)"
    saved = 1.0 - counted.joules_ratio
    energy = f"{_percent(abs(saved))} {'less' if saved >= 0.0 else 'more'} energy"
    return f"{what} (about {energy}, {counted.longer:.2g} times as long, by runs of this name)"


def sent_text(case: Case, partitions: Iterable[PartitionName] | None) -> str:
    """Return how much slower the GPU types of some partitions may be than where Slurm would start the job."""
    bound, names = case.type_bound, set(partitions or ())
    types = landing_types(one for one in case.candidates if one.partition.name in names)
    others = [name for name in types if name not in bound.home]
    ratios = [ratio for name in others if (ratio := bound.ratio(name)) is not None]
    if not ratios or default_candidate([one for one in case.candidates if one.has_idle_room]) is None:
        return ""
    home = " or ".join(_plain(case.shown_names.get(name, name), 64) for name in bound.home)
    slower = max(ratios) - 1.0
    if slower < _FELT:
        return f" ({'about as fast as' if case.clock_terms.by_mean else 'no slower than'} on {home})"
    return f" ({'about' if case.clock_terms.by_mean else 'at most'} {_percent(slower)} longer than on {home})"


def _clock_text(clock: ClockChoice, shown_names: Mapping[GpuTypeName, str]) -> str:
    name = _plain(shown_names.get(clock.gpu_type, clock.gpu_type), 64)
    longer = _percent(clock.predicted_slowdown)
    if clock.is_assumed:
        return (
            f"{name} at {clock.sm_clock_mhz} of {clock.default_clock_mhz} MHz: never measured at this clock, what it "
            f"saves is not known, {longer} longer is assumed"
        )
    at = f"{name} at {clock.sm_clock_mhz} of {clock.default_clock_mhz} MHz"
    saving = _percent(-clock.predicted_energy_change)
    if clock.known_runs:
        runs = "1 run" if clock.known_runs == 1 else f"{clock.known_runs} runs"
        return f"{at}: about {saving} less energy, {longer} longer, known from {runs}"
    worst, mean = clock.worst_slowdown, clock.mean_slowdown
    at_most = longer if worst is None else _percent(worst)
    bound = f"at most {at_most} longer" if at_most == longer else f"{longer} longer in the mean, up to {at_most}"
    others = saving if mean is None else f"{saving} for {_percent(mean)} of time"
    return f"{at}: {bound}; what this job saves is not known ({others} in the mean of other programs)"


def exchange_notes(clock: ClockChoice) -> tuple[str, ...]:
    """Return both sides of a clock that other programs stand for: what it saves, and how much longer jobs take."""
    if clock.mean_slowdown is None or clock.worst_slowdown is None or clock.is_assumed:
        return ()
    return (
        (
            f"{clock.gpu_type} at {clock.sm_clock_mhz} MHz: {clock.predicted_energy_change:+.1%} energy for "
            f"{clock.mean_slowdown:+.1%} time in the mean of measured programs, at most {clock.worst_slowdown:+.1%}"
        ),
    )


def _percent(ratio: float) -> str:
    return f"{round(100 * ratio)} %" if ratio >= _FELT or ratio <= 0.0 else "under 1 %"


def _plain(text: str, longest: int) -> str:
    """Return a name with everything replaced that a terminal or a log could misread."""
    return _UNSAFE.sub("?", text)[:longest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """The reasons that stand for the policy's word that it chose, and a sentence for each thing that is not there."""

    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()


def missing_partitions(case: Case) -> tuple[str, ...]:
    """Return a sentence for each partition of the job that the picture of the cluster lacks."""
    known = case.snapshot.partition_by_name
    if not case.job.partitions and case.snapshot.default_partition is None:
        return ("the job names no partition, and the cluster has no default one",)
    return tuple(
        f"partition {name} is not in the picture of the cluster" for name in case.job.partitions if name not in known
    )


def why_unchanged(landing: tuple[Candidate, ...], case: Case, given: tuple[Reason, ...]) -> Unchanged:
    """Return why no clock, partition or node was chosen.

    Args:
        landing: The partitions in which the job can start.
        case: The job's.
        given: Reasons that are known already.
    """
    types = landing_types(landing)
    if not types:
        return Unchanged(reasons=() if Reason.UNKNOWN_GPU_TYPE in given else (Reason.NO_SUCH_GPU,))
    if not _SAY_WHY.isdisjoint(given):
        return Unchanged(reasons=())
    tables = [table for table in map(case.comparison.clock_table, types) if table is not None]
    if not tables:
        return Unchanged(reasons=())
    poor = tuple(text for name in types if (text := _poor_exchange(name, case)))
    if poor:
        return Unchanged(reasons=(Reason.POOR_EXCHANGE,), notes=poor)
    points = [table.best(case.max_slowdown) for table in tables]
    if any(point is not None and point.sm_clock_mhz != point.default_clock_mhz for point in points):
        return Unchanged(reasons=(Reason.NOTHING_CHANGED,))
    slower = [table.best(float("inf")) for table in tables]
    if any(point is not None and point.sm_clock_mhz != point.default_clock_mhz for point in slower):
        note = f"no lower clock is inside the allowed slowdown of {100.0 * case.max_slowdown:.3g} %"
        return Unchanged(reasons=(Reason.NO_CLOCK_IN_BOUND,), notes=(note,))
    return Unchanged(reasons=(Reason.NO_SAVING,))


def _poor_exchange(gpu_type: GpuTypeName, case: Case) -> str:
    """Return why the clock that the bound allows is not worth its time; empty where that is not the reason."""
    comparison = case.comparison
    table, every = comparison.clock_table(gpu_type), comparison.all_clocks(gpu_type)
    best = None if every is None else every.best(case.max_slowdown)
    if table is None or best is None or table.at(best.sm_clock_mhz) is not None:
        return ""
    kept = table.best(case.max_slowdown)
    is_default = kept is not None and kept.sm_clock_mhz == kept.default_clock_mhz
    return f"{exchange_text(gpu_type, best, comparison)}: the default clock" if is_default else ""


def comparison_notes(case: Case) -> tuple[str, ...]:
    """Return what each GPU type with room costs beside the one that Slurm would take, and who says so.

    Nothing where there is one type, or they cannot be compared. Where the job would wait, it is beside the fastest.

    Args:
        case: Of a job for which partitions are open to choice.
    """
    candidates = with_room(case.candidates)
    rivals = rivals_of(candidates, case.comparison)
    if rivals is None or len(rivals.types) == 1:
        return ()
    own = default_candidate(candidates)
    home = rivals.fastest if own is None else own.gpu_types[0]
    others = [name for name in rivals.types if name != home]
    runs = _runs(case.work, case.shown_names)
    return tuple(
        f"beside {case.shown_names.get(home, home)}, {_compared(case.shown_names.get(name, name), cost, runs)}"
        for name in others[:_LISTED]
        if (cost := case.comparison.cost(name, home)) is not None
    )


def light_notes(landing: Iterable[Candidate], case: Case) -> tuple[str, ...]:
    """Return why a job keeps the default clock on types where its name draws far less than what was measured.

    Args:
        landing: Where the job may start.
        case: The job's.
    """
    comparison = case.comparison
    return tuple(
        f"{case.shown_names.get(name, name)}: runs of this name draw {comparison.watts(name):.0f} W, far less than any "
        "measured workload: what a lower clock does to it is unknown, the default clock stays"
        for name in landing_types(landing)
        if not case.clock_terms.by_mean and comparison.draws_less(name)
    )


def _compared(name: str, cost: RelativeCost, runs: str) -> str:
    source = _SOURCES.get(cost.source, cost.source)
    counted = f" ({runs})" if runs and cost.source not in _SOURCES else ""
    times, joules = f"{cost.time_ratio:.2f} times as long", f"{cost.energy_ratio:.2f} of the energy"
    return f"{name} takes {times} and {joules}, by {source}{counted}"


def _runs(work: WorkEstimate | None, shown_names: Mapping[GpuTypeName, str]) -> str:
    counts = {} if work is None else work.runs_by_type
    return ", ".join(f"{runs} on {shown_names.get(name, name)}" for name, runs in counts.items())


def prediction_notes(
    gpu_type: GpuTypeName, choice: ClockChoice | None, room: SlowdownRoom, comparison: TypeComparison
) -> tuple[str, ...]:
    """Return one sentence where a network's expectation decided; none where tables did.

    Args:
        gpu_type: On which the job may land.
        choice: Its clock; None for the default one.
        room: What the job's rules leave.
        comparison: For the job.
    """
    predicted, expected = comparison.predicted, comparison.expected(gpu_type)
    if predicted is None or expected is None:
        return ()
    table = replace(comparison, predicted=None).clock_table(gpu_type)
    point = None if table is None else room.best_of(table)
    is_default = point is None or point.sm_clock_mhz == point.default_clock_mhz
    by_tables = "the default clock" if point is None or is_default else f"{point.sm_clock_mhz} MHz"
    if choice is None:
        return (f"{gpu_type}: the default clock, expected from {predicted.evidence}; by tables alone {by_tables}",)
    here = expected.at(choice.sm_clock_mhz / choice.default_clock_mhz)
    if here is None:
        return ()
    slowdown, upper, energy_change = here
    sentence = (
        f"{gpu_type}: {choice.sm_clock_mhz} MHz expected to take {slowdown:.1%} longer (nine of ten below {upper:.1%}) "
        f"with {energy_change:+.1%} energy, from {predicted.evidence}; by tables alone {by_tables}"
    )
    return (sentence,)
