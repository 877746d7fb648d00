"""What the answering process knows, all of it in memory; the GPUs that its latest decisions have promised are a part.

A snapshot does not show the jobs that were decided since it was taken, and they will take what it shows as idle.
Without their claims, every job of a burst would be sent to the same idle GPUs, and all but the first would wait there.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slurm_energy.config import Config
from slurm_energy.daemon.decide import Decider, Known, KnownUser
from slurm_energy.daemon.job_ends import JobEnds
from slurm_energy.daemon.metrics.counts import DecisionCounts
from slurm_energy.daemon.pending.tracked import TrackedJobs
from slurm_energy.daemon.policy.candidates import Candidates, Serving
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.daemon.recorder.entries import JournalQueue
from slurm_energy.daemon.reuse import NamesWithRuns, ReusableDecisions
from slurm_energy.daemon.uncarried import UncarriedDecisions
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.ids import DecisionId, PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.policy.base import Policy
from slurm_energy.wire.messages import Query

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
class _ClaimTotal:
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

    Slurm may still refuse a submission after it was decided (a limit, a typing error, another plugin),
    without notice: a decision that appears in no snapshot is one. What a user asks next counts by the share of the
    user's last submissions that became jobs, so that a script which is always refused moves no other user's jobs.
    """

    def __init__(self) -> None:
        self._claims: deque[_Claim] = deque()
        self._by_id: dict[DecisionId, _Claim] = {}
        self._held: dict[tuple[int, PartitionName, bool], _ClaimTotal] = {}
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
            gpus=math.inf if job.array is not None else float(decision.gpus or job.gpu_count),
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

    def unseen_by(self, snapshot: ClusterSnapshot | None) -> dict[PartitionName, float]:
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
            held = self._held.setdefault(key, _ClaimTotal())
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

    def _expected_gpus(self, user_id: int, held: _ClaimTotal, *, appeared: bool) -> float:
        jobs, refused = (0.0, 0.0) if appeared else self._became_jobs.get(user_id, (0.0, 0.0))
        share = (jobs + 1.0) / (jobs + refused + 1.0)
        return math.inf if held.arrays and share >= _FEWEST_ACCEPTED else held.gpus * share


class QueryAnswerer(Protocol):
    """Reads the database for a user."""

    async def query(self, query: Query, only_user_id: int | None) -> list[bytes]:
        """Return the parts of an encoded message; with `only_user_id` nothing of other users' jobs is in it."""
        ...


@dataclass(slots=True, kw_only=True)
class DaemonState:
    """Mutable on purpose, by the event loop's own thread only."""

    config: Config
    decider: Decider
    journal: JournalQueue
    recorder: QueryAnswerer
    privileged: frozenset[int]
    snapshot: ClusterSnapshot | None = None
    user_names: Mapping[int, str] = field(default_factory=dict)
    """Login names by uid, from the snapshot's jobs: a directory service is never asked while a job waits."""
    user_groups: dict[int, frozenset[str]] = field(default_factory=dict)
    """Groups by uid, where partitions ask for them; a user not in it has unknown groups."""
    claims: Claims = field(default_factory=Claims)
    job_ends: JobEnds = field(default_factory=lambda: JobEnds(time.time()))
    tracked: TrackedJobs = field(default_factory=TrackedJobs)
    """Waiting jobs that may be decided again."""
    uncarried: UncarriedDecisions = field(default_factory=UncarriedDecisions)
    redecide_note: str = ""
    """Why waiting jobs are not changed although the site wants it; empty where nothing is in the way."""
    reusable: ReusableDecisions = field(default_factory=ReusableDecisions)
    names_with_runs: NamesWithRuns = field(default_factory=NamesWithRuns)
    history: JobHistory = field(default_factory=JobHistory)
    candidates: Candidates = field(default_factory=Candidates)
    counters: Counter[str] = field(default_factory=Counter)
    decision_counts: DecisionCounts = field(default_factory=DecisionCounts)
    started_at_monotonic_seconds: float = field(default_factory=time.monotonic)
    skipped_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of the latest snapshot that could not be read, by kind and reason."""
    reader: str = ""
    """How the cluster is read: pyslurm, slurmrestd or commands; empty before the first reading."""
    reader_note: str = ""
    """Why it is not read in another way; empty where there is nothing to say."""
    reader_crash: str = ""
    """What became of pyslurm, which is then used no more; empty unless it crashed."""
    draining: bool = False
    policy_note: str = ""
    """Why `policy.name = "auto"` stands for the baseline; empty where there is nothing to say."""

    @property
    def uptime_seconds(self) -> float:
        """Seconds since the daemon started."""
        return time.monotonic() - self.started_at_monotonic_seconds

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Every policy that decides jobs, or is compared, now."""
        return self.candidates.policies(self.decider.policy)

    @property
    def policy_process(self) -> str | None:
        """How the process of a learned policy is, in words; None for a policy that needs none."""
        policy = self.decider.policy
        return policy.condition if isinstance(policy, RemotePolicy) else None

    def snapshot_age_seconds(self, now_seconds: float) -> float | None:
        """Return the age of the cluster's snapshot, None when there is none."""
        return None if self.snapshot is None else max(0.0, now_seconds - self.snapshot.taken_at_seconds)

    def count(self, what: str, number: int) -> None:
        """Add to a counter."""
        self.counters[what] += number

    def known_user(self, user_id: int) -> KnownUser:
        """Return what is known of a user without a query."""
        return KnownUser(name=self.user_names.get(user_id), groups=self.user_groups.get(user_id))

    def known(self, user_id: int) -> Known:
        """Return what is at hand when a user submits a job."""
        return Known(
            snapshot=self.snapshot,
            claimed_gpus=self.claims.unseen_by(self.snapshot),
            history=self.history,
            user=self.known_user(user_id),
        )

    def serving(self, user_id: int) -> Serving:
        """Return which policy decides a user's jobs now."""
        return self.candidates.serving(user_id, time.time(), self.config.nightly.canary_period_hours)

    def decider_of(self, serving: Serving) -> Decider:
        """Return the decider of the policy that serves: a candidate's own, else the live one."""
        own = None if serving.candidate is None else serving.candidate.decider
        return self.decider if own is None else own
