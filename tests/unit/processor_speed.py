"""How much slower this processor is at the moment than the one on which bounds of time were written."""

import time

_LOOPS = 20_000
_USUAL_SECONDS = 0.0012
"""Of the loop, on a free core of an ordinary server."""


def slowness() -> float:
    """Return what bounds of processor time are to be multiplied with: 1, and more on a slow or crowded machine."""
    return max(1.0, max(_loop_seconds() for _ in range(9)) / _USUAL_SECONDS)


def _loop_seconds() -> float:
    begun = time.thread_time()
    total, seen = 0, {}
    for number in range(_LOOPS):
        seen[number & 255] = total
        total += number
    return time.thread_time() - begun
