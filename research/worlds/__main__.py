"""Write the tables beside the shipped worlds from the data sets: `python -m research.worlds DATA_FOLDER`.

Needs the `twin` extra. With --check nothing is written: exit 1 when a packaged table is not what the data give.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import slurm_energy
from research.worlds.gavel import gavel_document
from research.worlds.matrix import tum_document
from slurm_energy.errors import ConfigError

_WORLDS = Path(slurm_energy.__file__).parent / "twin" / "worlds"
_FIRST_HOUR = datetime(2022, 9, 7)
_HOURS = 116 * 24
"""To the end of the year: longer than the Philly trace, which begins on 7 September."""


def hourly_table(data: Path) -> str:
    """Return hourly carbon intensity and price as CSV: California's grid and Virginia's tariff, from 7 September 2022.

    Hours without a value take the one before. The tariff's hours are local, the grid's UTC: both are read as the
    trace's clock.
    """
    carbon = _carbon(data / "carbon_intensity_us_2022" / "hourly_carbon_intensity.csv", "CISO")
    price = _prices(data / "tou_electricity_price_us" / "tou_rates.csv", "virginia")
    lines = ["seconds,carbon_grams_per_kwh,usd_per_kwh"]
    last = 0.0
    for hour in range(_HOURS):
        time = _FIRST_HOUR + timedelta(hours=hour)
        last = carbon.get(time, last)
        day_type = "weekend" if date.weekday(time) >= 5 else "weekday"
        lines.append(f"{3600 * hour},{last:g},{price[day_type, time.month, time.hour]:g}")
    return "\n".join(lines) + "\n"


def compact_json(document: Mapping[str, Any]) -> str:
    """Return a document as JSON with one kind or pair on each line."""
    devices = document["devices"]
    head = {key: value for key, value in document.items() if key != "devices"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    parts = []
    for name, device in devices.items():
        kinds = ",\n".join(f"    {json.dumps(kind)}: {json.dumps(value)}" for kind, value in device["kinds"].items())
        text = f'  {json.dumps(name)}: {{\n   "kinds": {{\n{kinds}\n   }}'
        if "pairs" in device:
            pairs = ",\n".join(f"    {json.dumps(pair)}" for pair in device["pairs"])
            text += f',\n   "pairs": [\n{pairs}\n   ]'
        parts.append(text + "\n  }")
    return "{\n" + "\n".join(lines) + '\n "devices": {\n' + ",\n".join(parts) + "\n }\n}\n"


TABLES: Mapping[str, Callable[[Path], str]] = {
    "gavel-shared.json": lambda data: compact_json(gavel_document(data)),
    "tum128.json": lambda data: compact_json(tum_document(data)),
    "philly-a100-hourly.csv": hourly_table,
}
"""Text of each file by its name."""


def main(arguments: list[str] | None = None) -> int:
    """Write or check the tables; return 0, 1 when they differ, 2 when the data cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m research.worlds", description=__doc__)
    parser.add_argument("data", type=Path, help="folder that holds the data sets")
    parser.add_argument("--output", type=Path, default=_WORLDS, help="folder to write to; the package's by default")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args(arguments)
    differing = []
    for name, make in TABLES.items():
        try:
            text = make(options.data)
        except (OSError, KeyError, ValueError, ConfigError) as error:
            sys.stderr.write(f"{name} cannot be made from {options.data}: {type(error).__name__}: {error}\n")
            return 2
        path = options.output / name
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            differing.append(name)
    if differing:
        sys.stderr.write(f"not what the data give: {', '.join(differing)}\n")
    return 1 if differing else 0


def _carbon(path: Path, region: str) -> dict[datetime, float]:
    with path.open(newline="", encoding="utf-8") as file:
        return {
            datetime.fromisoformat(row["timestamp_utc"]): float(row["carbon_gco2_per_kwh"])
            for row in csv.DictReader(file)
            if row["region"] == region and row["carbon_gco2_per_kwh"]
        }


def _prices(path: Path, location: str) -> dict[tuple[str, int, int], float]:
    with path.open(newline="", encoding="utf-8") as file:
        return {
            (row["day_type"], int(row["month"]), int(row["hour"])): float(row["usd_per_kwh"])
            for row in csv.DictReader(file)
            if row["location"] == location
        }


if __name__ == "__main__":
    sys.exit(main())
