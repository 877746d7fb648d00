"""The line JobSubmitPlugins= of slurm.conf: energy taken out while its plugin cannot be loaded, and put back."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_energy.cli.site import under
from slurm_energy.errors import ConfigError

_MARK = "# slurm-energy took energy out, since slurmctld would not start with it; before: "
_LINE = re.compile(r"^(?P<before>\s*JobSubmitPlugins\s*=\s*)(?P<value>\"[^\"]*\"|[^\s#]*)(?P<after>.*)$", re.IGNORECASE)
_INCLUDE = re.compile(r"^\s*include\s+(\S+)", re.IGNORECASE)
_MAX_FILES = 32


def plugin_words(value: str) -> list[str]:
    """Return the plugins of a list as Slurm reads it: `job_submit/energy` is `energy`."""
    return [word.removeprefix("job_submit/") for word in re.split(r"[\s,]+", value.strip('"')) if word]


def is_taken_out(slurm_conf: Path, root: Path = Path("/")) -> bool:
    """Return whether `take_out` has changed slurm.conf, or a file that it includes."""
    return any(line.startswith(_MARK) for _, text in _files(slurm_conf, root) for line in text.splitlines())


def take_out(slurm_conf: Path, root: Path = Path("/")) -> list[Path]:
    """Take energy out of every JobSubmitPlugins line; a line that named nothing else becomes a comment.

    What stood there is kept in a comment above, for `put_back`.

    Raises:
        ConfigError: a file cannot be written.
    """
    return _change(slurm_conf, root, _without)


def put_back(slurm_conf: Path, root: Path = Path("/")) -> list[Path]:
    """Put back every line that `take_out` changed, just as it was.

    Raises:
        ConfigError: a file cannot be written.
    """
    return _change(slurm_conf, root, _with)


def _without(lines: list[str]) -> Iterator[str]:
    for line in lines:
        match = _LINE.match(line)
        words = plugin_words(match["value"]) if match is not None else []
        if match is None or "energy" not in words:
            yield line
            continue
        yield f"{_MARK}{line}"
        kept = ",".join(word for word in words if word != "energy")
        if kept:
            yield f"{match['before']}{kept}{match['after']}"


def _with(lines: list[str]) -> Iterator[str]:
    waiting = iter(lines)
    for line in waiting:
        if not line.startswith(_MARK):
            yield line
            continue
        original = line.removeprefix(_MARK)
        yield original
        match = _LINE.match(original)
        if match is not None and any(word != "energy" for word in plugin_words(match["value"])):
            following = next(waiting, None)
            if following is not None and not _LINE.match(following):
                yield following  # the line was taken away by hand meanwhile


def _change(slurm_conf: Path, root: Path, edit: Callable[[list[str]], Iterator[str]]) -> list[Path]:
    changed = []
    for path, text in _files(slurm_conf, root):
        after = "".join(f"{line}\n" for line in edit(text.splitlines()))
        if after.rstrip("\n") != text.rstrip("\n"):
            _write(path, after)
            changed.append(path)
    return changed


def _files(slurm_conf: Path, root: Path) -> Iterator[tuple[Path, str]]:
    """Yield slurm.conf and what it includes, with their texts; what cannot be read is left out."""
    waiting, seen = [under(root, slurm_conf)], set[Path]()
    while waiting and len(seen) < _MAX_FILES:
        path = waiting.pop(0).resolve()
        if path in seen:
            continue
        seen.add(path)
        try:
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            continue
        yield path, text
        for line in text.splitlines():
            match = _INCLUDE.match(line)
            if match is not None:
                named = Path(match[1])
                waiting.append(under(root, named) if named.is_absolute() else path.parent / named)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all, with the owner and the mode that it had."""
    temporary = None
    try:
        status = path.stat()
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
            os.fchmod(file.fileno(), status.st_mode & 0o7777)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
