"""A snapshot as rules see it: the same view as the simulated cluster's, with what Slurm lets a submission do."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.gpu_places import PlaceRoom
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.policy.jobs import JobAsSubmitted, PartnerOffer, RunningJob, WaitingJob
from slurm_energy.policy.placement import AT_SUBMISSION, Capabilities, OptionTable, PlaceInfo, PlaceNode


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A job at its submission, as rules see it: it has no number yet, and asks for one number of GPUs."""

    gpu_counts: tuple[int, ...]
    submitted_seconds: float
    estimated_units: float
    time_limit_seconds: float = inf
    deadline_seconds: float = inf
    max_slowdown: float = inf
    user: str = ""
    account: str = ""
    name: str = ""
    kind: str = ""
    """Of its work: Slurm does not say."""
    request: JobRequest | None = None
    """As Slurm has it."""
    runtime: RuntimeEstimate | None = None
    """What history says of its length."""
    job_id: int = 0
    priority: float = 0.0
    routed_place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSubmission:
    """A submitted job at its end, as far as it is known then: an `EndedJob` that measured nothing."""

    job_id: int
    account: str
    name: str
    gpus: int
    state: str
    """Slurm's state in capitals."""
    ended_seconds: float
    run_seconds: float
    """Of its last start, suspensions left out."""
    deadline_seconds: float = inf
    kind: str = ""
    place: int = -1
    clock: int = -1
    energy_joules: float = 0.0
    units: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SnapshotView:
    """A `ClusterView` over a snapshot, for one job.

    What Slurm does not tell is as if it were not there: no power that is yet to come, no partner on a GPU, no nodes to
    name, no task graph that a delay holds up.
    """

    snapshot: ClusterSnapshot
    now_seconds: float
    """Unix time."""
    places: Sequence[PlaceInfo]
    """Each GPU type of each partition, in the snapshot's order."""
    free_gpus: Sequence[int]
    """By place, less what was promised since the snapshot."""
    table: OptionTable
    """Of the job, by place."""
    open_places: Sequence[int]
    """Where it may go, room or not."""
    room_by_place: Sequence[int]
    capabilities: Capabilities = AT_SUBMISSION

    def only(self, places: Sequence[int], gpus: int) -> "SnapshotView":
        """Return the view of a job that has room in these places alone."""
        room = [0] * len(self.places)
        for place in places:
            room[place] = gpus
        return SnapshotView(
            snapshot=self.snapshot,
            now_seconds=self.now_seconds,
            places=self.places,
            free_gpus=self.free_gpus,
            table=self.table,
            open_places=self.open_places,
            room_by_place=room,
            capabilities=self.capabilities,
        )

    @property
    def waiting_jobs(self) -> Sequence[int]:
        """By place, jobs that were routed there and wait: Slurm's wait for partitions."""
        return [0] * len(self.places)

    @property
    def num_waiting(self) -> int:
        """Jobs that would start if there were room."""
        return self.snapshot.num_waiting

    @property
    def power_watts(self) -> float:
        """Power of the whole cluster, 0 where it is not read."""
        return sum(cluster.power_watts or 0.0 for cluster in self.snapshot.clusters)

    @property
    def coming_watts(self) -> float:
        """Not known."""
        return 0.0

    @property
    def power_budget_watts(self) -> float:
        """Infinite where none is known, or each of several clusters has its own."""
        if len(self.snapshot.clusters) != 1:
            return inf
        budget = self.snapshot.clusters[0].power_budget_watts
        return inf if budget is None else budget

    def room(self, job: WaitingJob) -> Sequence[int]:
        """Return by place the job's device count where it has room now, 0 elsewhere."""
        if job.routed_place is None:
            return self.room_by_place
        return [gpus if place == job.routed_place else 0 for place, gpus in enumerate(self.room_by_place)]

    def allowed_places(self, job: WaitingJob) -> Sequence[int]:  # noqa: ARG002  # the view's form
        """Return where the job may go, room or not."""
        return self.open_places

    def options(self, job: WaitingJob) -> OptionTable:  # noqa: ARG002  # the view's form
        """Return the costs of the job's options."""
        return self.table

    def partners(self, job: WaitingJob) -> Sequence[PartnerOffer]:  # noqa: ARG002  # the view's form
        """Return none: Slurm gives a job GPUs of its own."""
        return ()

    def running_jobs(self) -> Sequence[RunningJob]:
        """Return none: no clock of a running job can be changed from here."""
        return ()

    def carbon_grams_per_kwh(self, place: int) -> float:
        """Return the carbon intensity of the place's partition, 0 where it is not known."""
        return self._partition_figure(place, "carbon_grams_per_kwh")

    def price_per_kwh(self, place: int) -> float:
        """Return the energy price of the place's partition, 0 where it is not known."""
        return self._partition_figure(place, "price_per_kwh")

    def wakeup_joules(self, place: int, gpus: int) -> float:
        """Return the energy of waking the nodes that a start needs, as far as the place says what that takes."""
        info, (_, room) = self.places[place], self.snapshot.gpu_places[place]
        return _sleeping_needed(room, gpus, info.gpus_per_node) * info.resume_watts * info.resume_seconds

    def criticality(self, job: WaitingJob) -> float:  # noqa: ARG002  # the view's form
        """Return 1: no job waits for one that is only being submitted."""
        return 1.0

    def opened_nodes(self, place: int, gpus: int) -> int:
        """Return how many nodes without any job a start would take, asleep or awake."""
        _, room = self.snapshot.gpu_places[place]
        whole, rest = divmod(gpus, self.places[place].gpus_per_node)
        return whole + (rest > 0 and not any(part >= rest for part in room.parts))

    def nodes(self, place: int) -> Sequence[PlaceNode]:  # noqa: ARG002  # the view's form
        """Return none: which node a job gets is Slurm's to say."""
        return ()

    def snapshot_without(self, job: WaitingJob) -> ClusterSnapshot:  # noqa: ARG002  # the view's form
        """Return the snapshot: a job that is being submitted is not in it."""
        return self.snapshot

    def submission(self, job: WaitingJob) -> JobAsSubmitted:
        """Return the job as Slurm has it."""
        assert isinstance(job, SubmittedJob)
        assert job.request is not None
        return JobAsSubmitted(job.request, self.now_seconds, job.runtime)

    def _partition_figure(self, place: int, name: str) -> float:
        partition = self.snapshot.partition_by_name.get(PartitionName(self.places[place].partition))
        figure = None if partition is None else getattr(partition, name)
        return 0.0 if figure is None else float(figure)


def _sleeping_needed(room: PlaceRoom, gpus: int, gpus_per_node: int) -> int:
    if not room.asleep_nodes:
        return 0
    whole, rest = divmod(gpus, gpus_per_node)
    needed = max(0, whole - room.whole_nodes)
    if rest:
        needed += room.whole_nodes <= whole and not any(part >= rest for part in room.parts)
    return min(needed, room.asleep_nodes)
