"""What Slurm itself does, the first place with room and as many devices as fit, with a clock that the rule chooses.

`slurm-default` and `fixed-clock` answer a submission without a table of options: they are the baselines of an
installation that has no numpy, so what needs it is imported at a run's first start.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from slurm_energy.config import Config
from slurm_energy.domain.decision import ClockChoice, PolicyAnswer
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.errors import ConfigError
from slurm_energy.policy.base import Case
from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import (
    Capabilities,
    Capability,
    ClusterView,
    Discipline,
    PlaceInfo,
    Placement,
    PlacementRule,
)
from slurm_energy.policy.rules.settings import HIGHEST
from slurm_energy.policy.site.comparison import clock_choice, landing_types
from slurm_energy.policy.site.settings import fixed_clocks

if TYPE_CHECKING:
    from slurm_energy.policy.rules.tables import PlaceClocks, Prepared

SLURM_ORDER = Discipline(order="fifo", backfill="easy")
_STEPS = 8
"""A search steps over an eighth of a place's clocks, at least one."""


class FirstPlaceRule(PlacementRule):
    """First place with room in the world's order, most devices that fit; subclasses choose the clock.

    Slurm tries a job's partitions in the order given and takes nodes by weight, which is the order of places here; of a
    range such as --gpus=2-8 it gives the most that fits.
    """

    _clocks: "Prepared[PlaceClocks] | None" = None
    """Of the tables of a run; made at its first start."""

    @property
    def uses(self) -> Capabilities:
        """Slurm gives a range of counts the most that fits by itself; another order than its own is a wish."""
        return frozenset({Capability.QUEUE_ORDER} if self.discipline not in {None, SLURM_ORDER} else ())

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Forget the tables of the last run."""
        self._clocks = None

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the first place with room."""
        if self._clocks is None:
            from slurm_energy.policy.rules.tables import PlaceClocks, Prepared  # noqa: PLC0415  # numpy, see above

            self._clocks = Prepared(PlaceClocks)
        choice = self._clocks.of(view.options(job))
        for place, gpus in enumerate(view.room(job)):
            if gpus:
                count = choice.counts.index(gpus)
                if choice.runs(place, count):
                    return Placement(place, gpus, self.clock(choice, place, count, job, view))
        return None

    def clock(self, choice: "PlaceClocks", place: int, count: int, job: WaitingJob, view: ClusterView) -> int:
        """Return the clock for a place and the index of a count."""
        raise NotImplementedError


class SlurmDefaultRule(FirstPlaceRule):
    """FIFO with EASY backfill, highest clock."""

    name = "slurm-default"
    discipline = Discipline(order="fifo", backfill="easy")

    def take_site(self, config: Config, settings: str = "") -> None:
        """Take nothing: no setting changes what Slurm does."""

    def decide(self, case: Case) -> PolicyAnswer:  # noqa: ARG002  # the protocol's form
        """Return an empty answer: where a job starts, at its highest clock, is what Slurm does by itself."""
        return PolicyAnswer()

    def clock(self, choice: "PlaceClocks", place: int, count: int, job: WaitingJob, view: ClusterView) -> int:  # noqa: ARG002  # the hook's form
        """Return the default clock."""
        return choice.default(place, count)


class FcfsRule(SlurmDefaultRule):
    """FIFO without backfill, highest clock."""

    name = "fcfs"
    discipline = Discipline(order="fifo", backfill="none")


class SjfBackfillRule(SlurmDefaultRule):
    """Shortest expected work first, with EASY backfill, highest clock."""

    name = "sjf-backfill"
    discipline = Discipline(order="sjf", backfill="easy")


class EasyEstimatesRule(SlurmDefaultRule):
    """EASY backfill that plans by expected run times in the place of limits; with the truth, they are exact."""

    name = "easy-estimates"
    discipline = Discipline(order="fifo", backfill="easy", run_times="estimates")


class FixedDvfsRule(FirstPlaceRule):
    """One relative clock everywhere, raised where a job's bounds ask for it."""

    name = "fixed-dvfs"
    discipline = Discipline(order="fifo", backfill="easy")

    def __init__(self, *, f: float = 0.8) -> None:
        self._relative = f
        self._wanted: list[int] = []

    def begin(self, view: ClusterView, random: Random) -> None:
        """Find each place's clock."""
        super().begin(view, random)
        self._wanted = [nearest_clock(place.relative_clocks, self.relative_clock(place)) for place in view.places]

    def relative_clock(self, place: PlaceInfo) -> float:  # noqa: ARG002  # the hook's form
        """Return the relative clock of a place."""
        return self._relative

    def clock(self, choice: "PlaceClocks", place: int, count: int, job: WaitingJob, view: ClusterView) -> int:
        """Return the place's clock, or the lowest above it within the job's bounds."""
        return choice.at_least(self._wanted[place], place, count, job, view.now_seconds)


class FixedClockRule(FixedDvfsRule):
    """One clock for each device type: that of a sweep's result, or of the site's table, else the best in its bound."""

    name = "fixed-clock"

    def __init__(
        self,
        clocks: Mapping[str, float] | None = None,
        *,
        other: float = HIGHEST,
        clocks_mhz: Mapping[GpuTypeName, int] | None = None,
        max_slowdown: float = 0.0,
    ) -> None:
        """Store the clocks.

        Args:
            clocks: Relative clock by device type, in any case of letters, of a run.
            other: Relative clock of every other type.
            clocks_mhz: The site's clocks of submitted jobs.
            max_slowdown: The site's bound, inside which the clock of least energy is that of every other type.
        """
        super().__init__(f=other)
        self._by_device = {name.lower(): clock for name, clock in (clocks or {}).items()}
        self._clocks_mhz = dict(clocks_mhz or {})
        self._max_slowdown = max_slowdown

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

    def take_site(self, config: Config, settings: str = "") -> None:  # noqa: ARG002  # the hook's form
        """Take the site's clocks and its bound.

        Raises:
            ConfigError: a clock is for a GPU type that the catalogue does not know.
        """
        self._clocks_mhz, self._max_slowdown = fixed_clocks(config), config.policy.max_slowdown

    def decide(self, case: Case) -> PolicyAnswer:
        """Return the clock of each GPU type that the job can land on; the guard keeps it within the job's bounds."""
        clocks = [self._choice(gpu_type, case) for gpu_type in landing_types(case.candidates)]
        return PolicyAnswer(clocks=tuple(clock for clock in clocks if clock is not None))

    def _choice(self, gpu_type: GpuTypeName, case: Case) -> ClockChoice | None:
        limits, table = case.board_limits, case.comparison.all_clocks(gpu_type)
        if table is None:
            return None
        wanted = self._clocks_mhz.get(gpu_type)
        if wanted is None:
            best = case.comparison.clock_table(gpu_type) or table
            return clock_choice(gpu_type, best.best(self._max_slowdown), limits)
        nearest = CATALOG[gpu_type].nearest_supported_clock_mhz(wanted)
        return None if nearest is None else clock_choice(gpu_type, table.at(nearest), limits)


class _Search:
    """Measured joules per unit of one kind of job on one device type with one count, by clock."""

    __slots__ = ("_runs", "_sums")

    def __init__(self) -> None:
        self._runs: dict[int, int] = {}
        self._sums: dict[int, float] = {}

    def learn(self, clock: int, joules_per_unit: float) -> None:
        self._runs[clock] = self._runs.get(clock, 0) + 1
        self._sums[clock] = self._sums.get(clock, 0.0) + joules_per_unit

    def clock(self, start: int, lowest: int, highest: int) -> int:
        """Return an untried neighbour of the best clock so far, else that best clock.

        Args:
            start: The first clock to try.
            lowest: Least clock that the job's bounds allow.
            highest: The default clock.
        """
        tried = {clock: total / self._runs[clock] for clock, total in self._sums.items() if lowest <= clock <= highest}
        if not tried:
            return max(start, lowest)
        best = min(tried, key=lambda clock: (tried[clock], -clock))
        step = max(1, (highest + 1) // _STEPS)
        for neighbour in (max(lowest, best - step), min(highest, best + step)):
            if neighbour not in tried:
                return neighbour
        return best


class JobTableRule(FixedDvfsRule):
    """Slurm's placement; the clock by account and name, learned by trying one neighbouring clock after another.

    A pair of account and name starts at the fall-back clock; every further run takes an untried neighbour of the clock
    with the least measured joules per unit so far, until the clocks on both sides of the best are known to be worse.
    Device types and counts are searched apart.
    """

    name = "job-table"
    observes_ends = True

    def __init__(self, clocks: Mapping[tuple[str, str], float] | None = None, *, f: float = HIGHEST) -> None:
        """Store the settings.

        Args:
            clocks: Relative clock by account and name, where it is known; nothing is learned for these.
            f: Relative clock to fall back on, and to start from.
        """
        super().__init__(f=f)
        self._given = dict(clocks or {})
        self._searches: dict[tuple[str, str, str, int], _Search] = {}
        self._ran: dict[int, tuple[_Search, int]] = {}

    @property
    def uses(self) -> Capabilities:
        """What ended jobs measured says which clock is tried next."""
        return super().uses | {Capability.ENDED_JOBS}

    def begin(self, view: ClusterView, random: Random) -> None:
        """Forget what was learned."""
        super().begin(view, random)
        self._searches, self._ran = {}, {}

    def clock(self, choice: "PlaceClocks", place: int, count: int, job: WaitingJob, view: ClusterView) -> int:
        """Return the job's clock in the table, within its bounds."""
        where = view.places[place]
        given = self._given.get((job.account, job.name))
        if given is not None:
            wanted = nearest_clock(where.relative_clocks, given)
            return choice.at_least(wanted, place, count, job, view.now_seconds)
        if Capability.ENDED_JOBS not in view.capabilities:
            return choice.at_least(self._wanted[place], place, count, job, view.now_seconds)
        lowest = choice.at_least(0, place, count, job, view.now_seconds)
        key = (job.account, job.name, where.device, choice.counts[count])
        search = self._searches.setdefault(key, _Search())
        clock = search.clock(self._wanted[place], lowest, choice.default(place, count))
        self._ran[job.job_id] = (search, clock)
        return clock

    def ended(self, job: EndedJob) -> None:
        """Write down what a completed run used."""
        search, clock = self._ran.pop(job.job_id, (None, 0))
        if search is not None and job.state == "COMPLETED" and job.units > 0.0:
            search.learn(clock, job.energy_joules / job.units)


def nearest_clock(relative_clocks: Sequence[float], wanted: float) -> int:
    """Return the index of the clock nearest to a relative clock, the higher of two that are equally near."""
    return min(range(len(relative_clocks)), key=lambda index: (abs(relative_clocks[index] - wanted), -index))
