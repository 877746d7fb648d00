"""Slurm's own placement with clocks that are the same for every job."""

from collections.abc import Mapping
from random import Random

from slurm_energy.errors import ConfigError
from slurm_energy.policy.placement import ClusterView, Discipline, PlaceInfo, WaitingJob
from slurm_energy.policy.rules.clocks import ClockChoice, nearest_clock
from slurm_energy.policy.rules.settings import HIGHEST
from slurm_energy.policy.rules.slurm_order import FirstPlaceRule


class FixedDvfsRule(FirstPlaceRule):
    """One relative clock everywhere, raised where a job's bounds ask for it."""

    name = "fixed-dvfs"
    discipline = Discipline(order="fifo", backfill="easy")

    def __init__(self, *, f: float = 0.8) -> None:
        super().__init__()
        self._relative = f
        self._wanted: list[int] = []

    def begin(self, view: ClusterView, random: Random) -> None:
        """Find each place's clock."""
        super().begin(view, random)
        self._wanted = [nearest_clock(place.relative_clocks, self.relative_clock(place)) for place in view.places]

    def relative_clock(self, place: PlaceInfo) -> float:  # noqa: ARG002  # the hook's form
        """Return the relative clock of a place."""
        return self._relative

    def clock(self, choice: ClockChoice, place: int, count: int, job: WaitingJob, view: ClusterView) -> int:
        """Return the place's clock, or the lowest above it within the job's bounds."""
        return choice.at_least(self._wanted[place], place, count, job, view.now_seconds)


class FixedClockRule(FixedDvfsRule):
    """One relative clock for each device type, such as the best that a sweep found."""

    name = "fixed-clock"

    def __init__(self, clocks: Mapping[str, float] | None = None, *, other: float = HIGHEST) -> None:
        """Store the clocks.

        Args:
            clocks: Relative clock by device type, in any case of letters.
            other: Relative clock of every other type.
        """
        super().__init__(f=other)
        self._by_device = {name.lower(): clock for name, clock in (clocks or {}).items()}

    def begin(self, view: ClusterView, random: Random) -> None:
        """Find each place's clock.

        Raises:
            ConfigError: a clock is for a device type that no place has.
        """
        devices = {place.device.lower(): place.device for place in view.places}
        for name in self._by_device:
            if name not in devices:
                raise ConfigError(
                    f"rule {self.name}: no place has device {name[:40]!r}; devices: {', '.join(devices.values())}"
                )
        super().begin(view, random)

    def relative_clock(self, place: PlaceInfo) -> float:
        """Return the clock of the place's device type."""
        return self._by_device.get(place.device.lower(), self._relative)
