"""What of a node's host energy is in no job: jobs' stretches of the node's own count, laid over each other.

A node counts its host's joules from a boot on (`node.host_meter`). A job's report names the stretch of that count
which lies between its start and its end, and its share of it is a rule's (its cores). Where stretches overlap, the
shares that are left belong to no job; where there is none, the whole does. Nothing is assumed of how power ran in
between: the count itself is the axis, so that jobs' parts and the rest add up to it exactly.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStretch:
    """One job's stretch of a count, and which share of it is the job's, 0 to 1."""

    count_id: str
    start_joules: float
    end_joules: float
    started_at_seconds: float
    ended_at_seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedHost:
    """Joules in no job, which were known to be drawn by a moment."""

    joules: float
    until_seconds: float


def unused_host(stretches: Iterable[HostStretch]) -> tuple[UnusedHost, ...]:
    """Return what no job has of the counts between the first and the last reading of each, piece by piece.

    A piece ends where a stretch begins or ends, and is of the time of that reading. Shares that add up to more than all
    (nodes whose cores Slurm gives away twice) leave nothing, never less.
    """
    by_count: dict[str, list[HostStretch]] = defaultdict(list)
    for stretch in stretches:
        by_count[stretch.count_id].append(stretch)
    pieces: list[UnusedHost] = []
    for found in by_count.values():
        edges: dict[float, tuple[float, float]] = {}
        for one in found:
            for joules, seconds, change in (
                (one.start_joules, one.started_at_seconds, one.share),
                (one.end_joules, one.ended_at_seconds, -one.share),
            ):
                at, changes = edges.get(joules, (seconds, 0.0))
                edges[joules] = min(at, seconds), changes + change
        ordered = sorted(edges.items())
        used = 0.0
        for (start, (_, change)), (end, (until, _)) in pairwise(ordered):
            used += change
            pieces.append(UnusedHost(joules=(end - start) * (1.0 - min(max(used, 0.0), 1.0)), until_seconds=until))
    return tuple(sorted(pieces, key=lambda piece: (piece.until_seconds, piece.joules)))
