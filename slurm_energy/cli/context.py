"""What every command shares: settings, times as people write them, and JSON on stdout."""

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from slurm_energy.config import Config, load_config

_AGO = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])\Z")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def settings_path() -> Path | None:
    """Return the `--config` option of the running command line."""
    context = click.get_current_context(silent=True)
    found = context.find_root().obj if context is not None else None
    path = found.get("config_path") if isinstance(found, dict) else None
    return path if isinstance(path, Path) else None


def settings() -> Config:
    """Return the settings in force.

    Raises:
        ConfigError: they cannot be used.
    """
    return load_config(settings_path())


def print_json(document: Any) -> None:
    """Write one JSON document to stdout, readable and safe for any terminal."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=True))


def moment(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Return Unix seconds from `2026-03-05`, `2026-03-05T14:30`, or so long ago: `90m`, `24h`, `7d`, `4w`."""
    if text is None:
        return None
    ago = _AGO.match(text.strip())
    if ago is not None:
        return time.time() - float(ago.group(1)) * _UNIT_SECONDS[ago.group(2)]
    try:
        return max(0.0, datetime.fromisoformat(text.strip()).timestamp())
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{text[:40]!r} is not a date such as 2026-03-05 or 2026-03-05T14:30, nor 90m, 24h, 7d, 4w",
            context,
            parameter,
        ) from None


def job_number(context: click.Context, parameter: click.Parameter, text: str) -> int:
    """Return a job id. Tasks of an array have numbers of their own: `1234_7` alone does not identify it."""
    word = text.strip()
    if re.fullmatch(r"\d+[_+].*", word):
        raise click.BadParameter(
            f"{word[:40]!r} names a part of a job: give the part's own number, which "
            f"squeue --format=%A or sacct --format=JobIDRaw shows, or {re.split('[_+]', word)[0]} for all",
            context,
            parameter,
        )
    if not (word.isascii() and word.isdigit() and 0 < int(word[:12]) <= 0xFFFFFFFF):
        raise click.BadParameter(f"{word[:40]!r} is not a job id between 1 and 4294967295", context, parameter)
    return int(word)


def optional_job_number(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a job id, None where the option is not given."""
    return None if text is None else job_number(context, parameter, text)
