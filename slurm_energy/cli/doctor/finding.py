"""What a check says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.slurm.plugin_file import Release


class Verdict(StrEnum):
    """How an assumption stands."""

    OK = "ok"
    WARN = "warn"
    """Works, but something is worth knowing."""
    FAIL = "fail"
    """Does not work."""
    SKIP = "skip"
    """Could not be looked at here and now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One assumption: how it stands, what was found, and how to mend it."""

    subject: str
    verdict: Verdict
    found: str
    mend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the checks may look at."""

    config: Config
    roles: tuple[str, ...]
    environment: Mapping[str, str]
    slurm_conf: Path
    conf: Mapping[str, str]
    """Keys of slurm.conf in lower case: from slurmctld where it answers, else from the file."""
    slurm_version: Release | None
    """Of Slurm's commands."""
    root: Path = field(default=Path("/"))

    @property
    def is_controller(self) -> bool:
        """Whether slurmctld and the daemon run here."""
        return "controller" in self.roles

    @property
    def is_node(self) -> bool:
        """Whether slurmd runs here."""
        return "node" in self.roles


def ok(subject: str, found: str) -> Finding:
    """Return a finding that holds."""
    return Finding(subject=subject, verdict=Verdict.OK, found=found)


def warn(subject: str, found: str, mend: str) -> Finding:
    """Return a finding that is worth knowing."""
    return Finding(subject=subject, verdict=Verdict.WARN, found=found, mend=mend)


def fail(subject: str, found: str, mend: str) -> Finding:
    """Return a finding that does not hold."""
    return Finding(subject=subject, verdict=Verdict.FAIL, found=found, mend=mend)


def skip(subject: str, found: str, mend: str = "") -> Finding:
    """Return a finding that could not be looked at."""
    return Finding(subject=subject, verdict=Verdict.SKIP, found=found, mend=mend)
