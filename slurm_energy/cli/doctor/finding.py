"""What a check says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from slurm_energy.config import DEFAULT_CONFIG_PATH, Config
from slurm_energy.slurm.plugin_file import Release


class Verdict(StrEnum):
    """How an assumption stands, the most severe first."""

    FAIL = "fail"
    """Does not work."""
    WARN = "warn"
    """Works, but something is worth knowing."""
    SKIP = "skip"
    """Could not be looked at here and now."""
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One assumption: how it stands, what was found, and how to fix it."""

    subject: str
    verdict: Verdict
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
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
    config_file: Path = DEFAULT_CONFIG_PATH

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


def warn(subject: str, found: str, fix: str) -> Finding:
    """Return a finding that is worth knowing."""
    return Finding(subject=subject, verdict=Verdict.WARN, found=found, fix=fix)


def fail(subject: str, found: str, fix: str) -> Finding:
    """Return a finding that does not hold."""
    return Finding(subject=subject, verdict=Verdict.FAIL, found=found, fix=fix)


def skip(subject: str, found: str, fix: str = "nothing, if that is as it should be") -> Finding:
    """Return a finding that could not be looked at."""
    return Finding(subject=subject, verdict=Verdict.SKIP, found=found, fix=fix)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with what does not work first; of equal ones the order stays."""
    order = list(Verdict)
    return sorted(findings, key=lambda finding: order.index(finding.verdict))


def several(names: Iterable[str], shown: int = 6) -> str:
    """Return names as a person reads them, not all of very many."""
    found = list(dict.fromkeys(names))
    more = len(found) - shown
    return ", ".join(found[:shown]) + (f" and {more} more" if more > 0 else "")
