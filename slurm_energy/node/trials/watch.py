"""Whether a job still does the work in which its clock was measured: power and utilisation of each GPU over a minute.

A clock is kept for the work of one window. A later phase of the program may be slowed by it many times more, and
nothing else would measure it again once trials have ended.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_energy.domain.ids import GpuUuid
from slurm_energy.node.energy import GpuSamples
from slurm_energy.node.samples import BUSY_UTILISATION
from slurm_energy.node.trials.burst import GpuColumns

WATCH_SECONDS = 60.0
"""Device time over which a mean is taken."""
MIN_POINTS = 3
MAX_POWER_CHANGE = 0.15
"""Of the power in the window that the clock was kept for."""
MAX_UTILISATION_CHANGE = 0.15
"""Of the time, more or less than in that window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoad:
    """What one GPU did."""

    watts: float
    utilisation: float

    def is_other(self, other: "GpuLoad") -> bool:
        """Return whether another load is another phase of the program."""
        power = abs(other.watts - self.watts) > MAX_POWER_CHANGE * self.watts
        return power or abs(other.utilisation - self.utilisation) > MAX_UTILISATION_CHANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadSums:
    joules: float
    seconds: float
    utilisation_sum: float
    utilisation_samples: int


@dataclass(slots=True)
class LoadWatch:
    """The load for which a clock was kept, and the sampler's sums since it holds."""

    kept: Mapping[GpuUuid, GpuLoad]
    _seen: dict[GpuUuid, deque[_LoadSums]] = field(default_factory=dict)

    def forget(self) -> None:
        """Leave out what was before now: another clock was in force."""
        self._seen.clear()

    def has_changed(self, samples: Mapping[GpuUuid, GpuSamples]) -> bool:
        """Take in the sampler's sums; return whether the last minute on any GPU was another load."""
        changed = False
        for uuid, load in self.kept.items():
            sums = samples.get(uuid)
            if sums is None:
                continue
            seen = self._seen.setdefault(uuid, deque())
            now = _LoadSums(
                joules=sums.polled_joules,
                seconds=sums.sampled_seconds,
                utilisation_sum=sums.utilisation_sum,
                utilisation_samples=sums.utilisation_samples,
            )
            seen.append(now)
            # The newest sums that are a minute old are the beginning; those before them are not needed again.
            while len(seen) > MIN_POINTS and now.seconds - seen[1].seconds >= WATCH_SECONDS:
                seen.popleft()
            begin = seen[0]
            seconds, read = now.seconds - begin.seconds, now.utilisation_samples - begin.utilisation_samples
            if seconds < WATCH_SECONDS or len(seen) < MIN_POINTS or not read:
                continue
            mean = GpuLoad(
                watts=(now.joules - begin.joules) / seconds,
                utilisation=(now.utilisation_sum - begin.utilisation_sum) / read,
            )
            changed = changed or load.is_other(mean)
        return changed


@dataclass(slots=True)
class IdleTime:
    """Time in which no GPU of the job worked, as while it is suspended: nothing of it may be spent on trials."""

    seconds: float = 0.0
    _at_seconds: float | None = None
    _sum: float = 0.0
    _samples: int = 0

    def add(self, samples: Mapping[GpuUuid, GpuSamples], at_seconds: float) -> None:
        """Take in the sampler's sums at a moment of the job's elapsed time."""
        before, self._at_seconds = self._at_seconds, at_seconds
        total = sum(sums.utilisation_sum for sums in samples.values())
        count = sum(sums.utilisation_samples for sums in samples.values())
        busy, read = total - self._sum, count - self._samples
        self._sum, self._samples = total, count
        if before is not None and read > 0 and busy < BUSY_UTILISATION * read:
            self.seconds += at_seconds - before


def load_of(columns: GpuColumns) -> GpuLoad:
    """Return the load of one GPU in a window."""
    return GpuLoad(watts=columns.mean_watts() or 0.0, utilisation=columns.mean_utilisation)
