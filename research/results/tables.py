"""Tables of the results page as Markdown, and those of matrix products by size."""

from collections.abc import Iterator, Mapping, Sequence

from research.results.document import Figures, MatrixSizes
from research.results.matrix_sizes import (
    KEY,
    RANGES,
    SizeRange,
    clock_rise,
    range_figures,
    ranges_as_asked,
)
from research.results.plots import MATRIX_SIZES_PLOT

NONE = "-"
"""A cell without a figure."""
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


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" + "---:|" * (len(heads) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def matrix_size_tables(found: MatrixSizes, folder: str) -> Iterator[str]:
    """Yield what policies do with matrix products by size, and whether it is what the paper says of its scheduler."""
    yield "### Matrix products by size"
    yield " ".join(_MATRIX_SIZES.format(world=KEY, hours=found.hours, seed=found.seed).split())
    if found.sizes:
        yield ""
        yield f"![Matrix products by size]({folder}/{MATRIX_SIZES_PLOT})"
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
