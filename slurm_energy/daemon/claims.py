"""Jobs decided since the snapshot was taken: it does not show them yet, and they will take what it shows as idle.

Without them, every job of a burst would be sent to the same idle GPUs and all but the first would wait for our sake.
"""

import math
from collections import deque
from dataclasses import dataclass

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.ids import DecisionId, PartitionName
from slurm_energy.domain.job import JobRequest

MAX_CLAIMS = 10_000
MAX_USERS = 10_000
SLACK_SECONDS = 1.0
"""A decision this much older than a snapshot may still be missing in it: Slurm puts the job into its queue later."""
_MEMORY = 0.9
"""Share of the past that is left after each decision, when a user's submissions are judged by the last ten or so."""
_FEWEST_ACCEPTED = 0.5
"""Share below which an array, whose claim has no bound, claims nothing."""


@dataclass(slots=True, kw_only=True)
class _Claim:
    decision_id: DecisionId
    user_id: int
    decided_at_seconds: float
    partitions: tuple[PartitionName, ...]
    gpus: float
    appeared: bool = False


@dataclass(slots=True)
class _Held:
    """What one user's claims on one partition come to; arrays are counted, since their claims have no bound."""

    gpus: float = 0.0
    arrays: int = 0

    def count(self, claim: _Claim, sign: int) -> None:
        """Add a claim, or take it away."""
        if math.isinf(claim.gpus):
            self.arrays += sign
        else:
            self.gpus += sign * claim.gpus


class Claims:
    """What recent decisions have promised away, oldest first.

    Slurm may still refuse a submission after it was decided (a limit, a typing error, another plugin), and nobody
    tells: a decision that appears in no snapshot is one. What a user asks next counts by the share of his last
    submissions that became jobs, so that a script which is refused over and over moves nobody else's jobs.
    """

    def __init__(self) -> None:
        self._claims: deque[_Claim] = deque()
        self._by_id: dict[DecisionId, _Claim] = {}
        self._held: dict[tuple[int, PartitionName, bool], _Held] = {}
        """Sums by user, partition and whether the jobs have appeared: no burst is added up for each of its jobs."""
        self._became_jobs: dict[int, tuple[float, float]] = {}
        """By user: how many of the last submissions became jobs, and how many did not."""

    def add(self, decision: EnergyDecision, job: JobRequest, snapshot: ClusterSnapshot | None) -> None:
        """Note the GPUs that a decided job will ask for where it is tried first; an array's are unbounded.

        A job that does not start now takes none.
        """
        names = decision.partitions or job.partitions
        if not names and snapshot is not None and snapshot.default_partition is not None:
            names = (snapshot.default_partition.name,)
        if not names or job.gpu_count == 0 or job.starts_later:
            return
        claim = _Claim(
            decision_id=decision.decision_id,
            user_id=job.user_id,
            decided_at_seconds=decision.decided_at_seconds,
            partitions=names,
            gpus=math.inf if job.array is not None else float(job.gpu_count),
        )
        self._claims.append(claim)
        self._by_id[claim.decision_id] = claim
        self._count(claim, 1)
        if len(self._claims) > MAX_CLAIMS:
            self._forget(self._claims.popleft())

    def appeared(self, decision_id: DecisionId) -> None:
        """Note that a decision's job is in Slurm's queue."""
        claim = self._by_id.get(decision_id)
        if claim is not None and not claim.appeared:
            self._count(claim, -1)
            claim.appeared = True
            self._count(claim, 1)

    def not_in(self, snapshot: ClusterSnapshot | None) -> dict[PartitionName, float]:
        """Return the GPUs claimed in each partition that a snapshot cannot show yet, and forget the others."""
        if snapshot is None:
            return {}
        oldest = snapshot.taken_at_seconds - SLACK_SECONDS
        while self._claims and self._claims[0].decided_at_seconds < oldest:
            self._settle(self._claims.popleft())
        claimed: dict[PartitionName, float] = {}
        for (user_id, name, appeared), held in self._held.items():
            gpus = self._expected_gpus(user_id, held, appeared=appeared)
            if gpus > 0.0:
                claimed[name] = claimed.get(name, 0.0) + gpus
        return claimed

    def _count(self, claim: _Claim, sign: int) -> None:
        for name in claim.partitions:
            key = claim.user_id, name, claim.appeared
            held = self._held.setdefault(key, _Held())
            held.count(claim, sign)
            if not held.gpus and not held.arrays:
                del self._held[key]

    def _forget(self, claim: _Claim) -> None:
        self._by_id.pop(claim.decision_id, None)
        self._count(claim, -1)

    def _settle(self, claim: _Claim) -> None:
        self._forget(claim)
        jobs, refused = self._became_jobs.get(claim.user_id, (0.0, 0.0))
        if not claim.appeared and len(self._became_jobs) >= MAX_USERS:
            self._became_jobs.clear()
        jobs, refused = jobs * _MEMORY + claim.appeared, refused * _MEMORY + (not claim.appeared)
        if refused > _MEMORY / 10.0:
            self._became_jobs[claim.user_id] = jobs, refused
        else:
            self._became_jobs.pop(claim.user_id, None)

    def _expected_gpus(self, user_id: int, held: _Held, *, appeared: bool) -> float:
        jobs, refused = (0.0, 0.0) if appeared else self._became_jobs.get(user_id, (0.0, 0.0))
        share = (jobs + 1.0) / (jobs + refused + 1.0)
        return math.inf if held.arrays and share >= _FEWEST_ACCEPTED else held.gpus * share
