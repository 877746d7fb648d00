"""Templates, strict: configuration files with the quoting that each kind needs, and reports as HTML pages."""

import json
import re
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, TemplateError
from markupsafe import Markup

from slurm_energy.domain.report import EnergyReport
from slurm_energy.errors import ConfigError
from slurm_energy.reporting.energy_table import report_cells
from slurm_energy.reporting.quantities import moment_text
from slurm_energy.reporting.visible import visible
from slurm_energy.resources import shared_directory

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:@,+=-]+\Z")


def render(name: str, values: Mapping[str, Any]) -> str:
    """Return a template's text.

    Raises:
        ConfigError: the template is missing, names a value that is not there, or a value does not fit the file.
    """
    try:
        return _environment().get_template(name).render(values)
    except TemplateError as error:
        raise ConfigError(f"template {name} cannot be rendered: {error}") from error


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(shared_directory("templates")),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701  # configuration files, not HTML; quoting is by filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["unit"] = unit_word
    environment.filters["cron"] = cron_word
    environment.filters["man"] = man_text
    environment.filters["script_word"] = script_word
    return environment


def unit_word(text: object) -> str:
    """Return a word for a systemd unit: % is doubled, anything unusual is quoted."""
    word = _one_line(str(text)).replace("%", "%%")
    return (
        word if _PLAIN_WORD.match(word.replace("%%", "")) else json.dumps(word, ensure_ascii=False).replace("$", "$$")
    )


def cron_word(text: object) -> str:
    """Return a word for a crontab's command: quoted for the shell, % behind a backslash."""
    word = _one_line(str(text))
    quoted = word if _PLAIN_WORD.match(word) else "'" + word.replace("'", "'\\''") + "'"
    return quoted.replace("%", "\\%")


def script_word(text: object) -> str:
    """Return a word of a batch script, where sbatch and the shell quote differently: one that needs no quotes.

    Raises:
        ConfigError: it has other characters.
    """
    word = str(text)
    if word and not _PLAIN_WORD.match(word):
        raise ConfigError(
            f"{word[:200]!r} cannot stand in a batch script: use letters, digits and _ . / : @ , + = - only"
        )
    return word


def man_text(text: object) -> str:
    """Return text for a manual page: nothing in it is taken for a request."""
    lines = str(text).replace("\\", "\\e").replace("-", "\\-").split("\n")
    return "\n".join(f"\\&{line}" if line[:1] in {".", "'"} else line for line in lines)


def _one_line(text: str) -> str:
    if any(not letter.isprintable() for letter in text):
        raise ConfigError(f"{text[:80]!r} has control characters: it cannot stand in a configuration file")
    return text


def render_html(report: EnergyReport, now_seconds: float | None = None) -> str:
    """Return the page of an energy report."""
    now = time.time() if now_seconds is None else now_seconds
    return page_template("energy.html.j2").render(
        cells=report_cells(report, now), cluster=report.cluster, made_at=moment_text(now), plots=_plots(report)
    )


def _plots(report: EnergyReport) -> list[dict[str, str | Markup]]:
    """Return a report's plots; none where matplotlib, which is no part of the base, is not installed."""
    try:
        from slurm_energy.reporting.plots import energy_plots  # noqa: PLC0415  # see above
    except ImportError:
        return []
    return energy_plots(report)


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
