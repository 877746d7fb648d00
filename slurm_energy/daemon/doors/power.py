"""A power budget of the cluster: the clocks of running jobs give way to it, those first where it costs the least speed.

Nodes state what each of their jobs draws and at which clock, every few seconds; the answer is the highest clock that
the job may have until it asks again. What a job would draw at another clock follows from its own measured power and the
curves of its GPU type, and is measured again at that clock, so that an error of the curves does not stay.
"""

import contextlib
import json
import logging
import threading
import time
import urllib.request
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import log
from pathlib import Path
from urllib.parse import urlsplit

from slurm_energy.config import PowerConfig
from slurm_energy.domain.ids import GpuTypeName, JobId, NodeName
from slurm_energy.energy_model.catalog import gpu_type as catalogue_row
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.energy_model.facility import StepSeries, read_budget
from slurm_energy.errors import ConfigError, SpoolError
from slurm_energy.files import write_atomically
from slurm_energy.policy.rules.running_clocks import CappedJob, Ladder, lower_clocks, raise_clocks
from slurm_energy.wire.running_power import ClockOrder, RunningPower

logger = logging.getLogger(__name__)

STATUS_FILE = "power.json"
STATUS_SECONDS = 2.0
"""Between two writes of the status."""
ROUND_SECONDS = 1.0
"""Between two looks at all jobs, except for a job that was not known before."""
RAISE_SHARE = 0.03
"""Of the budget that must be free before clocks are raised, so that noise in the readings moves none up and down."""
RAISE_PART = 0.6
"""Of what is free that one look at the jobs gives back."""
JOB_COST_SECONDS = 0.02
"""A credential costs munge 10 ms on each side: with many jobs, nodes are asked to come less often."""
MAX_JOBS = 50_000
CLOCKS = 49
"""Steps between a type's lowest and default clock."""
SERIES_SECONDS = 60.0
"""Between two readings of a series that a server has."""
FILE_SECONDS = 2.0
"""Between two looks whether a series' file has changed."""
SERIES_TIMEOUT_SECONDS = 10.0
MAX_SERIES_BYTES = 4 * 1024 * 1024
MIN_SPEED_STEP = 1e-6
"""Of speed that a higher clock is taken to bring where the board's power limit holds: every clock is given back."""
MIN_LOG_CHANGE = 0.05
"""Of the clock, as a logarithm: a smaller change says nothing of how a job's power follows it."""
MIN_EXPONENT, MAX_EXPONENT = 0.8, 3.2
"""Power above idle goes with this power of the clock: leakage and memory follow little, switching with its cube."""
UNKNOWN_EXPONENT = 2.0
UNKNOWN_IDLE_SHARE = 0.2
"""Of its present power that a GPU of an unknown type is taken to draw at any clock."""


class BudgetSeries:
    """The budget at a time: fixed, or from a file or a server; the last one that was read stays."""

    def __init__(self, config: PowerConfig, now: Callable[[], float] = time.time) -> None:
        """Store the settings; nothing is read yet.

        Args:
            config: The settings.
            now: Unix time.
        """
        self._config = config
        self._now = now
        self._series: StepSeries | None = None
        self._version: tuple[int, int, int] | None = None
        self.problem = ""
        """Why the series could not be read the last time; empty where it was."""

    def follow(self) -> None:
        """Read the series now and whenever it may have changed, in a thread that does not hold up the process's end."""
        if self._config.budget_series:
            threading.Thread(target=self._read_on, name="budget", daemon=True).start()

    def _read_on(self) -> None:
        while True:
            self.read()
            time.sleep(SERIES_SECONDS if _is_address(self._config.budget_series) else FILE_SECONDS)

    def read(self) -> None:
        """Read the series; a server may take long to answer."""
        place = self._config.budget_series
        version = None if _is_address(place) else _version(place)
        if version is not None and version == self._version:
            return
        self._version = version
        try:
            self._series = read_budget(_text(place), place)
            self.problem = ""
        except ConfigError as error:
            if str(error) != self.problem:
                logger.error("power budget not read error=%s", error)
            self.problem = str(error)

    def watts(self) -> float | None:
        """Return what the GPUs of running jobs may draw together now, None for no budget."""
        if not self._config.budget_series:
            total = self._config.budget_watts
            return None if total <= 0.0 else max(total - self._config.other_watts, 0.0)
        if self._series is None:
            return None
        now = self._now()
        value = self._series.mean(now, now)
        if value is None:  # before its first row, or after its last one: that row still holds
            value = self._series.values[0 if now < self._series.starts_seconds[0] else -1]
        return max(value - self._config.other_watts, 0.0)


def _is_address(place: str) -> bool:
    return urlsplit(place).scheme in {"http", "https"}


def _version(place: str) -> tuple[int, int, int] | None:
    """Return what changes with a file's content."""
    try:
        status = Path(place).stat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _text(place: str) -> str:
    """Return the text of a file, or what a server answers.

    Raises:
        ConfigError: there is none in time, or it is too long.
    """
    try:
        if _is_address(place):
            with urllib.request.urlopen(place, timeout=SERIES_TIMEOUT_SECONDS) as answer:  # noqa: S310  # scheme checked
                content: bytes = answer.read(MAX_SERIES_BYTES + 1)
        else:
            with Path(place).open("rb") as file:
                content = file.read(MAX_SERIES_BYTES + 1)
        if len(content) > MAX_SERIES_BYTES:
            raise ConfigError(f"{place} is over {MAX_SERIES_BYTES} bytes")
        return content.decode()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{place} cannot be read: {error}") from error


@dataclass(slots=True)
class _Running:
    """One job on one node."""

    found: RunningPower
    seen_seconds: float
    ordered_mhz: int | None = None
    """None: its own clock."""
    exponent: float = 0.0
    """Of the clock, with which its power above idle goes; 0 until it has run at two clocks: then its type's holds."""
    clocks_mhz: tuple[int, ...] = ()
    watts: list[float] = field(default_factory=list)
    """Of all its GPUs, by clock."""
    speed: list[float] = field(default_factory=list)
    _measured: tuple[int, float] | None = None
    """Clock in MHz and power above idle that were measured last."""

    @property
    def top(self) -> int:
        """Index of its own clock."""
        return _at_or_below(self.clocks_mhz, self.found.decided_clock_mhz)

    @property
    def clock(self) -> int:
        """Index of the clock that it has, or was ordered to take."""
        return self.top if self.ordered_mhz is None else _at_or_below(self.clocks_mhz, self.ordered_mhz)

    def take(self, found: RunningPower, now_seconds: float) -> None:
        """Take what the node says; what was known of its power stays where it says nothing."""
        new_clocks = self.found.lowest_clock_mhz, self.found.default_clock_mhz
        if not self.clocks_mhz or new_clocks != (found.lowest_clock_mhz, found.default_clock_mhz):
            self.clocks_mhz = _clocks(found.lowest_clock_mhz, found.default_clock_mhz)
        self.found, self.seen_seconds = found, now_seconds
        speed, of_type, idle = _shape(found.gpu_type, self.clocks_mhz)
        self.speed = [found.num_gpus * value for value in speed]
        present = _at_or_below(self.clocks_mhz, found.clock_mhz)
        watts = found.watts
        if watts is None:
            watts = self.watts[present] if self.watts else found.num_gpus * _expected_watts(found.gpu_type)
        base = min(found.num_gpus * idle if idle else UNKNOWN_IDLE_SHARE * watts, watts)
        if found.watts is not None:
            self._learn(found.clock_mhz, watts - base)
        # Down as learned, up as the steeper of both: a raise that takes more than was expected would be taken back.
        down = self.exponent or of_type
        up = max(down, of_type)
        self.watts = [
            base + (watts - base) * (clock / found.clock_mhz) ** (up if at > present else down)
            for at, clock in enumerate(self.clocks_mhz)
        ]

    def _learn(self, clock_mhz: int, active_watts: float) -> None:
        """Learn from power above idle at two clocks how it goes with the clock."""
        before, self._measured = self._measured, (clock_mhz, active_watts)
        if before is None or active_watts <= 0.0 or before[1] <= 0.0:
            return
        change = log(clock_mhz / before[0])
        if abs(change) >= MIN_LOG_CHANGE:
            found = min(max(log(active_watts / before[1]) / change, MIN_EXPONENT), MAX_EXPONENT)
            self.exponent = 0.5 * (self.exponent + found) if self.exponent else found


class RunningClocks:
    """The clocks of all jobs whose nodes ask; used by one thread."""

    def __init__(
        self, config: PowerConfig, budget: BudgetSeries, state_directory: Path, monotonic: Callable[[], float]
    ) -> None:
        """Make it.

        Args:
            config: The settings.
            budget: The budget.
            state_directory: Where the status is written.
            monotonic: Seconds that never go back.
        """
        self._config = config
        self._budget = budget
        self._path = state_directory / STATUS_FILE
        self._monotonic = monotonic
        self._jobs: dict[tuple[NodeName, JobId], _Running] = {}
        self._round_seconds = self._written_seconds = -STATUS_SECONDS
        self.missing_watts = 0.0
        """That the present clocks draw over the budget, with every clock at its lowest."""

    def answer(self, found: RunningPower) -> ClockOrder:
        """Return the clock that a job may have.

        Args:
            found: What its node says, authenticated.
        """
        now = self._monotonic()
        key = found.node, found.job_id
        job = self._jobs.pop(key, None)
        is_new = job is None
        if job is None:
            job = _Running(found, now)
            while len(self._jobs) >= MAX_JOBS:  # the one that was heard of longest ago
                del self._jobs[next(iter(self._jobs))]
        job.take(found, now)
        self._jobs[key] = job  # at the end: they stand in the order in which they were heard of
        if is_new or now - self._round_seconds >= ROUND_SECONDS:
            self._round(now)
        ask = max(self._config.ask_seconds, JOB_COST_SECONDS * len(self._jobs))
        lease = max(self._config.lease_seconds, 3.0 * ask)
        return ClockOrder(clock_mhz=job.ordered_mhz, lease_seconds=lease, ask_seconds=ask)

    def _round(self, now: float) -> None:
        self._round_seconds = now
        limit = max(self._config.lease_seconds, 3.0 * JOB_COST_SECONDS * len(self._jobs))
        while self._jobs:
            oldest = next(iter(self._jobs))
            if now - self._jobs[oldest].seen_seconds <= limit:
                break
            del self._jobs[oldest]
        budget = self._budget.watts()
        drawn = sum(job.watts[job.clock] for job in self._jobs.values())
        self.missing_watts = 0.0
        if budget is None:
            for job in self._jobs.values():
                job.ordered_mhz = None
        else:
            self._fit(budget * (1.0 - self._config.margin), budget, drawn)
        self._write(now, budget)

    def _fit(self, aim_watts: float, budget_watts: float, drawn_watts: float) -> None:
        """Lower clocks until the aim is kept, or raise them as far as it leaves room."""
        nodes: dict[JobId, list[_Running]] = {}
        for one in self._jobs.values():
            nodes.setdefault(one.found.job_id, []).append(one)
        jobs = [_as_one(held) for held in nodes.values()]
        capped = [job for job in jobs if job is not None]
        over = drawn_watts - aim_watts
        if over > 0.0:
            self.missing_watts = max(lower_clocks(capped, over), 0.0)
        elif -over > RAISE_SHARE * budget_watts:
            raise_clocks(capped, RAISE_PART * -over)
        for job, held in zip(jobs, nodes.values(), strict=True):
            for one in held:
                one.ordered_mhz = None if job is None or job.clock >= one.top else one.clocks_mhz[job.clock]

    def _write(self, now: float, budget: float | None) -> None:
        if now - self._written_seconds < STATUS_SECONDS:
            return
        self._written_seconds = now
        jobs = self._jobs.values()
        document = {
            "at_seconds": time.time(),
            "budget_watts": budget,
            "other_watts": self._config.other_watts,
            "drawn_watts": sum(job.watts[_at_or_below(job.clocks_mhz, job.found.clock_mhz)] for job in jobs),
            "missing_watts": self.missing_watts,
            "jobs": len(self._jobs),
            "lowered": sum(job.ordered_mhz is not None for job in jobs),
            "problem": self._budget.problem,
        }
        with contextlib.suppress(SpoolError):  # a full disk is reported by those who need it
            write_atomically(self._path, json.dumps(document).encode(), mode=0o640, durable=False)


def _as_one(held: list[_Running]) -> CappedJob | None:
    """Return a job on all its nodes, whose clocks move together since they wait for each other; None: they stay."""
    first = held[0]
    if not all(one.found.may_lower and one.clocks_mhz == first.clocks_mhz and one.top == first.top for one in held):
        return None
    return CappedJob(
        job_id=first.found.job_id,
        ladder=Ladder(
            watts=[sum(values) for values in zip(*(one.watts for one in held), strict=True)],
            speed=[sum(values) for values in zip(*(one.speed for one in held), strict=True)],
            free_watts=0.0,
            relative_clocks=(),
            highest=first.top,
            efficient=0,
        ),
        lowest=0,
        clock=min(one.clock for one in held),
    )


def read_power_status(state_directory: Path) -> dict[str, object] | None:
    """Return what was written last of the budget and of what is drawn, None where no node has asked."""
    try:
        document = json.loads((state_directory / STATUS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


@lru_cache(maxsize=256)
def _clocks(lowest_mhz: int, default_mhz: int) -> tuple[int, ...]:
    """Return clocks from the lowest to the default, ascending."""
    steps = max(min(CLOCKS - 1, (default_mhz - lowest_mhz) // 5), 1)
    return tuple(
        dict.fromkeys(round(lowest_mhz + (default_mhz - lowest_mhz) * step / steps) for step in range(steps + 1))
    )


@lru_cache(maxsize=256)
def _shape(name: GpuTypeName | None, clocks_mhz: tuple[int, ...]) -> tuple[list[float], float, float]:
    """Return the speed against the default clock's, by clock, how power above idle goes with the clock, and idle watts.

    By the means of the type's curves, below their lowest clock too; without any, speed is taken to fall with the clock.
    """
    row = None if name is None else catalogue_row(name)
    curves = () if name is None else curves_of(name)
    idle = 0.0 if row is None or row.idle_watts is None else row.idle_watts
    top = clocks_mhz[-1]
    if not curves:
        return [clock / top for clock in clocks_mhz], UNKNOWN_EXPONENT, idle
    speed: list[float] = []
    for clock in clocks_mhz:
        rates = []
        for curve in curves:
            limit = min(curve.power_limit_watts, curve.board_limit_watts)
            real = curve.power.relative_clock_at(limit, top / curve.reference_clock_mhz)
            here = min(clock / curve.reference_clock_mhz, real)
            rates.append(curve.runtime.seconds(real) / curve.runtime.seconds(here))
        speed.append(sum(rates) / len(rates) + MIN_SPEED_STEP * len(speed))
    exponents = [
        log(max(curve.power.watts(0.7) - idle, 1.0) / max(curve.power.watts(1.0) - idle, 1.0)) / log(0.7)
        for curve in curves
    ]
    return speed, min(max(sum(exponents) / len(exponents), MIN_EXPONENT), MAX_EXPONENT), idle


def _expected_watts(name: GpuTypeName | None) -> float:
    """Return the power of a GPU at work of which nothing was measured yet: the board's limit, which is no less."""
    row = None if name is None else catalogue_row(name)
    return 300.0 if row is None or row.power_limit_watts is None else row.power_limit_watts


def _at_or_below(clocks_mhz: tuple[int, ...], clock_mhz: int) -> int:
    """Return the index of the highest clock up to this one, 0 where there is none."""
    return max(bisect_right(clocks_mhz, clock_mhz) - 1, 0)
