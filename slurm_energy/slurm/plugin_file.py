"""The Slurm release a plugin was compiled for, read from its file: loading it would need slurmctld's own symbols."""

import struct
from pathlib import Path

from slurm_energy.errors import SlurmError

_SYMBOL = b"plugin_version"
_MAX_BYTES = 64 * 1024 * 1024
_SECTION = struct.Struct("<IIQQQQIIQQ")
_ENTRY = struct.Struct("<IBBHQQ")
_SHT_DYNSYM = 11


def compiled_version(path: Path) -> tuple[int, int]:
    """Return year and month of the release that `plugin_version` names.

    Raises:
        SlurmError: no 64-bit ELF file, or one without that symbol.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES)
    except OSError as error:
        raise SlurmError(f"{path} cannot be read: {error.strerror}") from error
    try:
        number = _symbol_value(raw)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise SlurmError(f"{path} is no Slurm plugin for this kind of machine: {error}") from error
    return number >> 16 & 0xFF, number >> 8 & 0xFF


def _symbol_value(raw: bytes) -> int:
    if raw[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    section_offset = struct.unpack_from("<Q", raw, 0x28)[0]
    section_size, section_count = struct.unpack_from("<HH", raw, 0x3A)
    sections = [_SECTION.unpack_from(raw, section_offset + index * section_size) for index in range(section_count)]
    for section in sections:
        if section[1] != _SHT_DYNSYM:
            continue
        names = sections[section[6]]
        for position in range(section[4], section[4] + section[5], _ENTRY.size):
            name, _info, _other, home, value, _size = _ENTRY.unpack_from(raw, position)
            start = names[4] + name
            if raw[start : raw.index(b"\0", start)] == _SYMBOL:
                where = sections[home]
                return int(struct.unpack_from("<I", raw, value - where[3] + where[4])[0])
    raise ValueError(f"no symbol {_SYMBOL.decode()}")
