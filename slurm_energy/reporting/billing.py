"""Billing weights by measured energy: what a GPU of each partition draws, as Slurm's TRESBillingWeights.

Slurm's fairshare counts billing units: with these weights an hour on a GPU costs in proportion to the joules that an
hour on a GPU of its partition has been measured to take.
"""

from dataclasses import dataclass

from slurm_energy.domain.report import EnergyReport

MIN_GPU_HOURS = 10.0
"""Measured, under which a partition gets no weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingWeight:
    """What a GPU hour of one partition is to count, in hours on the partition that draws least."""

    partition: str
    weight: float
    mean_watts: float
    gpu_hours: float


def billing_weights(report: EnergyReport) -> tuple[list[BillingWeight], list[str]]:
    """Return the weights by a report of partitions, and the partitions of which too little was measured."""
    known: list[tuple[str, float, float]] = []
    left_out: list[str] = []
    for group in report.groups:
        joules, seconds = group.gpu.joules, group.use.covered_gpu_seconds
        if joules and seconds and seconds >= MIN_GPU_HOURS * 3600.0:
            known.append((group.group, joules / seconds, seconds / 3600.0))
        else:
            left_out.append(group.group)
    least = min((watts for _, watts, _ in known), default=1.0)
    weights = [
        BillingWeight(partition=name, weight=round(watts / least, 2), mean_watts=watts, gpu_hours=hours)
        for name, watts, hours in sorted(known)
    ]
    return weights, sorted(left_out)


def with_gpu_weight(present: str, weight: float) -> str:
    """Return a partition's TRESBillingWeights with another weight of GPUs; the others stay as they are.

    Weights of single GPU types are left out: they would count beside the weight of all GPUs.
    """
    kept = [
        part
        for part in present.split(",")
        if part and part != "(null)" and not part.partition("=")[0].strip().lower().startswith("gres/gpu")
    ]
    return ",".join([*kept, f"GRES/gpu={weight:g}"])
