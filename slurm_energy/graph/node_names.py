"""Node names as Slurm writes them: `a[1-3,7],b2`; and an order of names in which neighbours lie together."""

import re

MAX_NAMES = 65_536
"""A list that names more is not looked at further."""

_PIECE = re.compile(r"([^\[\],]*)\[([0-9,-]+)\]|([^\[\],]+)|(,)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z")
_NUMBER = re.compile(r"(\d+)")
_LARGEST_NUMBER = 2**63 - 1


def node_names(text: str) -> tuple[str, ...]:
    """Return the names of a node list, in order, each once; none when it is malformed or names more than 65536."""
    names: list[str] = []
    item = [""]
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            return ()
        position = piece.end()
        head, ranges, plain, comma = piece.groups()
        if comma:
            names += item
            item = [""]
        else:
            tails = [plain] if ranges is None else _tails(head, ranges)
            if not tails or len(item) * len(tails) + len(names) > MAX_NAMES:
                return ()
            item = [before + after for before in item for after in tails]
    names += item
    return tuple(dict.fromkeys(name for name in map(str.strip, names) if name))


def _tails(head: str, ranges: str) -> list[str]:
    """Return head followed by every number of `1-3,7`; nothing when that is malformed or too much."""
    found: list[str] = []
    for part in ranges.split(","):
        bounds = _RANGE.match(part)
        if bounds is None:
            return []
        low, high = int(bounds.group(1)), int(bounds.group(2) or bounds.group(1))
        if high < low or len(found) + high - low + 1 > MAX_NAMES:
            return []
        digits = len(bounds.group(1))
        found += [f"{head}{number:0{digits}d}" for number in range(low, high + 1)]
    return found


def sort_key(name: str) -> bytes:
    """Return bytes by which names sort in people's order: `n2` before `n10`; different for different names."""
    parts: list[bytes] = []
    for part in _NUMBER.split(name):
        if part.isascii() and part.isdecimal():
            parts.append(min(int(part[:40]), _LARGEST_NUMBER).to_bytes(8, "big"))
        elif part:
            parts.append(part.encode("utf-8", "surrogatepass") + b"\0")
    return b"".join((*parts, b"\0", name.encode("utf-8", "surrogatepass")))
