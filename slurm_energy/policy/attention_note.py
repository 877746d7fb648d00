"""The attention behind a decision as one note: written by a learned policy, read again by whoever shows decisions."""

import json
from collections.abc import Iterable, Mapping

PREFIX = "attention shares "
_MOST_GROUPS = 12


def attention_note(shares: Mapping[str, float]) -> str:
    """Return the shares of some groups as a note, such as `attention shares {"queue":0.41,"energy":0.2}`."""
    return PREFIX + json.dumps({name: round(share, 3) for name, share in shares.items()}, separators=(",", ":"))


def shares_of(note: str) -> dict[str, float] | None:
    """Return the shares of a note, None when it is no such note; a note may have been cut or forged."""
    if not note.startswith(PREFIX):
        return None
    try:
        found = json.loads(note.removeprefix(PREFIX))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or len(found) > _MOST_GROUPS:
        return None
    for share in found.values():
        # Neither NaN nor infinity is between the two, and no whole number too large for a float is.
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 <= share <= 1.0:
            return None
    return {name: float(share) for name, share in found.items()}


def attention_among(notes: Iterable[str]) -> dict[str, float] | None:
    """Return the shares of the first note that has some, None when none has."""
    return next((shares for shares in map(shares_of, notes) if shares is not None), None)
