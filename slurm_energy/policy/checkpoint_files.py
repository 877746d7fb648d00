"""The files of a learned policy, as far as they can be read without torch.

A checkpoint is a folder with `checkpoint.json`, which says what it is, and `weights.safetensors`. The folder may be
named through a symbolic link, so that a site can switch between two; it is opened once, and both files come from what
was opened. The files themselves must be regular files of that folder: a link in their place is refused. Nothing in
either file can name code to run.
"""

import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from slurm_energy.errors import CheckpointError, ConfigError
from slurm_energy.forms import shown
from slurm_energy.graph import schema
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.weights_file import check_weights

FORMAT_VERSION = 1
DOCUMENT_FILE = "checkpoint.json"
WEIGHTS_FILE = "weights.safetensors"
MAX_DOCUMENT_BYTES = 1024 * 1024
MAX_WEIGHTS_BYTES = 512 * 1024 * 1024
MAX_METRICS = 1000
FilesMark: TypeAlias = tuple[tuple[int, ...] | None, ...]

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}\Z")
_METRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/ -]{0,127}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_SEAL = "document_sha256"


def feature_widths() -> dict[str, int]:
    """Return the number of columns of every feature list of this version's schema."""
    widths = {name: schema.width(features) for name, features in schema.VERTICES.items()}
    widths |= {"-".join(edge): schema.width(features) for edge, features in schema.EDGES.items() if features}
    return widths | {"clock": schema.width(schema.CLOCK)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetadata:
    """What a checkpoint says of itself."""

    name: str
    version: str
    """With the name, what decisions are recorded under: 1 to 64 letters, digits, `.`, `_`, `+`, `-`."""
    architecture: NetworkConfig
    training_data_sha256: str
    """Hash of the data set that the weights were learned from."""
    created_at_seconds: float
    """Unix time."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What was measured of it, by name."""
    schema_version: int = schema.SCHEMA_VERSION
    widths: Mapping[str, int] = field(default_factory=feature_widths)
    weights_sha256: str = "0" * 64
    """Hash of the weights' file; set when the checkpoint is saved."""

    def __post_init__(self) -> None:
        for thing, text, form, meaning in (
            ("name", self.name, _LABEL, "1 to 64 letters, digits, '.', '_', '+' or '-'"),
            ("version", self.version, _LABEL, "1 to 64 letters, digits, '.', '_', '+' or '-'"),
            ("training_data_sha256", self.training_data_sha256, _SHA256, "64 hexadecimal digits"),
            ("weights_sha256", self.weights_sha256, _SHA256, "64 hexadecimal digits"),
        ):
            if not isinstance(text, str) or not form.match(text):
                raise CheckpointError(f"checkpoint's {thing} is {shown(text)}, it must be {meaning}")
        if not _is_finite(self.created_at_seconds) or not 0.0 <= self.created_at_seconds < 1e11:
            raise CheckpointError(
                f"checkpoint's created_at_seconds is {shown(self.created_at_seconds)}, it must be a Unix time"
            )
        if not isinstance(self.metrics, Mapping) or len(self.metrics) > MAX_METRICS:
            raise CheckpointError(f"checkpoint's metrics are no table of up to {MAX_METRICS} numbers")
        for name, value in self.metrics.items():
            if not _METRIC.match(name) or not _is_finite(value):
                raise CheckpointError(
                    f"checkpoint's metric {shown(name)} is {shown(value)}, not a plain name and a finite number"
                )

    def document(self) -> dict[str, Any]:
        """Return what `checkpoint.json` holds, its seal included."""
        document: dict[str, Any] = {"format": FORMAT_VERSION}
        document |= {item.name: getattr(self, item.name) for item in fields(self)}
        document |= {
            "architecture": self.architecture.document(),
            "widths": dict(self.widths),
            "metrics": dict(self.metrics),
        }
        return {**document, _SEAL: _seal(document)}


class CheckpointFolder:
    """An opened folder of a checkpoint."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the bytes of one of its files.

        Raises:
            CheckpointError: it is missing, no regular file, larger than `max_bytes`, or cannot be read.
        """
        with self._opened(name, max_bytes) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise CheckpointError(f"{self.path / name} grew over {max_bytes} bytes while it was read")
        return data

    @contextmanager
    def _opened(self, name: str, max_bytes: int) -> Iterator[int]:
        path = self.path / name
        try:
            # Without O_NONBLOCK a FIFO in the file's place would hold the reader up for ever.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist: {self.path} is no checkpoint") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be opened as a regular file: {error.strerror or error}") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path} is no regular file")
            if status.st_size > max_bytes:
                raise CheckpointError(f"{path} has {status.st_size} bytes, at most {max_bytes} are read")
            yield descriptor
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        finally:
            os.close(descriptor)


@contextmanager
def open_folder(path: Path) -> Iterator[CheckpointFolder]:
    """Yield the folder, opened.

    Raises:
        CheckpointError: it is missing, no folder, or cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint folder {path} does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"checkpoint folder {path} cannot be opened: {reason}") from error
    try:
        yield CheckpointFolder(path, descriptor)
    finally:
        os.close(descriptor)


def check_files(path: Path) -> CheckpointMetadata:
    """Return what a checkpoint says of itself, after every check that needs no torch.

    Whether the tensors are those of the network is checked where they are loaded.

    Raises:
        CheckpointError: the folder or a file cannot be used or is damaged, or the checkpoint is of another version.
    """
    with open_folder(path) as folder:
        metadata = read_metadata(folder)
        read_weights(folder, metadata)
    return metadata


def read_weights(folder: CheckpointFolder, metadata: CheckpointMetadata) -> bytes:
    """Return the weights' file, which is whole and the one that the document means.

    Raises:
        CheckpointError: it cannot be read, is another or is damaged.
    """
    weights = folder.read(WEIGHTS_FILE, MAX_WEIGHTS_BYTES)
    file, found = folder.path / WEIGHTS_FILE, sha256(weights)
    if found != metadata.weights_sha256:
        raise CheckpointError(f"{file} has SHA-256 {found}, {DOCUMENT_FILE} says {metadata.weights_sha256}")
    try:
        check_weights(weights)
    except CheckpointError as error:
        raise CheckpointError(f"{file} {error}") from error
    return weights


def files_mark(path: Path) -> FilesMark:
    """Return what is another when a checkpoint's files are exchanged or written; they are not read."""
    return tuple(_file_mark(path / name) for name in (DOCUMENT_FILE, WEIGHTS_FILE))


def _file_mark(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_metadata(folder: CheckpointFolder) -> CheckpointMetadata:
    """Return what a checkpoint's folder says of itself.

    Raises:
        CheckpointError: `checkpoint.json` cannot be used, or is of another format or schema version.
    """
    file = folder.path / DOCUMENT_FILE
    document = _parsed(folder.read(DOCUMENT_FILE, MAX_DOCUMENT_BYTES), file)
    if document.get("format") != FORMAT_VERSION:
        raise CheckpointError(f"{file} has format {shown(document.get('format'))}, this code reads {FORMAT_VERSION}")
    if document.get("schema_version") != schema.SCHEMA_VERSION:
        raise CheckpointError(
            f"{file} was made for schema version {shown(document.get('schema_version'))} of the graph's features, "
            f"this code has version {schema.SCHEMA_VERSION}: train again or install the version that it was made with"
        )
    seal = document.pop(_SEAL, None)
    if seal != _seal(document):
        raise CheckpointError(f"{file} was changed after it was written: its {_SEAL} is {shown(seal)}")
    _check_keys(document, file)
    _check_widths(document["widths"], file)
    try:
        architecture = NetworkConfig.parse(document["architecture"])
        known = {item.name: document[item.name] for item in fields(CheckpointMetadata)}
        return CheckpointMetadata(**{**known, "architecture": architecture})
    except (ConfigError, CheckpointError) as error:
        raise CheckpointError(f"{file}: {error}") from error


def sha256(data: bytes) -> str:
    """Return the hash of some bytes as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _parsed(data: bytes, file: Path) -> dict[str, Any]:
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_table)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is no JSON document that can be read: {shown(str(error))}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{file} holds a {type(document).__name__}, a table is needed")
    return document


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key is there twice")
    return table


def _check_keys(document: Mapping[str, Any], file: Path) -> None:
    needed = {"format", *(item.name for item in fields(CheckpointMetadata))}
    for key in sorted(needed.symmetric_difference(document)):
        raise CheckpointError(f"{file} {'lacks' if key in needed else 'has the unknown'} key {shown(key)}")


def _check_widths(widths: object, file: Path) -> None:
    ours = feature_widths()
    if not isinstance(widths, dict):
        raise CheckpointError(f"{file}: widths are {shown(widths)}, a table is needed")
    for key in sorted({*ours, *widths}):
        theirs = widths.get(key)
        if isinstance(theirs, bool) or theirs != ours.get(key):
            raise CheckpointError(
                f"{file}: feature list {shown(key)} has width {shown(theirs)} there and {ours.get(key)} here"
            )


def _seal(document: Mapping[str, Any]) -> str:
    """Return the hash that tells whether a document was changed; spaces and the order of keys do not count."""
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint's document cannot be hashed: {error}") from error
    return sha256(text.encode("ascii"))


def _is_finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # also for integers that no float can hold
