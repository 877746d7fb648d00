"""Reports on slowdown and on named partitions, as tables in a terminal."""

from rich.console import Console

from slurm_energy.domain.bounds_report import OpenGroup, OpenReport, SlowdownGroup, SlowdownReport
from slurm_energy.reporting.fitted import FittedColumn, FittedTable, print_fitted
from slurm_energy.reporting.quantities import energy_text, percent_text

_SLOWDOWN = ("Jobs", "Known", "Measured", "Mean slowdown", "Beyond bound", "Share", "By Slurm")
_OPEN = ("Jobs", "Could have saved", "Unknown", "Room elsewhere", "Left open")


def render_slowdown(report: SlowdownReport, console: Console) -> None:
    """Print how much longer jobs ran, by user."""
    _print(
        "Slowdown of completed jobs", _SLOWDOWN, [(one.user, _slowdown_cells(one)) for one in report.groups],
        _slowdown_cells(report.total), console,
    )  # fmt: skip
    total = report.total
    console.print(f"Slowdown is against {report.measured_from}: of the GPU type in the mean by runs or tables,")
    console.print(
        f"of the clock measured in {total.measured_jobs} jobs and else predicted (0 at the default clock); "
        f"of {total.jobs - total.known_jobs} jobs it is not known. Beyond: by more than half a point,"
    )
    console.print(
        "by the decision's clock or place. By Slurm: beyond it only since Slurm started them elsewhere by itself."
    )


def _slowdown_cells(one: SlowdownGroup) -> tuple[str, ...]:
    share = one.beyond_share
    return (
        str(one.jobs),
        str(one.known_jobs),
        str(one.measured_jobs),
        "unknown" if one.mean_slowdown is None else f"{one.mean_slowdown:+.1%}",
        str(one.beyond_jobs),
        "unknown" if share is None else percent_text(share),
        str(one.moved_jobs),
    )


def render_open(report: OpenReport, console: Console) -> None:
    """Print what named partitions cost, by user."""
    _print(
        "Jobs that named a partition", _OPEN, [(one.user, _open_cells(one)) for one in report.groups],
        _open_cells(report.total), console,
    )  # fmt: skip
    console.print("Could have saved: measured energy of the GPUs times what another partition was predicted to save")
    console.print("(--energy-open). Room elsewhere: no room for the job was seen in the named partition then.")


def _open_cells(one: OpenGroup) -> tuple[str, ...]:
    return (
        str(one.named_jobs),
        energy_text(one.left_joules),
        str(one.unknown_jobs),
        str(one.free_elsewhere_jobs),
        str(one.opened_jobs),
    )


def _print(
    title: str,
    headings: tuple[str, ...],
    rows: list[tuple[str, tuple[str, ...]]],
    total: tuple[str, ...],
    console: Console,
) -> None:
    columns = (
        FittedColumn(heading="User", shortest=8),
        *(FittedColumn(heading=one, is_number=True) for one in headings),
    )
    cells = [(user, *numbers) for user, numbers in rows]
    print_fitted(FittedTable(columns=columns, rows=cells, total=("all", *total), title=title), console)
