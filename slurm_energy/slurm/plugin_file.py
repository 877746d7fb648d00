"""What a Slurm plugin's file tells without being loaded, which would need slurmctld's own symbols.

Own reading of ELF: see docs/adr/0011-own-readers.md.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from slurm_energy.errors import SlurmError

_VERSION_SYMBOL = b"plugin_version"
_FOLLOWS_SYMBOL = b"slurm_energy_follows_release"
_MAX_BYTES = 64 * 1024 * 1024
_SECTION = struct.Struct("<IIQQQQIIQQ")
_ENTRY = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<QQ")
_SHT_DYNAMIC = 6
_SHT_DYNSYM = 11
_DT_RPATH, _DT_RUNPATH = 15, 29


class Release(NamedTuple):
    """A release of Slurm: 22.05.8 is (22, 5, 8)."""

    year: int
    month: int
    micro: int

    def __str__(self) -> str:
        """Return it as Slurm writes it."""
        return f"{self.year}.{self.month:02d}.{self.micro}"

    @property
    def series(self) -> tuple[int, int]:
        """Year and month: releases of one series lay out a job alike."""
        return self.year, self.month


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFile:
    """One plugin's file.

    Attributes:
        path: Where it is.
        release: The release of Slurm that it was compiled for.
        follows: Whether it states, once loaded, the release of the Slurm that loads it (plugin/common/release.h).
        machine: ELF's number of the kind of machine.
    """

    path: Path
    release: Release
    follows: bool
    machine: int


def parse_release(text: str) -> Release | None:
    """Return the release in what `slurmctld -V` and the like print; None when there is none."""
    match = re.search(r"(\d{2})\.(\d{2})(?:\.(\d{1,3}))?", text)
    return None if match is None else Release(int(match[1]), int(match[2]), int(match[3] or 0))


def read_plugin_file(path: Path) -> PluginFile:
    """Return what a plugin's file tells.

    Raises:
        SlurmError: no 64-bit ELF file, or one without `plugin_version`.
    """
    raw = _read(path)
    try:
        sections = _sections(raw)
        number = None
        follows = False
        for name, home, value in _symbols(raw, sections):
            if name == _VERSION_SYMBOL:
                where = sections[home]
                number = int(struct.unpack_from("<I", raw, value - where[3] + where[4])[0])
            follows = follows or name == _FOLLOWS_SYMBOL
        if number is None:
            raise ValueError(f"no symbol {_VERSION_SYMBOL.decode()}")
        machine = int(struct.unpack_from("<H", raw, 0x12)[0])
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise SlurmError(f"{path} is no Slurm plugin for this kind of machine: {error}") from error
    release = Release(number >> 16 & 0xFF, number >> 8 & 0xFF, number & 0xFF)
    return PluginFile(path=path, release=release, follows=follows, machine=machine)


def machine_of(path: Path) -> int | None:
    """Return ELF's number of the kind of machine that a program is for; None when it is no such program."""
    try:
        raw = _read(path)
        _sections(raw)
        return int(struct.unpack_from("<H", raw, 0x12)[0])
    except (SlurmError, struct.error, ValueError):
        return None


def library_folders(path: Path) -> tuple[Path, ...]:
    """Return where a program looks for its own libraries: Slurm's programs have their plugin folder there."""
    try:
        raw = _read(path)
        sections = _sections(raw)
        found: list[Path] = []
        for section in sections:
            if section[1] != _SHT_DYNAMIC:
                continue
            names = sections[section[6]]
            for position in range(section[4], section[4] + section[5], _DYNAMIC.size):
                tag, value = _DYNAMIC.unpack_from(raw, position)
                if tag in (_DT_RPATH, _DT_RUNPATH):
                    start = names[4] + value
                    text = raw[start : raw.index(b"\0", start)].decode("utf-8", "surrogateescape")
                    found += [Path(part) for part in text.split(":") if part.startswith("/")]
    except (SlurmError, struct.error, IndexError, OverflowError, ValueError):
        return ()
    return tuple(found)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise SlurmError(f"{path} cannot be read: {error.strerror}") from error


def _sections(raw: bytes) -> list[tuple[int, ...]]:
    if raw[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    offset = struct.unpack_from("<Q", raw, 0x28)[0]
    size, count = struct.unpack_from("<HH", raw, 0x3A)
    return [_SECTION.unpack_from(raw, offset + index * size) for index in range(count)]


def _symbols(raw: bytes, sections: list[tuple[int, ...]]) -> list[tuple[bytes, int, int]]:
    """Return name, section and address of each symbol that a loader sees."""
    found = []
    for section in sections:
        if section[1] != _SHT_DYNSYM:
            continue
        names = sections[section[6]]
        for position in range(section[4], section[4] + section[5], _ENTRY.size):
            name, _info, _other, home, value, _size = _ENTRY.unpack_from(raw, position)
            start = names[4] + name
            found.append((raw[start : raw.index(b"\0", start)], home, value))
    return found
