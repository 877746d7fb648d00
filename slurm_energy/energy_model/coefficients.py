"""Fitted coefficients that ship with the package: one JSON file for each part, with source and fit error.

What a host draws beside its GPUs is the smallest part and stands here. The files are written
by `slurm-energy calibrate`; reading them takes the standard library alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError

FOLDER = Path(__file__).parent
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """How far a fit is from what was measured."""

    quantity: str
    """What was fitted, and on what."""
    mean_relative_error: float
    """Mean of |fitted / measured - 1|."""
    num_points: int
    """Measured values behind the mean."""
    method: str = "fit"
    """`fit`: the points are those that were fitted; else what was left out, such as `leave-pair-out`."""
    bound: float | None = None
    """The error that must not be passed, None where no bound is set."""


@cache
def coefficients(part: str) -> Mapping[str, Any]:
    """Return the document of one part, such as `scaling` for scaling.json.

    Raises:
        ConfigError: the installation lacks the file, or it is of another format.
    """
    path = FOLDER / f"{part}.json"
    try:
        document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"coefficients {path} cannot be read: {error}; install the package again") from error
    if document.get("format") != FORMAT:
        raise ConfigError(f"coefficients {path} have format {document.get('format')}, this version reads {FORMAT}")
    return document


def errors_of(document: Mapping[str, Any]) -> tuple[FitError, ...]:
    """Return the errors that a document of coefficients states."""
    return tuple(FitError(**entry) for entry in document["fit_errors"])


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """What an 8-GPU server draws beside its GPUs: constant + (per_gpu_watt - 1) of the GPUs' power.

    Fitted to percentiles of servers and GPUs of the same rank: no joint samples exist.
    """

    constant_watts: float
    """CPUs, memory, network, fans of a server whose GPUs draw nothing."""
    per_gpu_watt: float
    """Server power for each W of GPU power; what is above 1 is fans and supply losses."""


@cache
def host_share() -> HostShare:
    """Return the host's share of an 8-GPU A100 server."""
    return HostShare(**coefficients("host")["host_share"])
