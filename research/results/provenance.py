"""Declared inputs of a run beside its case, seed and policy: revision of the source, version of a checkpoint."""

import subprocess
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from slurm_energy.policy.checkpoint_files import DOCUMENT_FILE, WEIGHTS_FILE

UNKNOWN = "unknown"
_CHANGED = "+changes"
_SOURCES = ("slurm_energy", "research")
_ROOT = Path(__file__).parents[2]
_DIGITS = 16
_CHECKPOINT = ", checkpoint "


@cache
def revision() -> str:
    """Return the last revision of the source, `+changes` behind it where files differ; `unknown` outside a checkout."""
    try:
        name = _git("log", "-1", "--abbrev=12", "--format=%h")
        changes = _git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return f"{name}{_CHANGED}" if changes else name or UNKNOWN


def inputs_of(text: str) -> str:
    """Return the inputs behind a policy's text: the revision, and the checkpoint's files where it names their folder.

    The shipped checkpoint belongs to the revision.
    """
    _, _, settings = text.partition(":")
    folder = dict(part.partition("=")[::2] for part in settings.split(",")).get("checkpoint", "")
    files = [Path(folder) / name for name in (DOCUMENT_FILE, WEIGHTS_FILE)]
    if not folder or not all(path.is_file() for path in files):
        return revision()
    version = sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:_DIGITS]
    return f"{revision()}{_CHECKPOINT}{version}"


def revision_of(inputs: str) -> str:
    """Return the revision among declared inputs."""
    return inputs.partition(_CHECKPOINT)[0]


def are_same(old: str, new: str, same_revisions: Sequence[str] = ()) -> bool:
    """Return whether runs with old inputs stand for runs with new ones.

    A revision with changes says nothing of the changes: it is the same as another only if it is named as such.

    Args:
        old: Declared inputs of what was run.
        new: Those of what is wanted.
        same_revisions: Revisions that count as that of the new inputs, because nothing since then moves a figure.
    """
    before, after = revision_of(old), revision_of(new)
    is_exact = before == after and not before.endswith((_CHANGED, UNKNOWN))
    return (is_exact or before in same_revisions) and old[len(before) :] == new[len(after) :]


def _git(*words: str) -> str:
    argv = ["git", *words, "--", *_SOURCES]
    return subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()
