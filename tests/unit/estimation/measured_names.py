"""Names with known work, and runs drawn from them."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import MeasuredRun

A100, A40, H100 = map(GpuTypeName, ("a100-sxm4-80gb", "a40", "h100-sxm5-80gb"))
HEAVY = {A100: (1.0, 380.0), A40: (2.5, 280.0), H100: (0.44, 560.0)}
"""Seconds on each type over those on an A100, and watts of one GPU: gains much from a faster GPU."""
LIGHT = {A100: (1.0, 120.0), A40: (1.1, 95.0), H100: (0.96, 190.0)}
"""Gains nearly nothing."""


DAY = 86_400.0


def make_run(name: str, gpu_type: GpuTypeName = A100, *, seconds: float = 100.0, **changes: object) -> MeasuredRun:
    values: dict[str, object] = {"user": 1000, "gpus": 1, "watts": 300.0, "ended_at_seconds": 0.0}
    return MeasuredRun(name=name, gpu_type=gpu_type, seconds=seconds, **{**values, **changes})  # type: ignore[arg-type]  # values by name


def runs_of(
    name: str,
    work: Mapping[GpuTypeName, tuple[float, float]],
    counts: Mapping[GpuTypeName, int],
    random: np.random.Generator,
    *,
    size: float = 1000.0,
    spread: float = 0.2,
    user: int = 1000,
) -> Iterator[MeasuredRun]:
    """Yield runs whose sizes differ by `spread` (of the logarithm), as inputs do."""
    for gpu_type, number in counts.items():
        ratio, watts = work[gpu_type]
        for index in range(number):
            seconds = size * ratio * float(np.exp(random.normal(0.0, spread)))
            drawn = watts * float(np.exp(random.normal(0.0, 0.02)))
            yield make_run(name, gpu_type, seconds=seconds, watts=drawn, user=user, ended_at_seconds=index * DAY)


def crowd(random: np.random.Generator, types: Sequence[GpuTypeName] = (A100, A40, H100)) -> list[MeasuredRun]:
    """Return runs of forty names, heavy and light in turn, each on every type."""
    found: list[MeasuredRun] = []
    for number in range(40):
        work = HEAVY if number % 2 else LIGHT
        size = float(np.exp(random.normal(7.0, 1.5)))
        found += runs_of(f"crowd-{number}", work, dict.fromkeys(types, 6), random, size=size, user=2000 + number)
    return found
