"""Which node a job takes, and whether it had better wait for one: nodes that are awake for others cost nothing more.

A node stays awake until its last job ends, so what a start costs beyond the job's share is how much longer it keeps its
node awake. That is dynamic bin packing with known departures: the best fit in *time* leaves the nodes that stay longest
to the jobs that stay longest, so that nodes empty together.
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from slurm_energy.policy.placement import PlaceNode

MAX_WAIT_SECONDS = 14_400.0
"""Longest wait for room on a node, whatever the job's length."""
_LONGER = 100.0
"""What a second that a node is kept awake longer counts beside one that its last job stays beyond the new one."""
_MARGIN_SECONDS = 1.0
"""A job comes back so much later than the devices it waits for should be free."""


class Stay(NamedTuple):
    """A start as packing sees it."""

    gpus: int
    """Devices on one node, fewer than it has."""
    seconds: float
    """Expected run."""
    now_seconds: float
    latest_seconds: float
    """Latest start; now or before for a job that must not wait."""


class PackingPrices(NamedTuple):
    """What is paid for what."""

    longer_watts: float
    """Of a second that a node is kept awake longer."""
    idle_seconds: float
    """How long a node stays awake with nothing to do."""
    wait_watts: float
    """Of a second of waiting."""


class Slot(NamedTuple):
    """Where and when."""

    node: int | None
    """None leaves it to the scheduler: no node that is awake has room."""
    start_seconds: float


def best_slot(nodes: Iterable[PlaceNode], stay: Stay, prices: PackingPrices) -> Slot:
    """Return the node for a start now, or a later start on a node that is full now if that costs less.

    Now it is the node whose last job ends soonest after the new one; where none lasts so long, the one that lasts
    longest, or nearly. A later start must be of less cost in the time that a node is kept awake and in waiting. Ends
    that have passed say nothing: their nodes are not waited for.

    Args:
        nodes: Of the place.
        stay: The start.
        prices: What is paid for what.
    """
    awake = [state for state in nodes if state.is_awake]
    now, end = stay.now_seconds, stay.now_seconds + stay.seconds
    node, least, kept = None, inf, stay.seconds + prices.idle_seconds
    for state in awake:
        if state.free_gpus < stay.gpus or not state.ends_seconds:
            continue
        last = state.ends_seconds[-1][0]
        misfit = last - end if last >= end else _LONGER * (end - last)
        if misfit < least:
            node, least, kept = state.node, misfit, max(0.0, end - max(last, now))
    if node is None:
        node = next((state.node for state in awake if state.free_gpus >= stay.gpus), None)
    cost, start = prices.longer_watts * kept, now
    if stay.latest_seconds > now and cost > 0.0:
        for state in awake:
            begins = _free_from(state, stay.gpus) if state.free_gpus < stay.gpus else now
            if now < begins <= stay.latest_seconds:
                longer = max(0.0, begins + stay.seconds - state.ends_seconds[-1][0])
                later = prices.longer_watts * longer + prices.wait_watts * (begins - now)
                if later < cost:
                    cost, start = later, begins + _MARGIN_SECONDS
    return Slot(node, start)


def _free_from(state: PlaceNode, gpus: int) -> float:
    """Return when so many devices of a node will be free, infinite for never."""
    free = state.free_gpus
    for end, given_back in state.ends_seconds:
        free += given_back
        if free >= gpus:
            return end
    return inf
