"""Clock curves that a site measured on its own boards: the file that keeps them, and using them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model import operating_point, relative_speed
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.curves import WorkloadCurve, decoded_curves, put_site_curves, shipped_curves
from slurm_energy.energy_model.data_sheets import DATA_SHEETS
from slurm_energy.errors import DataFileError, ValueRangeError

FORMAT = "slurm-energy-site-curves"
_MAX_BYTES = 16 << 20
_used: list[tuple[Path | None, int, bool]] = []
"""File in use, when it was changed last, and whether curves are assumed."""
_LIKE = GpuTypeName("a100-sxm4-80gb")
"""Whose curves a type takes of which none are known, where the site permits that: the newest that was measured."""
_shipped_clocks = {name: (row.sm_clocks_mhz, row.max_sm_clock_mhz) for name, row in CATALOG.items()}


def use_site_curves(path: Path | None, *, assumed: bool = False) -> None:
    """Let every table of this process rest on a site's file; a known file is not read.

    Args:
        path: The file, None for the package alone.
        assumed: Whether types without any curve take another's in proportion.

    Raises:
        DataFileError: it cannot be read, or is none.
    """
    try:
        wanted = [(path, 0 if path is None else path.stat().st_mtime_ns, assumed)]
    except OSError as error:
        raise DataFileError(f"curves of the site {path} cannot be read: {error}") from error
    if wanted == (_used or [(None, 0, False)]):
        return
    document = {} if path is None else read_site_curves(path)
    curves: dict[GpuTypeName, tuple[WorkloadCurve, ...]] = {}
    for name, (clocks, highest) in _shipped_clocks.items():
        CATALOG[name] = replace(CATALOG[name], sm_clocks_mhz=clocks, max_sm_clock_mhz=highest)
    for text, entry in document.get("gpu_types", {}).items():
        name = GpuTypeName(text)
        curves[name] = _curves(path, name, entry)
        if not CATALOG[name].sm_clocks_mhz:
            clocks = tuple(entry["supported_clocks_mhz"])
            CATALOG[name] = replace(CATALOG[name], sm_clocks_mhz=clocks, max_sm_clock_mhz=clocks[-1])
    put_site_curves(curves, _assumed() if assumed else {})
    for cached in (
        operating_point.clock_table_of,
        operating_point.min_measured_watts,
        operating_point.mean_measured_watts,
        relative_speed.relative_cost,
    ):
        getattr(cached, "cache_clear", lambda: None)()
    _used[:] = wanted


def _assumed() -> dict[GpuTypeName, tuple[WorkloadCurve, ...]]:
    """Return curves for every type whose clocks and limit are known."""
    curves, like = shipped_curves()[_LIKE], DATA_SHEETS[_LIKE]
    found: dict[GpuTypeName, tuple[WorkloadCurve, ...]] = {}
    for name, row in CATALOG.items():
        sheet, high_mhz, limit_watts = DATA_SHEETS.get(name), row.max_sm_clock_mhz, row.power_limit_watts
        if not row.sm_clocks_mhz or high_mhz is None or limit_watts is None:
            continue
        is_same_chip = sheet is not None and (sheet.lanes, sheet.peak_tflops) == (like.lanes, like.peak_tflops)
        found[name] = tuple(
            curve.in_proportion(name, high_mhz, 1.0 if is_same_chip else limit_watts / curve.power_limit_watts)
            for curve in curves
        )
    return found


def _curves(path: Path | None, name: GpuTypeName, entry: Mapping[str, Any]) -> tuple[WorkloadCurve, ...]:
    if name not in CATALOG:
        raise DataFileError(f"curves of the site {path}: GPU type {name[:64]!r} is not in the catalogue")
    try:
        clocks = [int(clock) for clock in entry["supported_clocks_mhz"]]
        curves = decoded_curves(name, entry)
        if not curves or not clocks or clocks != sorted(clocks):
            raise DataFileError(f"curves of the site {path}: GPU type {name} has no curve or no clocks")
    except (KeyError, TypeError, ValueError, ValueRangeError) as error:
        raise DataFileError(
            f"curves of the site {path}: GPU type {name} has a bad or missing value: {error}"
        ) from error
    return curves


def read_site_curves(path: Path) -> dict[str, Any]:
    """Return the document of a file.

    Raises:
        DataFileError: it cannot be read, or is none.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataFileError(f"curves of the site {path} have more than {_MAX_BYTES} bytes")
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataFileError(f"curves of the site {path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataFileError(f"{path} is no file of the site's curves: slurm-energy calibrate --node makes one")
    types = document.get("gpu_types")
    if not isinstance(types, dict) or not all(isinstance(entry, dict) for entry in types.values()):
        raise DataFileError(f"curves of the site {path} have no table gpu_types")
    return document


@cache
def empty_document() -> Mapping[str, Any]:
    """Return a document without a type."""
    return {"format": FORMAT, "gpu_types": {}}
