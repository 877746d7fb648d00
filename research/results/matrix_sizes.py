"""Where matrix products of each size run, and at which clocks; held against section 4.2 of the hierarchical GNN paper.

The paper says of its scheduler that products below 400 go to CPUs or low clocks of GPUs, those from 400 to 1000 to
middle clocks, and larger ones to high clocks. It puts no figures to these: *low*, *middle* and *high* are here the
thirds between the lowest and the highest clock of a GPU.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Literal, NamedTuple

from research.results.cases import Case, Effort, Section
from research.results.document import Figures, MatrixSizes
from research.results.tables import NONE, table
from slurm_energy.evaluation.arena.plan import ArenaPlan
from slurm_energy.evaluation.arena.run import ArenaRun, finished_run
from slurm_energy.twin.engine.places import Place, places_of
from slurm_energy.twin.workloads.matrix import MATRIX_SIDES, matrix_kind

PLOT = "matrix-sizes.svg"
KEY = "tum128"
"""Of the section and of the case in it that has matrix products."""
RULES = ("fcfs", "greedy", "total-cost:V=200")
_HOURS = 12.0
_SIZE_OF_KIND = {matrix_kind(side): side for side in MATRIX_SIDES}
_MAX_FALL = 0.05
"""Of the mean clock from one size to the next, in terms of its range, that passes for none."""

_MATRIX_SIZES = """
The paper on hierarchical graph networks says of its scheduler (section 4.2) that products of matrices below 400 go to
CPUs or to low clocks, those from 400 to 1000 to middle clocks, and those above 1000 to high clocks. {hours:.3g} hours
of arrivals of world `{world}`, one seed ({seed}): a picture, without intervals. *Clock* is a job's clock over the
highest of its device, the mean of jobs on GPUs (1 where a GPU has only one). A range is *CPU* if more than half of its
jobs run there; else *low*, *middle* or *high* is the third, between the lowest and the highest clock of GPUs that have
more than one, in which the mean lies. *Clock over size* leaves out sizes of which more than half run on CPUs. Middle
clocks are missing because the exact optimum nearly has none: below 1000, copies and calls rule on a K40c and the
lowest of its four clocks costs least; above, the static part of its power is large and the highest does; only products
of 1000 take the third, which lies in the upper third of the range.
"""

Level = Literal["CPU", "low", "middle", "high", "one clock"]
Rise = Literal["rises", "flat", "does not rise", "-"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """Sizes for which the same is asked."""

    text: str
    least: float
    most: float
    asked: tuple[Level, ...]

    def __contains__(self, size: int) -> bool:
        return self.least <= size <= self.most


LIMITS = (400, 1000)
"""Both are in the middle range."""
RANGES = (
    SizeRange(text="below 400", least=0, most=LIMITS[0] - 1, asked=("CPU", "low")),
    SizeRange(text="400 to 1000", least=LIMITS[0], most=LIMITS[1], asked=("middle",)),
    SizeRange(text="above 1000", least=LIMITS[1] + 1, most=inf, asked=("high",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFigures:
    """What a policy did with the products of a range, each job counting once."""

    cpu_share: float
    relative_clock: float | None
    """On GPUs; None where no job ran on one."""
    clock_position: float | None
    """Between the lowest (0) and the highest clock (1) of GPUs with several; None where no job ran on one."""

    @property
    def level(self) -> Level:
        """Where more than half ran, if on CPUs; else the third in which the mean clock lies."""
        if self.cpu_share > 0.5:
            return "CPU"
        if self.clock_position is None:
            return "one clock"
        return "low" if self.clock_position < 1.0 / 3.0 else "middle" if self.clock_position <= 2.0 / 3.0 else "high"


class _Start(NamedTuple):
    """The last start of a job."""

    place: Place
    clock: int
    devices: int

    @property
    def relative_clock(self) -> float:
        clocks = self.place.device.relative_clocks
        return clocks[self.clock] / clocks[-1]

    @property
    def has_clocks(self) -> bool:
        """Whether it ran on a GPU with more than one clock."""
        return not self.place.device.is_cpu and len(self.place.device.relative_clocks) > 1

    @property
    def clock_position(self) -> float:
        clocks = self.place.device.relative_clocks
        return (clocks[self.clock] - clocks[0]) / (clocks[-1] - clocks[0])


def sized_case(section: Section, effort: Effort) -> Case | None:
    """Return the case whose products are looked at, with one seed and half a day of arrivals; None where it is not."""
    case = next((case for case in section.cases if case.key == KEY), None) if section.key == KEY else None
    if case is None:
        return None
    seconds = _HOURS * 3600.0 * effort.length_share
    return replace(case, rules=RULES, plan=replace(case.plan, seeds=case.plan.seeds[:1], horizon_seconds=seconds))


def sized_run(plan: ArenaPlan, policy: str, rule_text: str, seed: int) -> dict[int, dict[str, float]]:
    """Return figures of a run by matrix size. What a worker process does.

    Raises:
        SlurmEnergyError: the run cannot be, or is below a bound.
    """
    return size_figures(finished_run(plan, policy, rule_text, seed))


def size_figures(run: ArenaRun) -> dict[int, dict[str, float]]:
    """Return figures by matrix size, of the jobs that started; one that no job has is missing.

    `jobs`, their mean `devices`, `cpu_share` of them on CPUs, `settable_share` on GPUs with more than one clock; the
    mean `relative_clock` (over the device's highest) on all GPUs, and the mean `clock_position` between lowest (0) and
    highest (1) on those with more than one.
    """
    places, outcome = places_of(run.world), run.outcome
    starts: dict[int, list[_Start]] = {size: [] for size in MATRIX_SIDES}
    columns = zip(run.jobs, outcome.place.tolist(), outcome.clock.tolist(), outcome.gpus.tolist(), strict=True)
    for job, place, clock, devices in columns:
        size = _SIZE_OF_KIND.get(job.kind)
        if size is not None and place >= 0:
            starts[size].append(_Start(places[place], clock, devices))
    return {size: _figures(found) for size, found in starts.items() if found}


def _figures(starts: list[_Start]) -> dict[str, float]:
    on_gpus = [start for start in starts if not start.place.device.is_cpu]
    with_clocks = [start for start in on_gpus if start.has_clocks]
    means = {
        "devices": _mean((start.devices, 1.0) for start in starts),
        "relative_clock": _mean((start.relative_clock, 1.0) for start in on_gpus),
        "clock_position": _mean((start.clock_position, 1.0) for start in with_clocks),
    }
    return {
        "jobs": float(len(starts)),
        "cpu_share": 1.0 - len(on_gpus) / len(starts),
        "settable_share": len(with_clocks) / len(starts),
    } | {name: mean for name, mean in means.items() if mean is not None}


def range_figures(by_size: Mapping[int, Figures], sizes: SizeRange) -> RangeFigures | None:
    """Return figures of a range, None where it has no jobs."""
    rows = [figures for size, figures in by_size.items() if size in sizes]
    cpu_share = _mean((row["cpu_share"], row["jobs"]) for row in rows)
    if cpu_share is None:
        return None
    on_gpus, with_clocks = ([row for row in rows if name in row] for name in ("relative_clock", "clock_position"))
    return RangeFigures(
        cpu_share=cpu_share,
        relative_clock=_mean((row["relative_clock"], row["jobs"] * (1.0 - row["cpu_share"])) for row in on_gpus),
        clock_position=_mean((row["clock_position"], row["jobs"] * row["settable_share"]) for row in with_clocks),
    )


def clock_rise(by_size: Mapping[int, Figures]) -> Rise:
    """Return how the mean clock position goes over the sizes of which at least half the jobs ran on GPUs."""
    clocks = [
        figures["clock_position"]
        for _, figures in sorted(by_size.items())
        if figures["cpu_share"] <= 0.5 and "clock_position" in figures
    ]
    if len(clocks) < 2:
        return "-"
    if max(clocks) - min(clocks) <= _MAX_FALL:
        return "flat"
    falls = any(after < before - _MAX_FALL for before, after in pairwise(clocks))
    return "does not rise" if falls else "rises"


def ranges_as_asked(by_size: Mapping[int, Figures]) -> tuple[int, int]:
    """Return in how many ranges a policy does what is asked, and how many have jobs."""
    found = [(sizes, range_figures(by_size, sizes)) for sizes in RANGES]
    met = [figures.level in sizes.asked for sizes, figures in found if figures is not None]
    return sum(met), len(met)


def matrix_size_tables(found: MatrixSizes, folder: str) -> Iterator[str]:
    """Yield what policies do with matrix products by size, and whether it is what the paper says of its scheduler."""
    yield "### Matrix products by size"
    yield " ".join(_MATRIX_SIZES.format(world=KEY, hours=found.hours, seed=found.seed).split())
    if found.sizes:
        yield ""
        yield f"![Matrix products by size]({folder}/{PLOT})"
        yield ""
        yield from _size_tables(found)
    for failure in found.failures:
        yield ""
        yield f"Failed: {failure}"


def _size_tables(found: MatrixSizes) -> Iterator[str]:
    asked = [" or ".join(sizes.asked) for sizes in RANGES]
    rows = [["*asked*", *asked, "rises", NONE]]
    labels = [label for label in found.texts if label in found.sizes]
    for label in labels:
        by_size = found.sizes[label]
        met, of = ranges_as_asked(by_size)
        cells = [_range_cell(by_size, sizes) for sizes in RANGES]
        rows.append([f"`{label}`", *cells, clock_rise(by_size), f"{met} of {of} as asked"])
    yield from table(["policy", *(sizes.text for sizes in RANGES), "clock over size", "verdict"], rows)
    yield ""
    every = sorted({size for label in labels for size in found.sizes[label]})
    yield from table(
        ["clock (jobs on CPUs, %)", *map(str, every)],
        [[f"`{label}`", *(_size_cell(found.sizes[label].get(size)) for size in every)] for label in labels],
    )


def _range_cell(by_size: Mapping[int, Figures], sizes: SizeRange) -> str:
    figures = range_figures(by_size, sizes)
    if figures is None:
        return NONE
    clock = "" if figures.relative_clock is None else f", clock {figures.relative_clock:.2f}"
    return f"{figures.level}: {100.0 * figures.cpu_share:.0f} % on CPUs{clock}"


def _size_cell(figures: Figures | None) -> str:
    if figures is None:
        return NONE
    clock = f"{figures['relative_clock']:.2f}" if "relative_clock" in figures else NONE
    return f"{clock} ({100.0 * figures['cpu_share']:.0f})"


def _mean(weighted: Iterable[tuple[float, float]]) -> float | None:
    """Return the mean of (value, weight), None without weight."""
    pairs = list(weighted)
    weight = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / weight if weight > 0.0 else None
