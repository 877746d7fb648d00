"""Python's collector of reference cycles, kept from walking over all objects of a run again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

YOUNG_OBJECTS = 500_000
"""A week of the published world keeps about 300,000 objects: it is over before the collector comes."""

_lock = Lock()
_blocks = 0
_thresholds: tuple[int, int, int] = (0, 0, 0)
"""Those of before the first of the blocks that are open."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the collector come only whenever the process holds another `YOUNG_OBJECTS` objects.

    For work that makes many objects which live to its end, and no cycles. Cycles of others, such as a rule's, are still
    collected. Thresholds belong to the process: blocks may lie within one another or overlap in several threads, and
    the last that is left puts back what the first one found. A collector that is off stays off.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _blocks, _thresholds  # noqa: PLW0603  # the collector is the process's, and so is what is kept of it
    with _lock:
        if _blocks == 0:
            _thresholds = gc.get_threshold()
            if 0 < _thresholds[0] < YOUNG_OBJECTS:  # 0 stands for a collector that never comes
                gc.set_threshold(YOUNG_OBJECTS, *_thresholds[1:])
        _blocks += 1


def _leave() -> None:
    global _blocks  # noqa: PLW0603  # as above
    with _lock:
        _blocks -= 1
        if _blocks == 0:
            gc.set_threshold(*_thresholds)
