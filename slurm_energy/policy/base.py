"""What a policy is: a pure function from a job and a snapshot to an answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import PolicyAnswer, RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.policy.site.comparison import Candidate, TypeComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """What the guard worked out before asking the policy; the same for daemon and twin."""

    now_seconds: float
    """Unix time, or the twin's."""
    candidates: tuple[Candidate, ...]
    """Where the job may start: the user's list, else the default partition, or more when routing is open."""
    may_route: bool
    """Whether the answer may name partitions."""
    max_slowdown: float
    """Bound on the ratio for this job, from its options and the site."""
    runtime: RuntimeEstimate | None = None
    gpu_type_by_slurm_type: Mapping[str, GpuTypeName] = field(default_factory=dict)
    claimed_gpus: Mapping[PartitionName, float] = field(default_factory=dict)
    """GPUs that jobs decided since the snapshot will ask for in each partition; infinite for an array."""
    board_limits: BoardLimits = field(default_factory=BoardLimits)
    """Power limits of the site's boards: what a clock costs and saves depends on them."""
    work: WorkEstimate | None = None
    """What runs of the job's name say of the GPU types; None for a name without."""

    @property
    def comparison(self) -> TypeComparison:
        """What GPU types are compared by for this job."""
        return TypeComparison(limits=self.board_limits, work=self.work)


class Policy(Protocol):
    """A policy: deterministic, total, without I/O; the guard checks whatever it returns."""

    @property
    def name(self) -> str:
        """Registry name, such as `oracle`."""
        ...

    @property
    def version(self) -> str:
        """Version of the rule or the checkpoint."""
        ...

    def decide(self, job: JobRequest, snapshot: ClusterSnapshot, context: DecisionContext) -> PolicyAnswer:
        """Return the proposal for one job."""
        ...


@runtime_checkable
class DetachablePolicy(Protocol):
    """A policy that can be left behind: what it is at one moment answers alone, in any process."""

    def detached(self) -> Policy | None:
        """Return a policy of plain values that answers as this one does now, None before the first snapshot.

        It can be pickled, needs no learning library, and neither follows the cluster nor changes.
        """
        ...


@runtime_checkable
class RehearsablePolicy(Protocol):
    """A policy that remembers what it was asked."""

    def for_rehearsal(self, snapshot: ClusterSnapshot) -> Policy:
        """Return a policy that answers alike and leaves no trace in this one, which is brought to the snapshot."""
        ...


@runtime_checkable
class FollowingPolicy(Protocol):
    """A policy that keeps a picture of the cluster of its own, and is brought to each snapshot before it decides."""

    def warm_up(self, snapshot: ClusterSnapshot) -> None:
        """Bring the picture to a snapshot."""
        ...
