"""A candidate policy: the folder in which a night's training leaves what may take the place of the live policy.

`candidate.toml` says what it is and what it was made of. Each part beside it may be missing or be replaced alone:
`weights.json` (the rule and its prices), `estimates.json` (clocks that runs of a name measured), `curves.json` (the
site's own boards, in the form of `calibrate`), `network/` (a checkpoint). What is missing stays as the site has it.
Nothing in the folder can name code to run.
"""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.plain import from_plain, to_plain
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.errors import (
    CandidateError,
    CheckpointError,
    ConfigError,
    PolicyError,
    SpoolError,
    ValueRangeError,
)
from slurm_energy.files import sync_directory, write_atomically
from slurm_energy.policy.checkpoint_files import check_files
from slurm_energy.policy.registry import LEARNED, policy_fault
from slurm_energy.policy.rules.settings import policy_name
from slurm_energy.settings import read_toml, toml_text

FORMAT_VERSION = 1
DOCUMENT_FILE = "candidate.toml"
WEIGHTS_FILE = "weights.json"
ESTIMATES_FILE = "estimates.json"
CURVES_FILE = "curves.json"
NETWORK_FOLDER = "network"
MAX_FILE_BYTES = 64 * 1024 * 1024
_MAX_FILES = 100
"""In a candidate's folder."""
_DAMAGED = (
    ConfigError,
    ValueRangeError,
    PolicyError,
    CheckpointError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What reading damaged files may raise."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """What a candidate was made from."""

    cluster: str = ""
    jobs: int = 0
    """Ended runs that were read."""
    measured_jobs: int = 0
    """Those with a reading of energy of sufficient quality."""
    from_seconds: float = 0.0
    """Unix time of the first end."""
    split_seconds: float = 0.0
    """Unix time between what was learned from and what was held out."""
    until_seconds: float = 0.0
    """Unix time of the last end."""
    digest: str = ""
    """SHA-256 of the rows."""
    notes: tuple[str, ...] = ()
    """What was found of them: drift, missing days, GPU types that came or vanished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameClocks:
    """The clocks that runs of one user's job name measured, by GPU type."""

    user_id: int
    group: str
    """Job name, or what stands for it (`estimation.job_groups`)."""
    clocks: Mapping[GpuTypeName, LearnedClock]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEstimates:
    """What a site's runs say beyond what the daemon works out at every look."""

    clocks: tuple[NameClocks, ...] = ()
    time_factors: Mapping[str, float] = field(default_factory=dict)
    """By GPU type: measured over expected run time, median over names."""
    power_factors: Mapping[str, float] = field(default_factory=dict)
    """By GPU type: measured watts over the energy model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePolicy:
    """A candidate as its folder says it."""

    candidate_id: str
    made_at_seconds: float
    parent: str = ""
    """Candidate that was live when it was made; empty for the configured policy."""
    seeds: tuple[int, ...] = ()
    data: TrainingData = field(default_factory=TrainingData)
    policy: str | None = None
    """`total-cost:V=20,...` as `policy.name` takes it; None: the configured policy stays."""
    estimates: SiteEstimates | None = None
    curves_file: Path | None = None
    network: Path | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured of it on the held-out days, beside `incumbent_...`."""
    folder: Path | None = None
    """Where it was read from."""

    def __post_init__(self) -> None:
        if not _ID.match(self.candidate_id):
            raise CandidateError(
                f"candidate id {self.candidate_id[:64]!r} is not 1 to 64 letters, digits, '.', '_' or '-'"
            )
        if not isfinite(self.made_at_seconds) or self.made_at_seconds < 0.0:
            raise CandidateError(f"candidate {self.candidate_id}: made_at_seconds is {self.made_at_seconds}, no time")
        for name, value in self.figures.items():
            if not isfinite(value):
                raise CandidateError(f"candidate {self.candidate_id}: figure {name[:64]!r} is {value}, not finite")

    @property
    def parts(self) -> tuple[str, ...]:
        """What it brings of its own, by file."""
        found = {
            WEIGHTS_FILE: self.policy,
            ESTIMATES_FILE: self.estimates,
            CURVES_FILE: self.curves_file,
            NETWORK_FOLDER: self.network,
        }
        return tuple(name for name, part in found.items() if part is not None)

    def configured(self, config: Config) -> Config:
        """Return the site's configuration with this candidate's parts in it: what makes the policy that it is."""
        policy = config.policy
        if self.policy is not None:
            policy = replace(policy, name=self.policy)
        if self.network is not None:
            policy = replace(policy, name="gnn", checkpoint=str(self.network))
        if self.curves_file is not None:
            policy = replace(policy, curves_file=str(self.curves_file))
        return replace(config, policy=policy)

    def clocks_by_name(self) -> Mapping[tuple[int | str, str], Mapping[GpuTypeName, LearnedClock]]:
        """Return its clocks in the form in which decisions look them up."""
        names = () if self.estimates is None else self.estimates.clocks
        return {(one.user_id, one.group): one.clocks for one in names}


def candidates_folder(config: Config) -> Path:
    """Return where a site's candidates lie."""
    return Path(config.nightly.directory or Path(config.daemon.state_directory) / "candidates")


def configured_policy(made_at_seconds: float = 0.0) -> CandidatePolicy:
    """Return what the site's configuration alone is: the incumbent where no candidate is live."""
    return CandidatePolicy(candidate_id="configured", made_at_seconds=made_at_seconds)


def read_candidate(folder: Path) -> CandidatePolicy:
    """Return the candidate in a folder, after every check that needs no learning library.

    Raises:
        CandidateError: a file is missing, damaged, another than its document says, or of another version.
    """
    _check_regular(folder)
    try:
        document = read_toml(folder / DOCUMENT_FILE, "candidate", if_missing="name the folder of a candidate")
        if document.get("format") != FORMAT_VERSION:
            raise CandidateError(
                f"candidate {folder} has format {str(document.get('format'))[:20]}, this code reads {FORMAT_VERSION}: "
                "run slurm-energy retrain again"
            )
        parts = {name: _checked_part(folder, name, digest) for name, digest in _files_of(document, folder).items()}
        found = CandidatePolicy(
            candidate_id=str(document.get("id", "")),
            made_at_seconds=float(document.get("made_at_seconds", -1.0)),
            parent=str(document.get("parent", "")),
            seeds=tuple(int(seed) for seed in document.get("seeds", [])),
            data=from_plain(TrainingData, document.get("data", {}), "candidate's [data]"),
            policy=_policy_of(parts.get(WEIGHTS_FILE), folder),
            estimates=_estimates_of(parts.get(ESTIMATES_FILE), folder),
            curves_file=folder / CURVES_FILE if CURVES_FILE in parts else None,
            network=folder / NETWORK_FOLDER if NETWORK_FOLDER in document.get("files", {}) else None,
            figures={str(name): float(value) for name, value in document.get("figures", {}).items()},
            folder=folder,
        )
        if found.network is not None:
            check_files(found.network)
    except _DAMAGED as error:
        raise CandidateError(f"candidate {folder} cannot be read: {error}") from error
    return found


def _check_regular(folder: Path) -> None:
    """Refuse a folder with a pipe, a device or a link in it: reading one may never end.

    Raises:
        CandidateError: there is one, or the folder cannot be read.
    """
    try:
        for number, path in enumerate(folder.rglob("*")):
            mode = path.lstat().st_mode
            if number >= _MAX_FILES or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise CandidateError(f"{folder} holds {path.name}, which is no file of a candidate")
    except OSError as error:
        raise CandidateError(f"{folder} cannot be read: {error.strerror or error}") from error


def write_candidate(candidate: CandidatePolicy, folder: Path) -> CandidatePolicy:
    """Write a candidate into a new folder, whole or not at all; return it as it is read again.

    Curves and network are copied from where the candidate has them.

    Raises:
        CandidateError: the folder exists with another candidate, or it cannot be written.
    """
    if folder.exists():
        known = read_candidate(folder)
        if known.candidate_id == candidate.candidate_id:
            return known
        raise CandidateError(f"{folder} holds candidate {known.candidate_id}: choose another folder")
    building = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True, mode=0o755)
        files = {
            name: hashlib.sha256(content).hexdigest() for name, content in _write_parts(candidate, building).items()
        }
        if candidate.network is not None:
            shutil.copytree(candidate.network, building / NETWORK_FOLDER)
            files[NETWORK_FOLDER] = ""
        document = {
            "format": FORMAT_VERSION,
            "id": candidate.candidate_id,
            "made_at_seconds": candidate.made_at_seconds,
            "parent": candidate.parent,
            "seeds": list(candidate.seeds),
            "data": to_plain(candidate.data),
            "figures": dict(candidate.figures),
            "files": files,
        }
        write_atomically(building / DOCUMENT_FILE, toml_text(document).encode(), mode=0o644)
        building.rename(folder)
        sync_directory(folder.parent)
    except (OSError, SpoolError) as error:
        raise CandidateError(f"candidate {folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return read_candidate(folder)


def _write_parts(candidate: CandidatePolicy, building: Path) -> Mapping[str, bytes]:
    parts: dict[str, bytes] = {}
    if candidate.policy is not None:
        parts[WEIGHTS_FILE] = _json({"format": FORMAT_VERSION, "policy": candidate.policy})
    if candidate.estimates is not None:
        parts[ESTIMATES_FILE] = _json({"format": FORMAT_VERSION, **to_plain(candidate.estimates)})
    if candidate.curves_file is not None:
        parts[CURVES_FILE] = candidate.curves_file.read_bytes()
    for name, content in parts.items():
        write_atomically(building / name, content, mode=0o644)
    return parts


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def _files_of(document: Mapping[str, Any], folder: Path) -> Mapping[str, str]:
    files = document.get("files", {})
    unknown = sorted(set(files) - {WEIGHTS_FILE, ESTIMATES_FILE, CURVES_FILE, NETWORK_FOLDER})
    if unknown:
        raise CandidateError(f"candidate {folder} names part {unknown[0][:64]!r}, which this code does not know")
    return {name: str(digest) for name, digest in files.items() if name != NETWORK_FOLDER}


def _checked_part(folder: Path, name: str, digest: str) -> bytes:
    path = folder / name
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CandidateError(f"candidate's part {path} cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise CandidateError(f"candidate's part {path} has more than {MAX_FILE_BYTES} bytes")
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise CandidateError(f"candidate's part {path} has SHA-256 {found}, {DOCUMENT_FILE} says {digest[:64]}")
    return content


def _parsed(content: bytes, name: str, folder: Path) -> dict[str, Any]:
    def refuse(text: str) -> None:
        raise ValueError(f"{text[:64]} is not finite")

    def finite(text: str) -> float:
        number = float(text)
        if not isfinite(number):
            refuse(text)
        return number

    try:
        document = json.loads(content, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise CandidateError(f"candidate's part {folder / name} is no JSON that can be read: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT_VERSION:
        raise CandidateError(f"candidate's part {folder / name} is not of format {FORMAT_VERSION}")
    return document


def _policy_of(content: bytes | None, folder: Path) -> str | None:
    if content is None:
        return None
    text = _parsed(content, WEIGHTS_FILE, folder).get("policy")
    if not isinstance(text, str):
        raise CandidateError(f"candidate's part {folder / WEIGHTS_FILE} names no policy")
    if policy_name(text) in LEARNED:
        raise CandidateError(
            f"candidate's part {folder / WEIGHTS_FILE} names {text[:40]!r}: a network comes as {NETWORK_FOLDER}/"
        )
    fault = policy_fault(text)
    if fault is not None:
        raise CandidateError(f"candidate's part {folder / WEIGHTS_FILE}: {fault}")
    return text


def _estimates_of(content: bytes | None, folder: Path) -> SiteEstimates | None:
    if content is None:
        return None
    return from_plain(SiteEstimates, _parsed(content, ESTIMATES_FILE, folder), f"{folder / ESTIMATES_FILE}")
