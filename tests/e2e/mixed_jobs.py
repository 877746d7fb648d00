"""The workload that laboratory and twin are compared with, and the small laboratory that it runs on."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.lab.cluster import PartitionSpec
from slurm_energy.lab.slurm_files import CPUS_PER_NODE

TIME_SCALE = 60.0
PARTITIONS = (
    PartitionSpec(name="a100", nodes=2, gpus_per_node=4),
    PartitionSpec(name="a40", nodes=1, gpus_per_node=8),
    PartitionSpec(name="v100", nodes=1, gpus_per_node=4),
)
KINDS = ("training", "compute", "memory", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabJob:
    """What is submitted. Times are wall seconds."""

    offset_seconds: float
    work_seconds: float
    """At the default clock."""
    gpus: int
    partition: str
    kind: str
    limit_minutes: int

    @property
    def cpus(self) -> int:
        """CPUs in proportion to GPUs: Slurm packs nodes by CPUs, the twin by GPUs."""
        return self.gpus * CPUS_PER_NODE // partition_named(self.partition).gpus_per_node


def mixed_jobs() -> tuple[LabJob, ...]:
    """Return the 60 jobs of mixed_jobs.csv: all partitions, widths 1 to 8, four kinds of work, queues that backfill.

    They were drawn at random, with users who ask for far too much time, and then changed job by job until the start
    order hung as little as possible on a second more or less. No two limits of a partition are closer than four
    minutes, and no two partitions' limits interleave: Slurm takes expected ends within 30 s of wall time for one,
    across partitions, which would be half an hour of device time here.
    """
    with Path(__file__).with_suffix(".csv").open(newline="", encoding="ascii") as file:
        return tuple(
            LabJob(
                offset_seconds=float(row["offset_seconds"]),
                work_seconds=float(row["work_seconds"]),
                gpus=int(row["gpus"]),
                partition=row["partition"],
                kind=row["kind"],
                limit_minutes=int(row["limit_minutes"]),
            )
            for row in csv.DictReader(file)
        )


def partition_named(name: str) -> PartitionSpec:
    """Return a partition of the laboratory."""
    return next(partition for partition in PARTITIONS if partition.name == name)


def num_overtaking(jobs: Sequence[LabJob], started_seconds: Sequence[float]) -> int:
    """Return how many jobs started before one of their partition that had been submitted before them."""
    return sum(
        any(
            other.partition == job.partition and started_seconds[before] > started_seconds[number]
            for before, other in enumerate(jobs[:number])
        )
        for number, job in enumerate(jobs)
    )
