"""What a policy is, a pure function from a case to an answer, and what a case is: a job on its cluster."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import PolicyAnswer, Reason, RuntimeEstimate
from slurm_energy.domain.gpu_count import GpuScaling
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.predicted_clocks import PredictedWork
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.energy_model.operating_point import ClockTable
from slurm_energy.policy.jobs import EndedJob
from slurm_energy.policy.site.clock_terms import EACH_JOB, ClockTerms
from slurm_energy.policy.site.comparison import Candidate, TypeComparison
from slurm_energy.policy.site.type_bound import TypeBound, type_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job that is being submitted, its cluster, and all that is known for the decision; alike in daemon and twin.

    The second half is what the guard works out of the first and of the site's configuration before it asks a policy.
    """

    job: JobRequest
    snapshot: ClusterSnapshot
    now_seconds: float
    """Unix time, or the twin's."""
    user_groups: Collection[str] | None = None
    """None when the groups could not be looked up: partitions open to certain groups then do not count as allowed."""
    claimed_gpus: Mapping[PartitionName, float] = field(default_factory=dict)
    """GPUs that jobs decided since the snapshot will ask for in each partition; infinite for an array."""
    runtime: RuntimeEstimate | None = None
    """What history says of the job's length at the default clock."""
    work: WorkEstimate | None = None
    """What runs of the job's name say of the GPU types; None for a name without."""
    learned_clocks: Mapping[GpuTypeName, LearnedClock] = field(default_factory=dict)
    """What trials in runs of the job's name measured, by GPU type."""
    predicted: PredictedWork | None = None
    """What a network expects of lower clocks, in the place of tables over all programs; None: the tables count."""
    scaling: GpuScaling | None = None
    """What runs of the job's name say of more and fewer GPUs; None where they had one number of them, or are none."""
    board_limits: BoardLimits = field(default_factory=BoardLimits)
    """Power limits of the site's boards: what a clock costs and saves depends on them."""
    max_slowdown: float = 0.0
    """Bound on the ratio for this job, from its options and the site."""
    clock_terms: ClockTerms = EACH_JOB
    """Whose slowdown that bound is held against, and what a clock must save for its time."""
    site_tables: Mapping[GpuTypeName, ClockTable] = field(default_factory=dict)
    """What clocks do to the job by the site's own runs, where its bound is held in the mean; each begins with the clock
    that is best for the site."""
    limit_room: float = -1.0
    """By what ratio the site's runs may grow before too many more reach their limits; below 0: not known."""
    max_type_slowdown: float | None = None
    """Bound of the GPU type against where Slurm would start the job; None: `max_slowdown` is of type and clock."""

    candidates: tuple[Candidate, ...] = ()
    """Where the job may start: the user's list, else the default partition, or more when routing is open."""
    may_route: bool = False
    """Whether the answer may name partitions."""
    gpu_type_by_slurm_type: Mapping[str, GpuTypeName] = field(default_factory=dict)
    shown_names: Mapping[GpuTypeName, str] = field(default_factory=dict)
    """Slurm's name of each GPU type, as users write it."""
    gpu_counts: tuple[int, ...] = ()
    """Numbers of GPUs that the job can be given, ascending, its own among them; empty where its own stays."""
    reasons: tuple[Reason, ...] = ()
    """What was found on the way, such as that a partition is closed to the job."""
    notes: tuple[str, ...] = ()

    @property
    def comparison(self) -> TypeComparison:
        """What GPU types are compared by for this job."""
        return TypeComparison(
            limits=self.board_limits,
            work=self.work,
            terms=self.clock_terms,
            clocks=self.site_tables,
            predicted=self.predicted,
        )

    @property
    def type_bound(self) -> TypeBound:
        """What the job's bounds leave on each GPU type."""
        return type_bound(self.candidates, self.comparison, self.max_slowdown, self.max_type_slowdown)


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

    def decide(self, case: Case) -> PolicyAnswer:
        """Return the proposal for one job."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CountCost:
    """What a job costs with one number of GPUs, where and at whatever clock it costs the least."""

    gpus: int
    joules: float
    """With everything that the policy puts a price on; only comparable within one job."""
    has_room: bool
    """Whether the job could start now with so many."""


@runtime_checkable
class CountingPolicy(Protocol):
    """A policy that weighs numbers of GPUs by the cost of partition and clock; others leave the number to a rule."""

    def count_costs(self, cases: Sequence[Case]) -> Sequence[CountCost]:
        """Return what the job costs with each number of GPUs; none for those that the policy cannot judge.

        Args:
            cases: The job with each of the numbers, and with what is expected of it there.
        """
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
class CorrectingPolicy(Protocol):
    """A policy that corrects itself by jobs that have ended."""

    @property
    def observes_ends(self) -> bool:
        """Whether, as it is set, ends of jobs mean anything to it."""
        ...

    def ended(self, job: EndedJob) -> None:
        """Learn from a job that ended."""
        ...


@runtime_checkable
class FollowingPolicy(Protocol):
    """A policy that keeps a picture of the cluster of its own, and is brought to each snapshot before it decides."""

    def warm_up(self, snapshot: ClusterSnapshot) -> None:
        """Bring the picture to a snapshot."""
        ...
