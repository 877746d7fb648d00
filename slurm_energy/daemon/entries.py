"""The journal's lines: decisions, node reports and job states as JSON."""

import json
from dataclasses import dataclass

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.plain import from_plain, to_plain
from slurm_energy.errors import ValueRangeError, WireError

DAEMON_STREAM = "daemon"
JOBS_STREAM = "jobs"
REPORTS_STREAM = "reports"
STREAMS = (DAEMON_STREAM, JOBS_STREAM, REPORTS_STREAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionEntryLine:
    """A decision and the job it was made for."""

    decision: EnergyDecision
    job: JobRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsEntryLine:
    """Reports that one node sent at once."""

    received_at_seconds: float
    reports: tuple[NodeReport, ...]
    clock_offsets_seconds: tuple[float | None, ...] = ()
    """What to add to the times of each report to have them by this host's clock; None, and nothing in the lines of
    older releases: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsEntryLine:
    """Jobs whose recorded state changed; `vanished` ones left Slurm's memory without a seen end."""

    seen_at_seconds: float
    jobs: tuple[JobState, ...]
    vanished: tuple[JobState, ...] = ()


EntryLine = DecisionEntryLine | ReportsEntryLine | JobsEntryLine

_KINDS: dict[str, type[EntryLine]] = {
    "decision": DecisionEntryLine,
    "reports": ReportsEntryLine,
    "jobs": JobsEntryLine,
}


def decision_line(decision: EnergyDecision, job: JobRequest) -> bytes:
    """Return the line of a decision."""
    return encode_entry(DecisionEntryLine(decision=decision, job=job))


def encode_entry(entry: EntryLine) -> bytes:
    """Return the journal line of an entry, without its line feed."""
    kind = next(name for name, known in _KINDS.items() if isinstance(entry, known))
    document = {"v": 1, "kind": kind, **to_plain(entry)}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def decode_entry(line: bytes) -> EntryLine:
    """Return the entry of a journal line.

    Raises:
        WireError: the line is damaged or was written by another version.
    """
    try:
        document = json.loads(line)
        kind = _KINDS[document["kind"]]
        version = document["v"]
    except (ValueError, KeyError, TypeError) as error:
        raise WireError(f"journal line {line[:80]!r} cannot be read: {error}") from error
    if version != 1:
        raise WireError(f"journal line has version {version!r}, this code reads 1")
    try:
        return from_plain(kind, document)
    except ValueRangeError as error:
        raise WireError(f"journal line cannot be read: {error}") from error
