"""Fits what two job types do to each other on one GPU (Gavel), for pairs that were not measured too: sharing.json."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from research.calibration.time_slicing import fit_time_slicing
from slurm_energy.energy_model.calibration.files import Document, Tell, Vector, document, read_rows
from slurm_energy.energy_model.coefficients import FitError

SOURCE = (
    "Gavel, OSDI 2020, stanford-futuredata/gavel c4fa4009 (MIT): pairs on K80, P100, V100; "
    "own measurement of one H100, 2026-11-27 (CC0-1.0): pairs with power"
)
PENALTY = 0.3
"""Of each squared effect, in squared log speed. The error on left-out pairs hardly moves between 0.1 and 1."""
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two job types that were tried together on one GPU."""

    gpu: str
    job: str
    partner: str
    speed: float
    partner_speed: float
    feasible: bool

    @property
    def key(self) -> tuple[str, str]:
        """The two job types, the same in either order."""
        return min(self.job, self.partner), max(self.job, self.partner)


@dataclass(frozen=True, slots=True)
class Observations:
    """Speeds of one job beside another, two for each pair of different jobs, [num_observations] each."""

    gpu: Indices
    job: Indices
    partner: Indices
    speed: Vector
    pair: Indices
    """Number of the pair, the same on every GPU: a left-out pair is left out everywhere."""


class EffectModel:
    """log speed as a sum of effects: of the GPU, the job, the partner and both networks, over all GPUs and for each.

    Ridge regression: an effect that few observations speak of stays near 0, so that a job type which is absent on one
    GPU gets there what it has on the others.
    """

    def __init__(self, gpus: Sequence[str], jobs: Sequence[str]) -> None:
        self.gpus, self.jobs = list(gpus), list(jobs)
        self.families = sorted({family_of(job) for job in jobs})
        self._family = np.array([self.families.index(family_of(job)) for job in jobs])
        num_jobs, num_families = len(self.jobs), len(self.families) ** 2
        self._widths = (num_jobs, num_jobs, num_families)
        self.num_effects = len(self.gpus) + (1 + len(self.gpus)) * sum(self._widths)

    def matrix(self, gpu: Indices, job: Indices, partner: Indices) -> Vector:
        """Return which effects each observation has, [num_observations, num_effects]."""
        rows, matrix = np.arange(len(job)), np.zeros((len(job), self.num_effects))
        matrix[rows, gpu] = 1.0
        families = self._family[job] * len(self.families) + self._family[partner]
        start = len(self.gpus)
        for which, width in zip((job, partner, families), self._widths, strict=True):
            matrix[rows, start + which] = 1.0
            matrix[rows, start + (1 + gpu) * width + which] = 1.0
            start += (1 + len(self.gpus)) * width
        return matrix

    def penalties(self) -> Vector:
        """Return the penalty of each effect; the GPUs' means have none to speak of."""
        penalties: Vector = np.full(self.num_effects, PENALTY)
        penalties[: len(self.gpus)] = 1e-6
        return penalties

    def split(self, effects: Vector, gpu: int) -> tuple[float, Vector, Vector, Vector]:
        """Return mean, own, partner and network effects of one GPU, those over all GPUs added."""
        start, found = len(self.gpus), []
        for width in self._widths:
            block = effects[start : start + (1 + len(self.gpus)) * width].reshape(-1, width)
            found.append(block[0] + block[1 + gpu])
            start += block.size
        return float(effects[gpu]), found[0], found[1], found[2]


def read_pairs(path: Path) -> list[Pair]:
    """Return every pair that was tried."""
    columns = ("gpu", "job_a", "job_b", "feasible", "a_relative_speed", "b_relative_speed")
    pairs = []
    for row in read_rows(path, columns):
        feasible = row.count("feasible") == 1
        lowest = 1e-6 if feasible else 0.0
        pairs.append(
            Pair(
                gpu=row.text("gpu"),
                job=row.text("job_a"),
                partner=row.text("job_b"),
                speed=row.number("a_relative_speed", lowest),
                partner_speed=row.number("b_relative_speed", lowest),
                feasible=feasible,
            )
        )
    return pairs


def fit_sharing(data: Path, tell: Tell) -> Document:
    """Return sharing.json."""
    pairs = read_pairs(data / "gavel_throughputs" / "colocated_pairs.csv")
    gpus = sorted({pair.gpu for pair in pairs})
    model = EffectModel(gpus, sorted({job for pair in pairs for job in (pair.job, pair.partner)}))
    seen = observations(model, [pair for pair in pairs if pair.feasible])
    matrix = model.matrix(seen.gpu, seen.job, seen.partner)
    effects = _inverse(model, matrix) @ matrix.T @ np.log(seen.speed)
    left_out = {
        "leave-pair-out": leave_out(model, seen, [seen.pair == pair for pair in np.unique(seen.pair)], tell),
        "leave-job-type-out": leave_out(model, seen, _jobs_of_each_gpu(model, seen), tell),
        "fit": _distance(matrix @ effects, seen.speed),
    }
    entries, errors = {}, []
    for index, gpu in enumerate(gpus):
        entries[gpu] = _entry(model, effects, index, [pair for pair in pairs if pair.gpu == gpu])
        here = seen.gpu == index
        for method, distance in left_out.items():
            absolute, relative = distance[:, here].mean(axis=1).tolist()
            entries[gpu].setdefault("mean_absolute_error", {})[method] = absolute
            quantity = f"{gpu.upper()}: speed of a job beside another"
            errors.append(
                FitError(quantity=quantity, mean_relative_error=relative, num_points=int(here.sum()), method=method)
            )
    slicing, slicing_errors = fit_time_slicing(data / "h100-measured")
    return document(SOURCE, [*errors, *slicing_errors], {"pairs": entries, "time_slicing": slicing})


def observations(model: EffectModel, pairs: Sequence[Pair]) -> Observations:
    """Return what pairs say: each job beside its partner, a job beside itself once."""
    numbers = {key: index for index, key in enumerate(sorted({pair.key for pair in pairs}))}
    rows: list[tuple[int, int, int, int]] = []
    speeds: list[float] = []
    for pair in pairs:
        gpu, job, partner = model.gpus.index(pair.gpu), model.jobs.index(pair.job), model.jobs.index(pair.partner)
        rows.append((gpu, job, partner, numbers[pair.key]))
        speeds.append(pair.speed)
        if job != partner:
            rows.append((gpu, partner, job, numbers[pair.key]))
            speeds.append(pair.partner_speed)
    gpus, jobs, partners, keys = np.array(rows, dtype=np.int64).T
    return Observations(gpus, jobs, partners, np.array(speeds), keys)


def leave_out(model: EffectModel, seen: Observations, groups: Sequence[npt.NDArray[np.bool_]], tell: Tell) -> Vector:
    """Return absolute and relative error of each observation by fits that saw nothing of its group, [2, num].

    Where an observation is in several groups, the errors are averaged, not the estimates. For ridge regression the
    residuals of a left-out group follow exactly from the fit to all: (I - H_gg)^-1 r_g, H the hat matrix (Cook and
    Weisberg, Residuals and Influence in Regression, 1982, section 2.2).

    Args:
        model: The effects.
        seen: All observations.
        groups: For each group which observations are left out together, [num_observations].
        tell: Called with the progress.
    """
    matrix, target = model.matrix(seen.gpu, seen.job, seen.partner), np.log(seen.speed)
    hat = matrix @ _inverse(model, matrix) @ matrix.T
    residual = target - hat @ target
    total, times = np.zeros((2, len(target))), np.zeros(len(target))
    for index, group in enumerate(groups):
        tell("sharing", index, len(groups))
        missed = np.linalg.solve(np.eye(int(group.sum())) - hat[np.ix_(group, group)], residual[group])
        total[:, group] += _distance(target[group] - missed, seen.speed[group])
        times[group] += 1.0
    tell("sharing", len(groups), len(groups))
    found: Vector = total / times
    return found


def family_of(job: str) -> str:
    """Return the network of a job type: `ResNet-18` of `ResNet-18 (batch size 16)`."""
    return job.partition(" (")[0]


def _inverse(model: EffectModel, matrix: Vector) -> Vector:
    """Return the inverse of the penalised normal matrix, [num_effects, num_effects]."""
    return np.asarray(np.linalg.inv(matrix.T @ matrix + np.diag(model.penalties())), dtype=np.float64)


def _distance(log_speed: Vector, measured: Vector) -> Vector:
    """Return absolute and relative error, [2, num]; no job is faster beside another than alone."""
    difference = np.abs(np.minimum(1.0, np.exp(log_speed)) - measured)
    return np.stack([difference, difference / measured])


def _jobs_of_each_gpu(model: EffectModel, seen: Observations) -> list[npt.NDArray[np.bool_]]:
    """Return, for each GPU and job type, its observations there: as if the job type had never run on that GPU."""
    groups = []
    for gpu in range(len(model.gpus)):
        for job in range(len(model.jobs)):
            group = (seen.gpu == gpu) & ((seen.job == job) | (seen.partner == job))
            if group.any():
                groups.append(group)
    return groups


def _entry(model: EffectModel, effects: Vector, gpu: int, pairs: Sequence[Pair]) -> dict[str, Any]:
    mean, own, partner, family = model.split(effects, gpu)
    square = family.reshape(len(model.families), -1)
    return {
        "mean": mean,
        "own": dict(zip(model.jobs, own.tolist(), strict=True)),
        "partner": dict(zip(model.jobs, partner.tolist(), strict=True)),
        "family": {
            name: dict(zip(model.families, row.tolist(), strict=True))
            for name, row in zip(model.families, square, strict=True)
        },
        "measured": [[pair.job, pair.partner, pair.speed, pair.partner_speed] for pair in pairs if pair.feasible],
        "infeasible": [[pair.job, pair.partner] for pair in pairs if not pair.feasible],
    }
