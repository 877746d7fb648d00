"""Search for the best clocks on whole grids, coarse to fine.

A score over the clock may have several valleys and level stretches, so that a walk from one clock to the next would
stop too early. Of equal scores the one of the higher clock is taken.
"""

from collections.abc import Callable, Mapping

import numpy as np

MOST_CLOCKS = 12
"""Values of a grid that are tried at once."""
MOST_ROUNDS = 3
"""Over all grids: what one type's clock does to another's is a second-order matter."""


def best_on_grid(size: int, score: Callable[[int], float], *, present: int | None = None) -> int:
    """Return the index with the least score.

    At most `MOST_CLOCKS` evenly spaced ones of the whole grid are tried, with both ends, and the present one; then as
    many between the neighbours of the best, until no untried one is left between them. A valley that is narrower than
    the first spacing may be missed.

    Args:
        size: Length of the grid, lowest clock first.
        score: Of an index, asked once for each.
        present: Index that must be among those tried.
    """
    tried: dict[int, float] = {}
    wanted = _evenly_spaced(0, size - 1) | (set() if present is None else {present})
    best = 0
    while wanted:
        tried |= {index: score(index) for index in sorted(wanted)}
        best = min(tried, key=lambda index: (tried[index], -index))
        low = max((index for index in tried if index < best), default=best)
        high = min((index for index in tried if index > best), default=best)
        wanted = _evenly_spaced(low, high) - tried.keys()
    return best


def best_on_grids(
    sizes: Mapping[str, int], start: Mapping[str, int], score: Callable[[Mapping[str, int]], float]
) -> dict[str, int]:
    """Return the best index on each of several grids: one after the other, in rounds until one changes nothing.

    Args:
        sizes: Length of each grid.
        start: Index on each grid to begin with; the score never becomes greater than there.
        score: Of an index on each grid; may be asked again.
    """
    chosen = dict(start)
    for _ in range(MOST_ROUNDS):
        before = dict(chosen)
        for name, size in sizes.items():
            chosen[name] = best_on_grid(size, lambda at: score({**chosen, name: at}), present=chosen[name])  # noqa: B023  # used at once
        if chosen == before:
            break
    return chosen


def _evenly_spaced(low: int, high: int) -> set[int]:
    """Return at most `MOST_CLOCKS` indices from low to high, with both."""
    return set(np.linspace(low, high, min(MOST_CLOCKS, high - low + 1)).round().astype(int).tolist())
