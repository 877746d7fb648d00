"""Slurm's configuration files as its daemons read them: logical lines, Include, and pairs of key and value."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.domain.ids import expand_hostlist
from slurm_energy.errors import ValueRangeError

MAX_CONF_BYTES = 16_777_216
MAX_INCLUDES = 64

_INCLUDE = re.compile(r"\s*include\s+\"?([^\s\"]+)", re.IGNORECASE)
_CLUSTER_NAME = re.compile(r"\s*clustername\s*=\s*\"?([^\s\"]+)", re.IGNORECASE)
_PAIR = re.compile(r"([A-Za-z0-9_.]+)\s*[-+*/]?=\s*(\"[^\"]*\"|\S+)")


@dataclass(slots=True)
class ConfFiles:
    """Slurm's configuration files as they are read."""

    folder: Path
    """The folder of slurm.conf, where Slurm looks for included files of relative name."""
    files: list[Path] = field(default_factory=list)
    """Every file that was read or looked for."""
    cluster_name: str = ""
    """ClusterName as far as it was read: %c in the name of an included file."""

    def lines(self, path: Path, *, missing_ok: bool = False) -> list[str]:
        """Return the logical lines, with those of included files in place of their Include line.

        Args:
            path: The file.
            missing_ok: Whether a file that cannot be read has no lines, instead of raising.

        Raises:
            OSError: a file cannot be read.
        """
        self.files.append(path)
        if len(self.files) > MAX_INCLUDES:
            raise OSError(f"more than {MAX_INCLUDES} files are included")
        try:
            with path.open("rb") as file:
                content = file.read(MAX_CONF_BYTES)
        except OSError:
            if missing_ok:
                return []
            raise
        lines: list[str] = []
        for line in logical_lines(content.decode("utf-8", "replace")):
            self.cluster_name = self.cluster_name or stated_cluster_name(line)
            included = included_path(line, self.folder, self.cluster_name)
            if included is not None:
                lines += self.lines(included, missing_ok=missing_ok)
            elif line.strip():
                lines.append(line)
        return lines


def included_path(line: str, folder: Path, cluster_name: str) -> Path | None:
    """Return the file that a line includes, None for another line.

    Args:
        line: A line of slurm.conf or of a file that it includes.
        folder: That of slurm.conf, from which relative names count, also those in an included file.
        cluster_name: ClusterName, which %c stands for; empty while it is not known.
    """
    match = _INCLUDE.match(line)
    return None if match is None else folder / match[1].replace("%c", cluster_name or "%c")


def stated_cluster_name(line: str) -> str:
    """Return the ClusterName that a line states, as %c has it; nothing for another line."""
    match = _CLUSTER_NAME.match(line)
    return "" if match is None else match[1].lower()


def logical_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments, those that end with a backslash joined."""
    joined = ""
    for raw in text.splitlines():
        line = re.split(r"(?<!\\)#", raw, maxsplit=1)[0].rstrip()
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield joined + line
        joined = ""
    if joined:
        yield joined


def line_pairs(line: str) -> list[tuple[str, str]]:
    """Return the line's keys, in lower case, and values, in their order; nothing when it has other words."""
    pairs = [(match[1].lower(), match[2].strip('"')) for match in _PAIR.finditer(line)]
    return pairs if not _PAIR.sub("", line).strip() else []


def own_node_name(slurm_conf: Path, host_name: str) -> str | None:
    """Return the name that Slurm has for the node on this host, None when slurm.conf has none.

    As slurmd finds it: by NodeHostname, which is the NodeName where a line has none, first of the host's short name.
    """
    found: dict[str, str] = {}
    for line in ConfFiles(folder=slurm_conf.parent).lines(slurm_conf, missing_ok=True):
        fields = dict(reversed(line_pairs(line)))
        with suppress(ValueRangeError):
            names = expand_hostlist(fields.get("nodename", ""))
            hosts = expand_hostlist(fields.get("nodehostname", "")) or names
            if len(hosts) == len(names):
                found = dict(zip(hosts, names, strict=True)) | found
    return found.get(host_name.partition(".")[0]) or found.get(host_name)
