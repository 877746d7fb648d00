"""What the answering process knows; everything in it is in memory."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slurm_energy.config import Config
from slurm_energy.daemon.claims import Claims
from slurm_energy.daemon.decide import Decider, JobHistory
from slurm_energy.daemon.journal_queue import JournalQueue
from slurm_energy.daemon.remote_policy import RemotePolicy
from slurm_energy.daemon.reuse import ReusableDecisions
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.wire.messages import Query


class QueryAnswerer(Protocol):
    """Whoever can read the database for a person."""

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
    reusable: ReusableDecisions = field(default_factory=ReusableDecisions)
    history: JobHistory = field(default_factory=JobHistory)
    counters: Counter[str] = field(default_factory=Counter)
    started_at_monotonic_seconds: float = field(default_factory=time.monotonic)
    skipped_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of the latest snapshot that could not be read, by kind and reason."""
    draining: bool = False
    policy_note: str = ""
    """Why `policy.name = "auto"` stands for the baseline; empty where there is nothing to say."""

    @property
    def uptime_seconds(self) -> float:
        """Seconds since the daemon started."""
        return time.monotonic() - self.started_at_monotonic_seconds

    @property
    def policy_process(self) -> str | None:
        """How the process of a learned policy is, in words; None for a policy that needs none."""
        policy = self.decider.policy
        return policy.condition if isinstance(policy, RemotePolicy) else None

    def snapshot_age_seconds(self, now_seconds: float) -> float | None:
        """Return the age of the cluster's snapshot, None when there is none."""
        return None if self.snapshot is None else max(0.0, now_seconds - self.snapshot.taken_at_seconds)
