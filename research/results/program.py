"""What made a run beside its case and its policy's text: this program's own files, and a checkpoint's."""

from functools import cache
from hashlib import sha256
from pathlib import Path

import slurm_energy
from slurm_energy.policy.checkpoint_files import DOCUMENT_FILE, WEIGHTS_FILE

_PACKAGE = Path(slurm_energy.__file__).parent
_KINDS = frozenset({".py", ".toml", ".json", ".csv", ".safetensors"})
_TELLS = ("cli/", "evaluation/results/")
"""Where results are told and not made; but for these:"""
_MAKES = frozenset(f"evaluation/results/{name}.py" for name in ("measuring", "merit", "hit_jobs", "matrix_sizes"))
_DIGITS = 16
_AND = "+"


@cache
def program_digest() -> str:
    """Return a digest of every file of the package that figures may depend on."""
    found = sha256()
    for path in sorted(path for path in _PACKAGE.rglob("*") if path.suffix in _KINDS):
        name = path.relative_to(_PACKAGE).as_posix()
        if name in _MAKES or not name.startswith(_TELLS):
            found.update(f"{name}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:_DIGITS]


def maker_of(text: str) -> str:
    """Return what stands for the program, and for the weights where a policy's text names a checkpoint's folder.

    The shipped checkpoint is part of the program.
    """
    program = program_digest()
    _, _, settings = text.partition(":")
    folder = dict(part.partition("=")[::2] for part in settings.split(",")).get("checkpoint", "")
    files = [Path(folder) / name for name in (DOCUMENT_FILE, WEIGHTS_FILE)]
    if not folder or not all(path.is_file() for path in files):
        return program
    weights = sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:_DIGITS]
    return f"{program}{_AND}{weights}"


def program_of(maker: str) -> str:
    """Return the program's part of what made a run."""
    return maker.partition(_AND)[0]
