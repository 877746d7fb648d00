"""Mixed work for a cluster of GPU and CPU nodes, and task graphs of it: jobs that wait for others' results.

The kinds are matrix products of nine sizes, training, science and analytics.

The shares and lengths are assumptions of this package, not measurements. Work is drawn in *reference seconds*: seconds
on one reference device at its default clock. One unit of `training`, `scientific` and `analytics` is one such second.
One unit of `matrix-<n>` is one product of two n x n matrices in double precision, 2 n^3 operations, and the reference
device is taken to do 10^12 of them a second: a round figure under the 1.43 x 10^12 that NVIDIA states for a K40.

Of the graphs, `batch-parallel` splits, works on independent parts, and gathers; `pipeline` is a chain of stages;
`data-parallel` works in rounds, each on all workers, with a reduction between. All tasks of a graph are submitted at
once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log

import numpy as np

from slurm_energy.errors import ConfigError
from slurm_energy.twin.engine.job import Job, Workload, plain_job
from slurm_energy.twin.workloads.generating import (
    check_expected_jobs,
    check_range,
    comma_list,
    poisson_times,
    workload_streams,
)

MATRIX_SIDES = tuple(range(200, 2000, 200))
REFERENCE_FLOP_PER_SECOND = 1e12
TRAINING, SCIENTIFIC, ANALYTICS = "training", "scientific", "analytics"


def matrix_kind(side: int) -> str:
    """Return the kind of products of matrices with so many rows and columns."""
    return f"matrix-{side}"


def units_per_reference_second(kind: str) -> float:
    """Return how many units of a kind the reference device does in a second."""
    prefix, _, side = kind.partition("-")
    if prefix == "matrix" and side.isdecimal() and int(side) > 0:
        return REFERENCE_FLOP_PER_SECOND / (2.0 * int(side) ** 3)
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSettings:
    """What makes a mixed workload; lengths are medians in seconds on one reference device."""

    rate_per_second: float = 0.1
    hours: float = 24.0
    matrix_share: float = 0.5
    """Of all jobs; the matrix sizes 200 to 1800 are equally likely."""
    training_share: float = 0.2
    scientific_share: float = 0.15
    analytics_share: float = 0.15
    matrix_seconds: float = 300.0
    training_seconds: float = 7200.0
    scientific_seconds: float = 3600.0
    analytics_seconds: float = 600.0
    size_sigma: float = 0.8
    """Standard deviation of the logarithm of the length, of every kind."""
    min_slack: float = 0.0
    max_slack: float = 0.0
    """Above 0, jobs are due at submission + slack x their run on reference devices, as few as they ask for; slack is
    uniform in its logarithm between the two."""
    max_gpus: int = 4
    """Training runs on any count up to it, science on a power of two up to it, the rest on one device."""

    def __post_init__(self) -> None:
        check_range("rate_per_second", self.rate_per_second, 0.0)
        check_range("hours", self.hours, 0.0)
        for name in ("matrix", "training", "scientific", "analytics"):
            check_range(f"{name}_share", getattr(self, f"{name}_share"), 0.0)
            check_range(f"{name}_seconds", getattr(self, f"{name}_seconds"), 0.0, above=True)
        if not sum(self.shares) > 0.0:
            raise ConfigError("workload settings matrix_share to analytics_share are all 0: one must be above")
        check_range("size_sigma", self.size_sigma, 0.0, 20.0)
        check_range("max_gpus", self.max_gpus, 1, 1000)
        check_range("min_slack", self.min_slack, 0.0)
        check_range("max_slack", self.max_slack, self.min_slack)
        if (self.min_slack > 0.0) != (self.max_slack > 0.0):
            raise ConfigError("workload settings min_slack and max_slack are both above 0, or both 0")
        check_expected_jobs(self.rate_per_second * self.hours * 3600.0)

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Shares of matrix, training, scientific and analytics jobs; they need not add to 1."""
        return self.matrix_share, self.training_share, self.scientific_share, self.analytics_share


def matrix_workload(settings: MatrixSettings, seed: int) -> Workload:
    """Return jobs in the order of time; kinds, lengths and arrivals come from streams of their own.

    Raises:
        ConfigError: the seed is negative.
    """
    arrivals, sizes, mix, widths = (np.random.default_rng(stream) for stream in workload_streams(seed, 4))
    times = poisson_times(settings.rate_per_second, settings.hours * 3600.0, arrivals)
    deviations = sizes.standard_normal(len(times))
    draws = mix.random((len(times), 2))
    edges = np.cumsum(settings.shares) / sum(settings.shares)
    families = np.searchsorted(edges, draws[:, 0], side="right")
    sides = np.take(MATRIX_SIDES, (draws[:, 1] * len(MATRIX_SIDES)).astype(np.intp))
    doublings = widths.integers(0, settings.max_gpus.bit_length(), len(times))
    jobs = tuple(
        _job(settings, number, time, family, (side, doubling, deviation))
        for number, (time, family, side, doubling, deviation) in enumerate(
            zip(
                times.tolist(),
                families.tolist(),
                sides.tolist(),
                doublings.tolist(),
                deviations.tolist(),
                strict=True,
            ),
            start=1,
        )
    )
    if settings.max_slack > 0.0:
        _add_deadlines(settings, jobs, np.random.default_rng(workload_streams(seed, 5)[4]))
    return Workload(name="matrix", jobs=jobs, source=f"generator matrix, seed {seed}")


def _add_deadlines(settings: MatrixSettings, jobs: tuple[Job, ...], random: np.random.Generator) -> None:
    span = log(settings.max_slack / settings.min_slack)
    for job, position in zip(jobs, random.random(len(jobs)).tolist(), strict=True):
        run_seconds = job.true_units / units_per_reference_second(job.kind) / job.gpu_counts[0]
        slack = settings.min_slack * float(np.exp(span * position))
        job.deadline_seconds = job.submitted_seconds + slack * run_seconds
        job.is_plain = False


def _job(settings: MatrixSettings, number: int, time: float, family: int, drawn: tuple[int, int, float]) -> Job:
    side, doubling, deviation = drawn
    kind, median_seconds, gpu_counts = (
        (matrix_kind(side), settings.matrix_seconds, (1,)),
        (TRAINING, settings.training_seconds, tuple(range(1, settings.max_gpus + 1))),
        (SCIENTIFIC, settings.scientific_seconds, (2**doubling,)),
        (ANALYTICS, settings.analytics_seconds, (1,)),
    )[family]
    seconds = float(np.exp(log(median_seconds) + settings.size_sigma * deviation))
    return plain_job(number, time, seconds * units_per_reference_second(kind), kind, gpu_counts, 0)


_SMALL_TASK = 0.05
"""Work of a split, gather or reduction, as a share of a task's: an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphsSettings:
    """What makes a workload of task graphs."""

    rate_per_second: float = 0.005
    """Arrivals of graphs."""
    hours: float = 24.0
    shapes: str = "batch-parallel,pipeline,data-parallel"
    """Equally likely; a shape named twice is twice as likely."""
    kinds: str = ",".join(matrix_kind(side) for side in MATRIX_SIDES)
    """Equally likely; one graph has one kind."""
    width: int = 8
    """Parts or workers."""
    stages: int = 5
    """Of a pipeline."""
    rounds: int = 3
    """Of data-parallel work."""
    task_seconds: float = 300.0
    """Median on one reference device, see `matrix`."""
    size_sigma: float = 0.5
    """Standard deviation of the logarithm of a task's length."""
    input_gigabytes: float = 4.0
    """Of the whole graph; data-parallel workers take their share of it in the first round."""
    edge_gigabytes: float = 1.0
    """Result of a task, taken in by each that waits for it."""
    max_gpus: int = 1
    """Every task may run on any count up to it."""

    def __post_init__(self) -> None:
        check_range("rate_per_second", self.rate_per_second, 0.0)
        check_range("hours", self.hours, 0.0)
        for name in ("width", "stages", "rounds", "max_gpus"):
            check_range(name, getattr(self, name), 1, 10_000)
        check_range("task_seconds", self.task_seconds, 0.0, above=True)
        check_range("size_sigma", self.size_sigma, 0.0, 20.0)
        check_range("input_gigabytes", self.input_gigabytes, 0.0)
        check_range("edge_gigabytes", self.edge_gigabytes, 0.0)
        unknown = [shape for shape in comma_list("shapes", self.shapes) if shape not in _SHAPES]
        if unknown:
            raise ConfigError(f"there is no graph shape {unknown[0][:64]!r}; there are {', '.join(_SHAPES)}")
        comma_list("kinds", self.kinds)
        tasks = max(self.width + 2, self.stages, self.rounds * (self.width + 1))
        check_expected_jobs(self.rate_per_second * self.hours * 3600.0 * tasks)


@dataclass(frozen=True, slots=True)
class _Task:
    work: float
    """Relative to a task of median length."""
    gigabytes: float
    after: tuple[int, ...]
    """Positions in the graph."""


def graphs_workload(settings: GraphsSettings, seed: int) -> Workload:
    """Return the tasks of graphs that arrive as a Poisson process, numbered in the order of submission.

    Raises:
        ConfigError: the seed is negative.
    """
    arrivals, sizes, mix = (np.random.default_rng(stream) for stream in workload_streams(seed, 3))
    shapes = [tuple(_SHAPES[name](settings)) for name in comma_list("shapes", settings.shapes)]
    names = comma_list("shapes", settings.shapes)
    kinds = comma_list("kinds", settings.kinds)
    gpu_counts = tuple(range(1, settings.max_gpus + 1))
    times = poisson_times(settings.rate_per_second, settings.hours * 3600.0, arrivals).tolist()
    choices = mix.random((len(times), 2)).tolist()
    jobs: list[Job] = []
    for graph, (time, (shape_draw, kind_draw)) in enumerate(zip(times, choices, strict=True), start=1):
        shape, kind = int(shape_draw * len(shapes)), kinds[int(kind_draw * len(kinds))]
        first = len(jobs) + 1
        median_units = settings.task_seconds * units_per_reference_second(kind)
        deviations = sizes.standard_normal(len(shapes[shape])).tolist()
        for position, (task, deviation) in enumerate(zip(shapes[shape], deviations, strict=True)):
            jobs.append(
                Job(
                    job_id=first + position,
                    submitted_seconds=time,
                    true_units=exp(log(median_units) + settings.size_sigma * deviation) * task.work,
                    kind=kind,
                    gpu_counts=gpu_counts,
                    after_ok=tuple(first + other for other in task.after),
                    input_gigabytes=task.gigabytes,
                    name=f"{names[shape]}-{graph}",
                )
            )
    return Workload(name="graphs", jobs=tuple(jobs), source=f"generator graphs, seed {seed}")


def _batch_parallel(settings: GraphsSettings) -> Iterator[_Task]:
    yield _Task(_SMALL_TASK, settings.input_gigabytes, ())
    for _ in range(settings.width):
        yield _Task(1.0, settings.input_gigabytes / settings.width, (0,))
    yield _Task(_SMALL_TASK, settings.edge_gigabytes * settings.width, tuple(range(1, settings.width + 1)))


def _pipeline(settings: GraphsSettings) -> Iterator[_Task]:
    yield _Task(1.0, settings.input_gigabytes, ())
    for stage in range(1, settings.stages):
        yield _Task(1.0, settings.edge_gigabytes, (stage - 1,))


def _data_parallel(settings: GraphsSettings) -> Iterator[_Task]:
    reduction: tuple[int, ...] = ()
    for turn in range(settings.rounds):
        gigabytes = settings.edge_gigabytes if turn else settings.input_gigabytes / settings.width
        first = turn * (settings.width + 1)
        for _ in range(settings.width):
            yield _Task(1.0, gigabytes, reduction)
        yield _Task(_SMALL_TASK, settings.edge_gigabytes * settings.width, tuple(range(first, first + settings.width)))
        reduction = (first + settings.width,)


_SHAPES = {"batch-parallel": _batch_parallel, "pipeline": _pipeline, "data-parallel": _data_parallel}
