"""Formats of workload files, and how to tell them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.workloads import csv_file, traces
from slurm_energy.twin.workloads.replay import LoadOptions
from slurm_energy.twin.workloads.rows import open_text, read_header
from slurm_energy.twin.workloads.swf import load_swf, swf_row
from slurm_energy.twin.workloads.values import BadValue

Format = Literal["csv", "philly", "gavel", "elasticflow", "pollux", "alibaba", "swf", "sacct-json", "sacct-text"]
FORMATS: tuple[Format, ...] = get_args(Format)
_READERS: dict[Format, Callable[[Path, LoadOptions], Workload]] = {
    "csv": lambda path, options: csv_file.read_csv(path, skip_bad=options.skip_bad),
    "philly": traces.load_philly,
    "gavel": traces.load_gavel,
    "elasticflow": traces.load_elasticflow,
    "pollux": traces.load_pollux,
    "alibaba": traces.load_alibaba,
    "swf": load_swf,
}
_REQUIRED: dict[Format, tuple[str, ...]] = {
    "csv": csv_file.REQUIRED,
    "philly": traces.PHILLY.required,
    "gavel": traces.GAVEL.required,
    "elasticflow": traces.ELASTICFLOW.required,
    "pollux": traces.POLLUX.required,
    "alibaba": traces.ALIBABA.required,
}
_PEEKED_CHARACTERS = 65_536
_NEAR = 0.5


def load_workload(
    path: Path,
    format: Format | Literal["auto"] = "auto",  # noqa: A002  # the word that its users know
    skip_bad: bool | None = None,
    options: LoadOptions | None = None,
) -> Workload:
    """Return the workload of a file.

    Args:
        path: The file.
        format: `auto` recognises it by its first lines.
        skip_bad: Count rows that cannot be used instead of refusing the file; None leaves it to the options.
        options: What the format's loader may be told.

    Raises:
        WorkloadError: the format is unknown, or is accounting, which has to be converted first; the file or a row of
            it cannot be used.
    """
    chosen = options or LoadOptions()
    if skip_bad is not None:
        chosen = replace(chosen, skip_bad=skip_bad)
    name = recognised_format(path) if format == "auto" else format
    reader = _READERS.get(name)
    if reader is not None:
        return reader(path, chosen)
    if name in FORMATS:
        raise WorkloadError(
            f"workload {str(path)!r} is Slurm's accounting ({name}): replay it (twin replay --sacct FILE)"
        )
    raise WorkloadError(f"there is no workload format {name[:64]!r}; there are auto, {', '.join(FORMATS)}")


def recognised_format(path: Path) -> Format:
    """Return a file's format, told by its first lines.

    Raises:
        WorkloadError: the file cannot be read, is empty, or is of no known format.
    """
    with open_text(path) as stream:
        head = stream.read(_PEEKED_CHARACTERS)
    if not head.strip():
        raise WorkloadError(f"workload {str(path)!r} is empty")
    if head.lstrip().startswith("{"):
        return "sacct-json"
    first = head.lstrip("\r\n").splitlines()[0]
    if "jobid" in first.lower().split("|") or any(_is_accounting(first.lower().split(mark)) for mark in "|,;\t"):
        return "sacct-text"
    if _is_swf(head):
        return "swf"
    return _csv_format(path, first)


def _is_accounting(names: list[str]) -> bool:
    """Tell whether column names are those of sacct."""
    found = {name.strip().strip('"') for name in names}
    return bool({"jobid", "jobidraw"} & found) and bool({"state", "elapsed", "elapsedraw", "alloctres"} & found)


def _csv_format(path: Path, first: str) -> Format:
    """Return the format whose required columns the header has; else the nearest, whose reader tells what is missing."""
    header = set(read_header(path))
    found = {name: len(header & set(required)) / len(required) for name, required in _REQUIRED.items()}
    best = max(found, key=lambda name: found[name])
    if found[best] < _NEAR:
        raise WorkloadError(
            f"workload {str(path)!r} is of no known format; it begins {first[:64]!r}. Known are {', '.join(FORMATS)}; "
            f"the CSV of this package needs the columns {', '.join(csv_file.REQUIRED)}"
        )
    return best


def _is_swf(head: str) -> bool:
    """Tell whether the first line that is no comment has the format's 18 numbers."""
    lines = (line for line in head.splitlines() if line.strip() and not line.lstrip().startswith(";"))
    first = next(lines, None)
    if first is None:
        return head.lstrip().startswith(";")
    try:
        swf_row(first)
    except BadValue:
        return False
    return True
