"""Blind routing at submission, as the published baselines of the geo-distributed world do."""

from collections.abc import Sequence
from random import Random

from slurm_energy.policy.placement import Capabilities, Capability, ClusterView, Discipline, PlacementRule, WaitingJob


class BlindRule(PlacementRule):
    """Each job waits at a uniformly random one of the places that it may use, whatever the load.

    Exactly one draw for a job, `random.choice`, which is the published baselines' stream when all places are allowed.
    """

    routes = True
    shares_arrival_stream = True
    discipline = Discipline(order="fifo", backfill="none")

    def __init__(self) -> None:
        self._random = Random(0)  # noqa: S311  # a simulation's stream

    @property
    def uses(self) -> Capabilities:
        """A queue without backfill."""
        return super().uses | {Capability.QUEUE_ORDER}

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Take the policy's stream."""
        self._random = random

    def route(self, job: WaitingJob, view: ClusterView) -> int | None:
        """Return a random place; None where none is allowed, without a draw."""
        allowed = view.allowed_places(job)
        count = len(allowed)
        if not count:
            return None
        draw, bits = self._random.getrandbits, count.bit_length()  # `random.choice`, without its calls
        index = draw(bits)
        while index >= count:
            index = draw(bits)
        return allowed[index]


def waits_at(job: WaitingJob, room: Sequence[int]) -> int | None:
    """Return where a job that was routed shall start, None without room there; unrouted: the first place with room."""
    place = job.routed_place
    if place is None:
        return next((index for index, gpus in enumerate(room) if gpus), None)
    return place if room[place] else None
