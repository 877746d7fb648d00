"""What ordinary runs of a job's name say of clocks: its own slowdown and energy, and the clock to begin the next with.

A name whose runs had two clocks measures its own response, without any trial in a job. The run time is taken as
T(f) = T (1 - a + a f_max / f): the part a that waits for the clock is what two clocks measure. The power is
P(f) = P (c + (1 - c) (f / f_max)^2.4). From both follows what a clock below the measured ones would do, with an error
that grows with the distance; a night goes at most half as far again as what was measured, and the next one measures it.

Medians of logarithms stand for means: one run that hung is one of many. A run that a canary's policy decided counts by
one over how likely that was, so that the live policy's habit of one clock is not taken for what the name does.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from statistics import median

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import CAUTION, LearnedClock
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.policy.candidate import NameClocks
from slurm_energy.store.site_history import ClockedRun

MIN_RUNS = 3
"""At the default clock, and at a lower one."""
MAX_RUNS = 60
"""The newest of a name on one GPU type: programs change."""
_AT_DEFAULT = 0.99
_POWER_EXPONENT = 2.4
"""Of the clock in the part of the power that follows it: voltage falls with it, to a floor."""
_STEP = 1.5
"""How far beyond the lowest measured clock a night goes, in terms of f_max / f - 1."""
_RUN_SPREAD = 0.002
"""Least standard error of a slowdown: runs differ by more than chance shows in a few."""
_MODEL_ERROR = 0.2
"""Of the slowdown beyond the measured one, that the model may be wrong."""
_MIN_GAIN = 0.005
"""Of the energy, below which a lower clock is not worth a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameResponse:
    """How a name's work answers to its clock on one GPU type."""

    user_id: int
    group: str
    gpu_type: GpuTypeName
    default_clock_mhz: int
    default_watts: float
    """Of one GPU at the default clock, a median over runs."""

    relative_clock: float
    """The lowest with enough runs."""
    sm_clock_mhz: int
    slowdown: float
    error: float
    power_ratio: float
    runs: int
    newest_seconds: float

    @property
    def power_floor(self) -> float:
        """Share of the power at the default clock that does not follow the clock."""
        share: float = self.relative_clock**_POWER_EXPONENT
        return min(0.95, max(0.0, (self.power_ratio - share) / (1.0 - share)))

    def time_at(self, relative_clock: float) -> float:
        """Return the run time at a clock over that at the default one."""
        distance = (1.0 / relative_clock - 1.0) / (1.0 / self.relative_clock - 1.0)
        return 1.0 + max(0.0, self.slowdown) * distance

    def power_at(self, relative_clock: float) -> float:
        """Return the power at a clock over that at the default one."""
        if relative_clock == self.relative_clock:
            return self.power_ratio
        following: float = (1.0 - self.power_floor) * relative_clock**_POWER_EXPONENT
        return self.power_floor + following


def name_clocks(runs: Iterable[ClockedRun], max_slowdown: float) -> tuple[NameClocks, ...]:
    """Return the clock of every name that ran at two, where it keeps the bound with its error.

    Args:
        runs: Of any names, in any order.
        max_slowdown: Bound of the site's jobs that name none.
    """
    found: dict[tuple[int, str], dict[GpuTypeName, LearnedClock]] = {}
    for response in name_responses(runs):
        clock = _best_clock(response, max_slowdown)
        if clock is not None:
            found.setdefault((response.user_id, response.group), {})[response.gpu_type] = clock
    return tuple(
        NameClocks(user_id=user_id, group=group, clocks=clocks) for (user_id, group), clocks in sorted(found.items())
    )


def name_responses(runs: Iterable[ClockedRun]) -> tuple[NameResponse, ...]:
    """Return how every name that ran at two clocks answers to them."""
    found = (_response(key, members) for key, members in _by_name(runs).items())
    return tuple(response for response in found if response is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameDraw:
    """What a name's runs drew, whether or not they ran at two clocks."""

    user_id: int
    group: str
    gpu_type: GpuTypeName
    relative_clock: float
    """That most of them had."""
    watts: float
    """Of one GPU at it, a median over runs."""
    joules: float
    """Of all its runs."""


def name_draws(runs: Iterable[ClockedRun]) -> tuple[NameDraw, ...]:
    """Return what the runs of every name with enough of them drew."""
    found = []
    for (user_id, group, gpu_type), members in _by_name(runs).items():
        usual = Counter(run.sm_clock_mhz for run in members).most_common(1)[0][0]
        same = [run for run in members if run.sm_clock_mhz == usual]
        if len(same) >= MIN_RUNS:
            found.append(
                NameDraw(
                    user_id=user_id,
                    group=group,
                    gpu_type=gpu_type,
                    relative_clock=min(1.0, usual / same[0].default_clock_mhz),
                    watts=median(run.joules / run.device_seconds / run.gpus for run in same),
                    joules=sum(run.joules for run in members),
                )
            )
    return tuple(found)


def _by_name(runs: Iterable[ClockedRun]) -> Mapping[tuple[int, str, GpuTypeName], Sequence[ClockedRun]]:
    """Return the newest runs of each user, name and GPU type, of the number of GPUs that most had."""
    grouped: dict[tuple[int, str, GpuTypeName], list[ClockedRun]] = defaultdict(list)
    for run in runs:
        group = job_group(run.name, run.script_key)
        if group:
            grouped[run.user_id, group, run.gpu_type].append(run)
    found = {}
    for key, members in grouped.items():
        counts: dict[tuple[int, int], int] = defaultdict(int)
        for run in members:
            counts[run.gpus, run.default_clock_mhz] += 1
        usual = max(counts, key=lambda one: counts[one])
        same = [run for run in members if (run.gpus, run.default_clock_mhz) == usual]
        found[key] = sorted(same, key=lambda run: -run.ended_at_seconds)[:MAX_RUNS]
    return found


def _response(key: tuple[int, str, GpuTypeName], runs: Sequence[ClockedRun]) -> NameResponse | None:
    default_mhz = runs[0].default_clock_mhz
    by_clock: dict[int, list[ClockedRun]] = defaultdict(list)
    for run in runs:
        by_clock[default_mhz if run.sm_clock_mhz >= _AT_DEFAULT * default_mhz else run.sm_clock_mhz].append(run)
    base = by_clock.pop(default_mhz, [])
    lower = [clock for clock, members in by_clock.items() if len(members) >= MIN_RUNS and clock < default_mhz]
    if len(base) < MIN_RUNS or not lower:
        return None
    clock = min(lower)
    members = by_clock[clock]
    times, time_error = _log_ratio(members, base, lambda run: run.seconds)
    watts, _ = _log_ratio(members, base, lambda run: run.joules / run.device_seconds)
    user_id, group, gpu_type = key
    return NameResponse(
        user_id=user_id,
        group=group,
        gpu_type=gpu_type,
        default_clock_mhz=default_mhz,
        default_watts=median(run.joules / run.device_seconds / run.gpus for run in base),
        relative_clock=clock / default_mhz,
        sm_clock_mhz=clock,
        slowdown=exp(times) - 1.0,
        error=hypot(time_error, _RUN_SPREAD),
        power_ratio=exp(watts),
        runs=len(members),
        newest_seconds=max(run.ended_at_seconds for run in members),
    )


def _log_ratio(
    runs: Sequence[ClockedRun], base: Sequence[ClockedRun], of: Callable[[ClockedRun], float]
) -> tuple[float, float]:
    """Return the logarithm of the ratio of medians, and its standard error."""
    centres, variance = [], 0.0
    for members in (runs, base):
        values = [log(of(run)) for run in members]
        weights = [1.0 / run.probability for run in members]
        centre = _weighed_median(values, weights)
        spread = 1.4826 * median(abs(value - centre) for value in values)
        # The median of few values varies by 1.25 standard deviations over the root of their number.
        effective = sum(weights) ** 2 / sum(weight * weight for weight in weights)
        variance += (1.2533 * spread) ** 2 / effective
        centres.append(centre)
    return centres[0] - centres[1], sqrt(variance)


def _weighed_median(values: Sequence[float], weights: Sequence[float]) -> float:
    if len(set(weights)) == 1:
        return median(values)
    ordered = sorted(zip(values, weights, strict=True))
    half, passed = sum(weights) / 2.0, 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    return ordered[-1][0]


def _best_clock(response: NameResponse, max_slowdown: float) -> LearnedClock | None:
    """Return the clock of the least energy among the measured one and those a step below, that keeps the bound."""
    measured = _learned(response.sm_clock_mhz, response)
    best = measured if measured.upper <= max_slowdown and measured.energy_change < 0.0 else None
    for clock in _clocks_below(response):
        one = _learned(clock, response)
        limit = 0.0 if best is None else best.energy_change
        if one.upper <= max_slowdown and one.energy_change < limit - _MIN_GAIN:
            best = one
    return best


def _clocks_below(response: NameResponse) -> Iterator[int]:
    table = clock_table_of(response.gpu_type)
    known = CATALOG[response.gpu_type].sm_clocks_mhz if response.gpu_type in CATALOG else ()
    supported = known if table is None else [point.sm_clock_mhz for point in table.points]
    reach = _STEP * (1.0 / response.relative_clock - 1.0)
    for clock in sorted(supported, reverse=True):
        if clock < response.sm_clock_mhz and response.default_clock_mhz / clock - 1.0 <= reach:
            yield clock


def _learned(clock: int, response: NameResponse) -> LearnedClock:
    """Return what the response says of a clock."""
    x = clock / response.default_clock_mhz
    distance = (1.0 / x - 1.0) / (1.0 / response.relative_clock - 1.0)
    slowdown = response.time_at(x) - 1.0
    beyond = _MODEL_ERROR * max(0.0, slowdown - response.slowdown)
    return LearnedClock(
        sm_clock_mhz=clock,
        default_clock_mhz=response.default_clock_mhz,
        slowdown=slowdown,
        error=hypot(response.error * distance, beyond / CAUTION),
        energy_change=response.power_at(x) * (1.0 + slowdown) - 1.0,
        runs=response.runs if distance == 1.0 else 0,
        measured_at_seconds=response.newest_seconds,
        by_trial=False,
    )
