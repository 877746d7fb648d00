"""Slurm's node list expressions: `gpu[01-03,7],login1` to names."""

import re
from collections.abc import Iterator

from slurm_energy.errors import ValueRangeError

MAX_HOSTS = 65_536

_BRACKETS = re.compile(r"\[([0-9,-]+)\]")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?\Z")


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the names in order.

    Raises:
        ValueRangeError: the expression is malformed or names more than 65536 nodes.
    """
    names: list[str] = []
    for item in _split(text):
        for name in _expand(item):
            names.append(name)
            if len(names) > MAX_HOSTS:
                raise ValueRangeError(f"node list {text[:64]!r} names more than {MAX_HOSTS} nodes")
    return tuple(names)


def _split(text: str) -> list[str]:
    """Split at commas that are not in brackets."""
    items, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            items.append(text[begin:position])
            begin = position + 1
    return [item.strip() for item in (*items, text[begin:]) if item.strip()]


def _expand(item: str) -> Iterator[str]:
    match = _BRACKETS.search(item)
    if match is None:
        if "[" in item or "]" in item:
            raise ValueRangeError(f"node list {item[:64]!r} has brackets that do not match")
        yield item
        return
    head, tail = item[: match.start()], item[match.end() :]
    for part in match.group(1).split(","):
        bounds = _RANGE.match(part)
        if bounds is None:
            raise ValueRangeError(f"node list {item[:64]!r} has the range {part[:32]!r}, N or N-M is needed")
        low = bounds.group(1)
        for number in range(int(low), int(bounds.group(2) or low) + 1):
            for rest in _expand(tail):
                yield f"{head}{number:0{len(low)}d}{rest}"
