"""Reports as one HTML page; jinja2 escapes every text."""

import time

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from slurm_energy.domain.report import EnergyReport
from slurm_energy.reporting.cells import report_cells
from slurm_energy.reporting.quantities import moment_text
from slurm_energy.reporting.visible import visible
from slurm_energy.resources import shared_directory


def render_html(report: EnergyReport, now_seconds: float | None = None) -> str:
    """Return the page of an energy report."""
    now = time.time() if now_seconds is None else now_seconds
    return page_template("energy.html.j2").render(
        cells=report_cells(report, now), cluster=report.cluster, made_at=moment_text(now)
    )


def page_template(name: str) -> Template:
    """Return a template of templates/reports: it escapes, and a name it lacks is an error."""
    environment = Environment(
        loader=FileSystemLoader(shared_directory("templates") / "reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = visible
    return environment.get_template(name)
