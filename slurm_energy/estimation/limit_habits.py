"""How near to their time limits a site's jobs end: how much longer a job may take of whose name nothing is known."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Protocol

_PARTS = 1000
"""Of a limit: run times are counted by these, so that what is known does not grow with the runs."""
_NEAR = 0.5
"""Share of its limit below which a run says nothing more: no clock takes twice as long."""
_AT_LIMIT = 0.98
"""Share of its limit from which on a run that was cut off is taken to have reached it."""


class LimitedRun(Protocol):
    """An ended run, as far as its time limit goes."""

    @property
    def user(self) -> int | str:
        """Who ran it."""

    @property
    def seconds(self) -> float:
        """How long it took at the default clock."""

    @property
    def real_seconds(self) -> float | None:
        """How long it took at the clock that it had; None: the same."""

    @property
    def slowdown(self) -> float:
        """Ratio by which its clock made it longer, measured in it or predicted."""

    @property
    def limit_seconds(self) -> float | None:
        """Its time limit; None where there was none."""

    @property
    def cut_off(self) -> bool:
        """Whether it was ended before its work was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHabits:
    """How near to their time limit the site's jobs end: most limits are set with room, and that is known of them.

    A user sets a limit for this run, of which nothing else is known where its name never ran.
    """

    runs: int = 0
    """That it rests on."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """Runs by thousandths of their limit, rounded up, at the default clock; those below half of it are left out."""
    highest: Mapping[int | str, float] = field(default_factory=dict)
    """The largest share of each user, where it is above a half; 1 after a run that reached its limit."""

    @classmethod
    def of(cls, runs: Iterable[LimitedRun]) -> "LimitHabits":
        """Return those of some runs.

        A run that its limit cut off under a lower clock might have ended within it at the default one: it counts by
        the share that it had used of its limit there, as one that a lower clock brings to its end. At the default clock
        it would have been cut off anyway.
        """
        counts: Counter[int] = Counter()
        highest: dict[int | str, float] = {}
        number = 0
        for run in runs:
            limit, real = run.limit_seconds, run.seconds if run.real_seconds is None else run.real_seconds
            if limit is None or not 0.0 < limit < inf or not (run.seconds > 0.0 and real > 0.0):
                continue
            share = highest_share = min(run.seconds / limit, 1.0)
            if run.cut_off:
                if real < _AT_LIMIT * limit:
                    continue
                at_default = min(run.seconds, real / (1.0 + max(run.slowdown, 0.0)))
                share, highest_share = (at_default / limit if at_default < real else 1.0), 1.0
            number += 1
            if share > _NEAR:
                counts[ceil(round(min(share, 1.0) * _PARTS, 6))] += 1
            if highest_share > _NEAR:
                highest[run.user] = max(highest.get(run.user, 0.0), highest_share)
        return cls(runs=number, counts=dict(counts), highest=highest)

    def room(self, users: Sequence[int | str | None], margin: float, added: float) -> float:
        """Return by what ratio runs may grow before this share more of them reach the end; -1 where too few are known.

        Runs that reach the end at the default clock do so anyway and count for nothing. A user who had a run near its
        limit has no more room than that one left.

        Args:
            users: Who submits, by the words under which runs may stand.
            margin: Share of the limit that stays free.
            added: Share of runs.
        """
        end = 1.0 - margin
        # A part that the end divides counts as inside.
        parts = sorted((part for part in self.counts if part - 1 < end * _PARTS - 1e-6), reverse=True)
        beyond = sum(count for part, count in self.counts.items() if part - 1 >= end * _PARTS - 1e-6)
        allowed = int(added * (self.runs + 2)) - 1
        if allowed < 0 or self.runs - beyond <= allowed:
            return -1.0
        reached = _NEAR
        for part in parts:
            allowed -= self.counts[part]
            if allowed < 0:
                reached = part / _PARTS
                break
        room = end / reached - 1.0
        for user in users:
            own = None if user is None else self.highest.get(user)
            if own is not None:
                room = min(room, end / own - 1.0)
        return room
