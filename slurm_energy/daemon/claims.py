"""Jobs decided since the snapshot was taken: it does not show them yet, and they will take what it shows as idle.

Without them, every job of a burst would be sent to the same idle GPUs and all but the first would wait for our sake.
"""

import math
from collections import deque
from dataclasses import dataclass

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import JobRequest

MAX_CLAIMS = 10_000
SLACK_SECONDS = 1.0
"""A decision this much older than a snapshot may still be missing in it: Slurm puts the job into its queue later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    decided_at_seconds: float
    partitions: tuple[PartitionName, ...]
    gpus: float


class Claims:
    """What recent decisions have promised away, oldest first."""

    def __init__(self) -> None:
        self._claims: deque[_Claim] = deque(maxlen=MAX_CLAIMS)

    def add(self, decision: EnergyDecision, job: JobRequest, snapshot: ClusterSnapshot | None) -> None:
        """Note the GPUs that a decided job will ask for where it is tried first; an array's are unbounded.

        A job that does not start now takes none.
        """
        names = decision.partitions or job.partitions
        if not names and snapshot is not None and snapshot.default_partition is not None:
            names = (snapshot.default_partition.name,)
        if not names or job.gpu_count == 0 or job.starts_later:
            return
        gpus = math.inf if job.array is not None else float(job.gpu_count)
        self._claims.append(_Claim(decided_at_seconds=decision.decided_at_seconds, partitions=names, gpus=gpus))

    def not_in(self, snapshot: ClusterSnapshot | None) -> dict[PartitionName, float]:
        """Return the GPUs claimed in each partition that a snapshot cannot show yet, and forget the others."""
        if snapshot is None:
            return {}
        oldest = snapshot.taken_at_seconds - SLACK_SECONDS
        while self._claims and self._claims[0].decided_at_seconds < oldest:
            self._claims.popleft()
        claimed: dict[PartitionName, float] = {}
        for claim in self._claims:
            for name in claim.partitions:
                claimed[name] = claimed.get(name, 0.0) + claim.gpus
        return claimed
