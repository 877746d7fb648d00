"""Where, how wide and how fast a job runs: the form of a placement rule, its choices, and what it may see.

A rule decides on a *place*: one kind of GPU (or CPU) inside one partition. It is asked when a job is submitted
(`route`) and when the job could start (`place`); both see the same view. Nothing here knows whether the cluster is
real.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import inf
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from slurm_energy.policy.jobs import EndedJob, JobAsSubmitted, PartnerOffer, RunningJob, WaitingJob

if TYPE_CHECKING:  # the daemon's base installation has no numpy, and asks rules that need none
    import numpy as np
    from numpy.typing import NDArray

    from slurm_energy.config import Config
    from slurm_energy.domain.cluster import ClusterSnapshot
    from slurm_energy.domain.decision import PolicyAnswer
    from slurm_energy.domain.ids import GpuTypeName
    from slurm_energy.domain.trials import ClockTrial
    from slurm_energy.estimation.clock_trials import ClockTrials
    from slurm_energy.policy.base import Case, CountCost
    from slurm_energy.policy.rules.cost_table import Explanation
    from slurm_energy.policy.submission.adapter import SubmissionAdapter

    FloatArray = NDArray[np.float64]
else:
    FloatArray = object


MAX_VERSION_LENGTH = 64


class Capability(StrEnum):
    """What an environment may be able to carry out, or to tell, beyond starting a job in a place at a clock."""

    LATER_START = "a later start"
    NODE = "the node of a job"
    COUNT = "the number of a job's GPUs"
    SHARED_GPU = "two jobs on one GPU"
    RUNNING_CLOCK = "clocks of jobs that run"
    QUEUE_ORDER = "the order of the queue"
    RUN_TIMES = "how long ended jobs ran"
    ENDED_JOBS = "what ended jobs measured"
    TRUE_WORK = "how much work a job really has"


Knowledge = Literal["site", "neighbours", "truth"]
"""What a rule knows in a simulated cluster that hides what jobs do: what a site knows; the same with run times by the
user's runs that are most alike; or everything, for yardsticks."""
Capabilities = frozenset[Capability]
SIMULATED: Capabilities = frozenset(Capability)
"""The simulated cluster's: all of them."""
AT_SUBMISSION: Capabilities = frozenset({Capability.RUN_TIMES})
"""What is left of them when a job is submitted to Slurm: it starts when and on which node Slurm says, with the GPUs
that it asks for. How long it ran and whether it came in time is known at its end. What it measured is not given to the
rule: no job reports how much work it did, so its time cannot be held against a table's, and its power is in the table
already, under the job's name (`WorkEstimate`): corrected by it once more, the same runs would count twice."""


class Placement(NamedTuple):
    """A decision to start a job now."""

    place: int
    """Index into the view's places."""
    gpus: int
    """Devices over the whole job: GPUs, or CPU sockets in a place without GPUs."""
    clock: int
    """Index into the place's ascending clocks; -1 is the highest."""
    partner: int | None = None
    """Id of a running job with which to share one GPU; None for GPUs of its own."""
    node: int | None = None
    """Node for what does not fill a whole one; None, or one that cannot take it, leaves the choice to the scheduler."""


@lru_cache(maxsize=65_536)
def placement_alone(place: int, gpus: int, clock: int) -> Placement:
    """Return a placement on GPUs of its own and no certain node: the same object again for the same answer."""
    return Placement(place, gpus, clock)


class Reroute(NamedTuple):
    """A decision about a job that waits: at its submission, or an update that keeps its place in the queue's order."""

    places: tuple[int, ...] | None
    """None: where it waits by its own request, or has waited."""
    gpus: int | None = None
    """Devices with which it is to run from now on, its time limit scaled with them; None leaves them as they are."""


class Postponement(NamedTuple):
    """A decision to start a job later, as Slurm's BeginTime: until then others go ahead of it, then it is asked again.

    It keeps its place in the queue's order, and what it waits counts as any other wait.
    """

    until_seconds: float
    """Absolute; what is not after now, or has no end, leaves the job waiting where it is."""


class PlaceNode(NamedTuple):
    """A node that is up, and when its jobs leave it."""

    node: int
    """Its number in the place's pool."""
    free_gpus: int
    is_awake: bool
    """Or boots."""
    ends_seconds: tuple[tuple[float, int], ...]
    """(expected end, devices) of its jobs, the next to end first: by their estimates, from when they began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discipline:
    """The order of the queue, and whether later jobs may overtake one that waits."""

    order: Literal["fifo", "sjf"] = "fifo"
    """`fifo`: priority, then submission; `sjf`: priority, then the shortest expected run."""
    backfill: Literal["none", "easy"] = "easy"
    """`easy`: a later job may start if the first job that waits starts no later for it."""
    run_times: Literal["limits", "estimates"] = "limits"
    """How long jobs are taken to run where backfill plans: `limits` as Slurm does, estimates for jobs without one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptionTable:
    """What every way of running jobs of one kind costs, at the place's present conditions.

    Arrays are [num_places, num_counts, num_clocks]; what cannot be has infinite seconds and joules per unit.
    A place with fewer clocks than another has its last columns infinite.
    """

    gpu_counts: tuple[int, ...]
    """Device counts that the job may run with, ascending."""
    seconds_per_unit: FloatArray
    watts: FloatArray
    """Power of the whole allocation while it computes, devices only."""
    free_watts: FloatArray
    """What the same devices draw while they are free: what running the job takes off the cluster's base."""
    joules_per_unit: FloatArray
    """watts x seconds_per_unit."""

    def count_index(self, gpus: int) -> int:
        """Return the index of a device count.

        Raises:
            ValueError: the job may not run with that many.
        """
        return self.gpu_counts.index(gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceInfo:
    """What does not change of a place."""

    name: str
    partition: str
    device: str
    """Name of the GPU or CPU type."""
    total_gpus: int
    gpus_per_node: int
    relative_clocks: tuple[float, ...]
    """Ascending, the default clock last; 1.0 is the reference of the type's curves."""
    free_watts: float
    """One free device."""
    is_cpu: bool = False
    region: str = ""
    """Of carbon intensity and price."""
    node_watts: float = 0.0
    """What a node that is awake draws beyond a suspended one with all its devices free; 0 where nodes never sleep."""
    busy_watts: float = 0.0
    """What a node's host draws more for each device that a job holds."""
    idle_seconds: float = 0.0
    """How long a node stays awake with nothing to do."""
    resume_seconds: float = 0.0
    """How long waking a node takes."""
    max_seconds: float = inf
    """The partition's time limit."""
    host_share: float = 0.0
    """What a node's host draws more for each watt of its devices."""
    resume_watts: float = 0.0
    """Of a node while it wakes."""


class ClusterView(Protocol):
    """The cluster as a rule may see it, alive: read it, keep nothing of it, change nothing in it."""

    @property
    def capabilities(self) -> Capabilities:
        """What can be carried out here: a rule asks for nothing else."""
        ...

    @property
    def now_seconds(self) -> float:
        """Present time."""
        ...

    @property
    def places(self) -> Sequence[PlaceInfo]:
        """The cluster's places."""
        ...

    @property
    def free_gpus(self) -> Sequence[int]:
        """By place, over all its nodes that are up; a suspended node's count."""
        ...

    @property
    def waiting_jobs(self) -> Sequence[int]:
        """By place, jobs that were routed there and wait."""
        ...

    @property
    def power_watts(self) -> float:
        """Power of the whole cluster."""
        ...

    @property
    def coming_watts(self) -> float:
        """Power that jobs will add which have their devices and do not compute yet."""
        ...

    @property
    def power_budget_watts(self) -> float:
        """Infinite when there is none."""
        ...

    @property
    def num_waiting(self) -> int:
        """Jobs that are eligible and wait, routed or not."""
        ...

    def room(self, job: WaitingJob) -> Sequence[int]:
        """Return by place the largest of the job's device counts that would fit now, 0 for none or not allowed."""
        ...

    def allowed_places(self, job: WaitingJob) -> Sequence[int]:
        """Return the places that the job's request, partition and limits allow, room or not."""
        ...

    def options(self, job: WaitingJob) -> OptionTable:
        """Return the costs of the job's options; the same table object while nothing of them changed."""
        ...

    def partners(self, job: WaitingJob) -> Sequence[PartnerOffer]:
        """Return the running jobs with which the job could share a GPU; none where the world has no sharing."""
        ...

    def running_jobs(self) -> Sequence[RunningJob]:
        """Return the jobs that run, in the order of their start."""
        ...

    def carbon_grams_per_kwh(self, place: int) -> float:
        """Return the present carbon intensity of a place's region, 0 where the world has none."""
        ...

    def price_per_kwh(self, place: int) -> float:
        """Return the present energy price of a place's region, 0 where the world has none."""
        ...

    def wakeup_joules(self, place: int, gpus: int) -> float:
        """Return the energy of waking the nodes that a start with so many devices needs, 0 when enough are awake."""
        ...

    def criticality(self, job: WaitingJob) -> float:
        """Return the share of a job's delay that reaches the end of its task graph, 1 for a job on its own.

        A job that waits for k unfinished others is taken to be held up by each of them alike: a k-th of a delay.
        """
        ...

    def opened_nodes(self, place: int, gpus: int) -> int:
        """Return how many nodes without any job a start with so many devices would take, asleep or awake."""
        ...

    def nodes(self, place: int) -> Sequence[PlaceNode]:
        """Return the nodes that are up, in their order; none in a place that does not tell nodes apart."""
        ...

    def snapshot_without(self, job: WaitingJob) -> "ClusterSnapshot":
        """Return the cluster as Slurm shows it where the job is not in the queue yet."""
        ...

    def submission(self, job: WaitingJob) -> JobAsSubmitted:
        """Return the job as Slurm shows it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTrials:
    """The trials of clocks in one job of a simulated cluster, and what came of them."""

    ladder: "ClockTrials"
    gpu_type: "GpuTypeName"
    clocks_mhz: tuple[int, ...]
    """Of each clock of the place, ascending."""
    records: "list[ClockTrial]"

    def index_of(self, sm_clock_mhz: int | None) -> int:
        """Return the index of a clock; None is the default one."""
        return len(self.clocks_mhz) - 1 if sm_clock_mhz is None else self.clocks_mhz.index(sm_clock_mhz)


class TrialsOfJobs(Protocol):
    """Says which jobs of a simulated cluster have clocks tried while they run."""

    def begin(self, job: WaitingJob, placement: Placement) -> JobTrials | None:
        """Return the trials of a job that is being started; None for none."""
        ...


class PlacementRule:
    """A policy made of hooks, each of which does nothing; subclasses override what they need.

    The same object decides in the simulated cluster, in training and at a submission to Slurm. A running cluster asks
    `route` at an arrival and `place` at a start; Slurm asks once, and `decide` answers by what `route` and `place` say
    of a view of its snapshot. What an environment cannot carry out it does not list among its capabilities.

    A rule is deterministic given the random stream it is handed, and total: it answers for every job and view.
    """

    name = "rule"
    version = "1"
    routes = False
    """Whether `route` is asked at submission; else a job waits in the common queue of its places."""
    discipline: Discipline | None = None
    """None leaves the world's own."""
    control_interval_seconds: float | None = None
    """How often `control` is asked; None for never."""
    shares_arrival_stream = False
    """Whether a published run of it drew from the stream of the arrivals too; for repeating published figures only."""
    clamped = 0
    """Answers that a guard of its own has changed in this run."""
    observes_ends = False
    """Whether `ended` is called."""
    knowledge: Knowledge = "site"
    """What it knows in a simulated cluster that hides what jobs do."""
    trials: TrialsOfJobs | None = None
    """Whom a simulated cluster asks whether clocks are tried while a job runs; None: in no job."""

    weighs_counts = False
    """Whether what `explained` returns may be compared between numbers of GPUs: every part of it is paid in joules."""

    _adapter: "SubmissionAdapter | None" = None
    """Between the rule and Slurm's submissions; None in a simulated cluster."""

    def take_site(self, config: "Config", settings: str = "") -> None:
        """Take the configuration of the site whose submissions are decided.

        Args:
            config: The site's.
            settings: What stands after the name in `policy.name`; part of the version, so that decisions can be
                distinguished.
        """
        from slurm_energy.policy.submission.adapter import SubmissionAdapter  # noqa: PLC0415  # it imports this module

        self._adapter = SubmissionAdapter(config.gpu_types)
        self.version = f"{type(self).version}:{settings}"[:MAX_VERSION_LENGTH] if settings else type(self).version

    def decide(self, case: "Case") -> "PolicyAnswer":
        """Return the partition that the rule chooses and its clock for each GPU type that the job can land on."""
        return self._at_slurm.answer(self, case)

    def count_costs(self, cases: "Sequence[Case]") -> "Sequence[CountCost]":
        """Return what a job costs with each number of GPUs; none for a rule that does not weigh them."""
        if not self.weighs_counts:
            return ()
        found = (self._at_slurm.count_cost(self, case) for case in cases)
        return tuple(one for one in found if one is not None)

    def for_rehearsal(self, snapshot: "ClusterSnapshot") -> "PlacementRule":
        """Return a rule that answers alike; what it is asked leaves no trace in this one."""
        if self._adapter is not None:
            self._adapter.follow(self, snapshot)
        return deepcopy(self)

    @property
    def _at_slurm(self) -> "SubmissionAdapter":
        if self._adapter is None:
            from slurm_energy.policy.submission.adapter import SubmissionAdapter  # noqa: PLC0415  # as above

            self._adapter = SubmissionAdapter({})
        return self._adapter

    @property
    def uses(self) -> Capabilities:
        """What the rule makes use of as it is set; it goes without what the environment lacks."""
        return frozenset({Capability.COUNT})

    def begin(self, view: ClusterView, random: Random) -> None:
        """Start a run: forget the last one; `random` is the policy's own stream."""

    def route(
        self,
        job: WaitingJob,  # noqa: ARG002  # the hook's form
        view: ClusterView,  # noqa: ARG002  # the hook's form
    ) -> int | tuple[int, ...] | Reroute | None:
        """Return the place in which the job waits, several for a queue of theirs, None for the common queue.

        A `Reroute` also fixes the number of its devices.

        One place must be among the allowed ones; several may also be others that can run the job, as when a job that
        named no partition is sent to more than the default one.
        """
        return None

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | Postponement | None:
        """Return how to start the job now, until when to put it off, or None to let it wait.

        Asked only when it would fit somewhere.
        """
        raise NotImplementedError

    def ended(self, job: EndedJob) -> None:
        """Learn from a job that ended."""

    def explained(
        self,
        job: WaitingJob,  # noqa: ARG002  # the hook's form
        view: ClusterView,  # noqa: ARG002  # the hook's form
    ) -> "Explanation | None":
        """Return what the job would cost in each place with room; None for a rule that weighs no costs."""
        return None

    def explaining(self, job: WaitingJob, view: ClusterView) -> "Callable[[], Explanation | None]":
        """Return what works out `explained` as it is now, whenever it is called; a rule whose prices move does it here.

        The view is one of a submission, which stays as it is.
        """
        found = self.explained(job, view)
        return lambda: found

    def rerouted(self, view: ClusterView) -> Mapping[int, "Reroute"]:  # noqa: ARG002  # the hook's form
        """Return by job id where jobs that wait must wait from now on; asked as often as `control`."""
        return {}

    def control(self, view: ClusterView) -> Mapping[int, int]:  # noqa: ARG002  # the hook's form
        """Return new clock indices for running jobs by job id."""
        return {}
