"""What ended jobs say of the tables: estimates of time and power that are wrong are put right by what was measured."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, log

import numpy as np

from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, OptionTable, PlaceInfo, Placement

_MEMORY = 0.95
"""What older jobs count beside a new one of the same length."""
_MIN_ERROR = 0.02
"""Smaller errors, as a logarithm, are left alone: waking and launch make runs look a little slow."""
_MAX_EXPECTED = 100_000


class _Ratio:
    """Measured over expected, weighted by length."""

    __slots__ = ("expected", "measured")

    def __init__(self) -> None:
        self.expected, self.measured = 0.0, 0.0

    def add(self, measured: float, expected: float) -> None:
        self.measured = _MEMORY * self.measured + measured
        self.expected = _MEMORY * self.expected + expected

    @property
    def factor(self) -> float:
        """1 where nothing is known or the error is small; in steps of 2 %, so that tables are seldom made again."""
        if self.expected <= 0.0 or self.measured <= 0.0:
            return 1.0
        error = log(self.measured / self.expected)
        return float(np.exp(round(error / _MIN_ERROR) * _MIN_ERROR)) if abs(error) > _MIN_ERROR else 1.0


class _Expected:
    __slots__ = ("clock", "device", "kind", "seconds_per_unit", "watts")

    def __init__(self, kind: str, device: str, clock: int, seconds_per_unit: float, watts: float) -> None:
        self.kind, self.device, self.clock = kind, device, clock
        self.seconds_per_unit, self.watts = seconds_per_unit, watts


class Corrections:
    """Factors on run time and power by kind of work and device type, from jobs that completed."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], _Ratio] = {}
        self._watts: dict[tuple[str, str], _Ratio] = {}
        self._expected: dict[int, _Expected] = {}
        self._tables: dict[tuple[OptionTable, tuple[float, ...]], OptionTable] = {}

    def expect(self, job: WaitingJob, placement: Placement, view: ClusterView) -> None:
        """Remember what the table says of a start; one beside another job says nothing of its kind alone."""
        if placement.partner is not None or len(self._expected) >= _MAX_EXPECTED:
            return
        table = view.options(job)
        where = (placement.place, table.count_index(placement.gpus), placement.clock)
        self._expected[job.job_id] = _Expected(
            job.kind,
            view.places[placement.place].device,
            placement.clock,
            float(table.seconds_per_unit[where]),
            float(table.watts[where]),
        )

    def learn(self, job: EndedJob) -> None:
        """Compare a completed job with what was expected; one whose clock was changed says nothing."""
        expected = self._expected.pop(job.job_id, None)
        if expected is None or job.state != "COMPLETED" or job.units <= 0.0 or job.run_seconds <= 0.0:
            return
        if expected.clock not in {job.clock, -1}:
            return
        seconds = expected.seconds_per_unit * job.units
        if not (isfinite(seconds) and seconds > 0.0):
            return
        key = (expected.kind, expected.device)
        self._seconds.setdefault(key, _Ratio()).add(job.run_seconds, seconds)
        self._watts.setdefault(key, _Ratio()).add(job.energy_joules, expected.watts * job.run_seconds)

    def corrected(self, kind: str, table: OptionTable, places: Sequence[PlaceInfo]) -> OptionTable:
        """Return the table with what is known of the kind put right; the same object while nothing changed."""
        if not self._seconds:
            return table
        factors = tuple(
            ratios[kind, place.device].factor if (kind, place.device) in ratios else 1.0
            for ratios in (self._seconds, self._watts)
            for place in places
        )
        if all(factor == 1.0 for factor in factors):
            return table
        found = self._tables.get((table, factors))
        if found is None:
            if len(self._tables) > 64:
                self._tables.clear()
            found = self._tables[table, factors] = _scaled(table, factors)
        return found


def _scaled(table: OptionTable, factors: Sequence[float]) -> OptionTable:
    seconds = np.array(factors[: len(factors) // 2])[:, None, None]
    watts = np.array(factors[len(factors) // 2 :])[:, None, None]
    return replace(
        table,
        seconds_per_unit=table.seconds_per_unit * seconds,
        watts=table.watts * watts,
        joules_per_unit=table.joules_per_unit * seconds * watts,
    )
