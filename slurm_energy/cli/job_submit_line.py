"""The line JobSubmitPlugins= of slurm.conf: energy taken out while its plugin cannot be loaded, and put back."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_energy.cli.file_changes import replace_file
from slurm_energy.cli.site import under
from slurm_energy.cli.slurm_conf_lines import TAKEN_OUT, read_conf_files
from slurm_energy.errors import ConfigError

_LINE = re.compile(r"^(?P<before>\s*JobSubmitPlugins\s*=\s*)(?P<value>\"[^\"]*\"|[^\s#]*)(?P<after>.*)$", re.IGNORECASE)


def plugin_words(value: str) -> list[str]:
    """Return the plugins of a list as Slurm reads it: `job_submit/energy` is `energy`."""
    return [word.removeprefix("job_submit/") for word in re.split(r"[\s,]+", value.strip('"')) if word]


def is_taken_out(slurm_conf: Path, root: Path = Path("/")) -> bool:
    """Return whether `take_out` has changed slurm.conf, or a file that it includes."""
    files = read_conf_files(slurm_conf, root)
    return any(line.startswith(TAKEN_OUT) for file in files for line in file.text.splitlines())


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
        words = _words(line)
        if "energy" not in words:
            yield line
            continue
        yield f"{TAKEN_OUT}{line}"
        kept = [word for word in words if word != "energy"]
        if kept:
            yield _with_words(line, kept)


def _with(lines: list[str]) -> Iterator[str]:
    """Yield the lines as they were; a list that a person changed meanwhile gets energy at its end."""
    originals = [line.removeprefix(TAKEN_OUT) for line in lines if line.startswith(TAKEN_OUT)]
    left = [",".join(word for word in _words(line) if word != "energy") for line in originals]
    others = [line for line in lines if _words(line)]
    for line in lines:
        if line.startswith(TAKEN_OUT):
            if not others:
                yield line.removeprefix(TAKEN_OUT)
        elif originals and _words(line) and "energy" not in _words(line):
            as_left = ",".join(_words(line)) in left
            yield (
                originals[left.index(",".join(_words(line)))]
                if as_left
                else _with_words(line, [*_words(line), "energy"])
            )
        else:
            yield line


def _words(line: str) -> list[str]:
    match = _LINE.match(line)
    return [] if match is None else plugin_words(match["value"])


def _with_words(line: str, words: list[str]) -> str:
    match = _LINE.match(line)
    return line if match is None else f"{match['before']}{','.join(words)}{match['after']}"


def _change(slurm_conf: Path, root: Path, edit: Callable[[list[str]], Iterator[str]]) -> list[Path]:
    changed = []
    for file in read_conf_files(slurm_conf, root):
        path = under(root, file.path).resolve()
        before = path.read_bytes().decode("utf-8", "surrogateescape")
        after = "\n".join(edit(before.split("\n")))
        if after != before:
            _write(path, after)
            changed.append(file.path)
    return changed


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all, with the owner and the mode that it had."""
    try:
        status = path.stat()
        replace_file(path, text.encode("utf-8", "surrogateescape"), status.st_mode & 0o7777, status)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
