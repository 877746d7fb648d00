"""Task graphs: jobs that wait for others and take their results in.

`batch-parallel` splits, works on independent parts, and gathers; `pipeline` is a chain of stages; `data-parallel` works
in rounds, each on all workers, with a reduction between. All tasks of a graph are submitted at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log

import numpy as np

from slurm_energy.errors import ConfigError
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads.generating import (
    check_expected_jobs,
    check_range,
    comma_list,
    poisson_times,
    workload_streams,
)
from slurm_energy.twin.workloads.matrix import MATRIX_SIDES, matrix_kind, units_per_reference_second

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
