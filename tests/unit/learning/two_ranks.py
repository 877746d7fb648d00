"""Two ranks of one training in two threads, which take the mean of their gradients as real ones do."""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import torch
from torch.nn import Parameter

from slurm_energy.learning.experience import Averaging

_Rank = TypeVar("_Rank")
_Found = TypeVar("_Found")


class Pair:
    """Makes the averaging of each rank; who calls it waits for the other."""

    def __init__(self) -> None:
        self._gradients: list[list[torch.Tensor | None]] = [[], []]
        self._barrier = threading.Barrier(2, timeout=60.0)

    def averaging(self, rank: int, parameters: Iterable[Parameter]) -> None:
        held = list(parameters)
        self._gradients[rank] = [None if one.grad is None else one.grad.clone() for one in held]
        self._barrier.wait()
        means = [_mean(mine, theirs) for mine, theirs in zip(*self._gradients, strict=True)]
        self._barrier.wait()
        for one, mean in zip(held, means, strict=True):
            one.grad = mean


def _mean(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """Return the mean, a gradient that is missing on one rank counting as 0 there."""
    if one is None or other is None:
        there = other if one is None else one
        return None if there is None else there / 2.0
    return (one + other) / 2.0


def side_by_side(make: Callable[[Averaging], _Rank], work: Callable[[int, _Rank], _Found]) -> list[_Found]:
    """Return what each of two ranks finds.

    Args:
        make: Makes a rank with its averaging, one after the other: drawing weights is for one thread alone.
        work: What a rank does, in a thread of its own; with its number.
    """
    pair, found = Pair(), dict[int, _Found]()
    ranks = [make(partial(pair.averaging, number)) for number in range(2)]

    def run(number: int) -> None:
        found[number] = work(number, ranks[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(2)]
