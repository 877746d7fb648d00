"""The twin as rules see it."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.gpu_count import GpuCountOption
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyOptions, GpuDemand, JobRequest
from slurm_energy.policy.jobs import JobAsSubmitted, PartnerOffer, RunningJob, WaitingJob
from slurm_energy.policy.placement import SIMULATED, OptionTable, PlaceNode
from slurm_energy.twin.engine.execution import Execution
from slurm_energy.twin.engine.job import COMPUTING, Job, JobRun
from slurm_energy.twin.engine.pace import pair_scale
from slurm_energy.twin.engine.places import Place, can_run
from slurm_energy.twin.engine.pool_state import DOWN, SUSPENDED, WAKING, PoolState
from slurm_energy.twin.engine.waiting import Precedence, Waiting
from slurm_energy.twin.world import Series, World

if TYPE_CHECKING:  # it reads this view
    from slurm_energy.twin.snapshot.source import SnapshotSource

_FIRST_SECOND = 1.0
"""The twin's time 0 as the daemon's clock has it: Unix times begin above 0."""


def value_at(series: Series, time: float) -> float:
    """Return what a series holds at a time."""
    return series.values[max(0, bisect_right(series.times_seconds, time) - 1)]


def regional_series(series_by_region: Mapping[str, Series], region: str) -> Series | None:
    """Return the series of a region: its own, else the one for all regions, else none."""
    return series_by_region.get(region) or series_by_region.get("")


class TwinView:
    """A `ClusterView` over a run of the twin. The engine keeps `now_seconds`; everything else is read when asked."""

    capabilities = SIMULATED
    hides_jobs = False
    """Whether kinds and lengths of jobs are hidden."""

    def __init__(self, world: World, places: Sequence[Place], execution: Execution, waiting: Waiting) -> None:
        self.now_seconds = 0.0
        self.places = tuple(place.info for place in places)
        self.free_gpus = execution.free_gpus
        self.waiting_jobs = [0] * len(places)
        self.power_budget_watts = inf
        self.world = world
        self.pools = execution.pools
        self.twin_places = places
        self.precedence: Precedence | None = None
        self.runs: Mapping[int, JobRun] = {}
        """Every job of the run by id, in the order of submission, ended ones too; empty where they are not given."""
        self.snapshots: SnapshotSource | None = None
        """Shows the run as Slurm would; None where it is not given."""
        self._execution = execution
        self._waiting = waiting
        self._allowed: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._allowed_last: tuple[str, tuple[int, ...] | None, tuple[int, ...]] = ("", None, ())
        """Kind, counts and places of the plain job that was asked about last: mostly those of the next one too."""
        self._allowed_job: WaitingJob | None = None
        """That job: the engine asks when it comes, a rule right after."""
        self._limits_time = any(place.partition.max_time_seconds < inf for place in places)
        self._pool_of = [execution.pools[place.pool_index] for place in places]
        self._asked: WaitingJob | None = None
        self._no_room = [0] * len(places)
        self._room = self._no_room
        self._most = [place.partition.max_gpus_per_job for place in places]
        self._default = tuple(partition.name for partition in world.partitions if partition.is_default)
        self.open_by_default = False
        """Whether partitions that a job asks for are a preference where it does not say: of the policy's site."""

    @property
    def num_waiting(self) -> int:
        """Jobs that are eligible and wait; one that was put off is not eligible."""
        return self._waiting.count - self._waiting.postponed

    @property
    def power_watts(self) -> float:
        """Power of the whole cluster."""
        return self._execution.power_watts

    @property
    def ambient_celsius(self) -> float | None:
        """Temperature of the room, None where each device has its own."""
        return self._execution.pace.ambient_celsius

    @property
    def link_congestion(self) -> float:
        """Share of the links between nodes that others use."""
        series = self.world.congestion
        return 0.0 if series is None else 1.0 - value_at(series, self.now_seconds)

    @property
    def coming_watts(self) -> float:
        """Power that jobs will add which have their devices and do not compute yet."""
        return self._execution.coming_watts

    def options(self, job: WaitingJob) -> OptionTable:
        """Return the costs of a job's options."""
        return self._execution.estimates.table(job.kind, job.gpu_counts)

    def allowed_places(self, job: WaitingJob) -> tuple[int, ...]:
        """Return the places that request, partition and device allow; the default partition when it names none."""
        if job is self._allowed_job:
            return self._allowed_last[2]
        assert isinstance(job, Job)
        return self.allowed_to(job)

    def allowed_to(self, job: Job) -> tuple[int, ...]:
        """Return the same, for the engine: it asks first."""
        if job.is_plain:
            kind, counts, places = self._allowed_last
            if job.gpu_counts is counts and job.kind == kind:
                self._allowed_job = job
                return places
        key: tuple[object, ...] = (
            (job.kind, job.gpu_counts)
            if job.is_plain
            else (
                job.kind,
                job.gpu_counts,
                job.partitions,
                job.devices,
                job.cpus,
                job.memory_gib,
                job.time_limit_seconds if self._limits_time else inf,
            )
        )
        found = self._allowed.get(key)
        if found is None:
            asked = job.partitions or self._default
            found = tuple(
                place.index
                for place in self.twin_places
                if can_run(place, job) and (not asked or place.partition.name in asked)
            )
            self._allowed[key] = found
        if job.is_plain:
            self._allowed_last, self._allowed_job = (job.kind, job.gpu_counts, found), job
        return found

    def possible_places(self, job: WaitingJob) -> tuple[int, ...]:
        """Return the places that could run the job if it were sent to their partitions, the default one or not."""
        assert isinstance(job, Job)
        is_open = self.open_by_default if job.open is None else job.open
        return tuple(place.index for place in self.twin_places if can_run(place, job, is_open=is_open))

    def room(self, job: WaitingJob) -> Sequence[int]:
        """Return by place the largest device count that fits now."""
        if job is self._asked:
            return self._room
        places = self.allowed_places(job) if job.routed_place is None else (job.routed_place,)
        return self.fresh_room(job, places, frozenset())

    def fresh_room(self, job: WaitingJob, places: tuple[int, ...], closed: "frozenset[int] | set[int]") -> list[int]:
        """Return the same over places of which some are closed, and keep it for the rule that is asked next."""
        room = self._no_room.copy()
        free, least = self.free_gpus, job.gpu_counts[0]
        for index in places:
            if free[index] >= least and index not in closed:
                room[index] = self._pool_of[index].room(job, self._most[index])  # type: ignore[arg-type]  # a Job
        self._asked, self._room = job, room
        return room

    def has_room(self, job: Job, place: int) -> bool:
        """Return whether a job could start in a place now, whatever else waits; nothing is kept of the question."""
        least = job.gpu_counts[0]
        return self.free_gpus[place] >= least and self._pool_of[place].room(job, self._most[place]) > 0

    def room_anywhere(self, job: Job, places: tuple[int, ...]) -> list[int] | None:
        """Return the same over open places, None if there is no room in any."""
        room, free, least = None, self.free_gpus, job.gpu_counts[0]
        for index in places:
            if free[index] >= least:
                gpus = self._pool_of[index].room(job, self._most[index])
                if gpus:
                    if room is None:
                        room = self._no_room.copy()
                    room[index] = gpus
        self._asked = None if room is None else job
        self._room = room or self._no_room
        return room

    def forget_room(self) -> None:
        """Drop the room that was kept: devices were taken or freed."""
        self._asked = None

    def partners(self, job: WaitingJob) -> Sequence[PartnerOffer]:
        """Return the running jobs with which the job could share a GPU."""
        assert isinstance(job, Job)
        if not job.shareable or 1 not in job.gpu_counts:
            return ()
        offers = []
        for index in self.allowed_places(job) if job.routed_place is None else (job.routed_place,):
            place = self.twin_places[index]
            if place.pool.jobs_per_gpu < 2:
                continue
            for run in self._pool_of[index].runs.values():
                if run.place == index and may_share(run):
                    pair = place.device.pair(job.kind, run.kind)
                    if pair is not None:
                        scale = pair_scale(place.device, job.kind, run.kind, run.clock)
                        offers.append(
                            PartnerOffer(
                                run.job_id, index, pair.speed, pair.partner_speed, pair.watts * scale, run.watts
                            )
                        )
        return offers

    def expected_seconds(self, run: JobRun) -> float:
        """Return the run time expected of a job at the default clock: where it runs, else in its fastest place."""
        rows = self._execution.estimates.rows(run.job.kind, run.job.gpu_counts)
        if run.place < 0:
            return run.job.estimated_units * min((rows.fastest_seconds[place] for place in run.allowed), default=inf)
        last = len(self.places[run.place].relative_clocks) - 1
        return run.job.estimated_units * rows.seconds[run.place][rows.column[run.gpus]][last]

    def waiting_by_place(self) -> list[int]:
        """Return by place the jobs that wait and could start there, routed or not."""
        found = [0] * len(self.twin_places)
        for queue in self._waiting.all_queues():
            if queue.size:
                for place in queue.places:
                    found[place] += queue.size
        return found

    def running_jobs(self) -> Sequence[RunningJob]:
        """Return the jobs that compute, in the order in which they began."""
        return list(self._execution.computing.values())

    def carbon_grams_per_kwh(self, place: int) -> float:
        """Return the present carbon intensity of a place."""
        return self._regional(self.world.carbon_grams_per_kwh, place)

    def price_per_kwh(self, place: int) -> float:
        """Return the present price of energy at a place."""
        return self._regional(self.world.price_per_kwh, place)

    def wakeup_joules(self, place: int, gpus: int) -> float:
        """Return the energy of waking the nodes that a start would need."""
        pool = self._execution.pools[self.twin_places[place].pool_index]
        suspend = pool.pool.suspend
        if suspend is None:
            return 0.0
        return pool.sleeping_needed(gpus) * suspend.resume_watts * suspend.resume_seconds

    def criticality(self, job: WaitingJob) -> float:
        """Return the share of a job's delay that reaches the end of its task graph."""
        if self.precedence is None or not self.precedence.is_needed:
            return 1.0
        return self.precedence.criticality(job.job_id)

    def opened_nodes(self, place: int, gpus: int) -> int:
        """Return how many nodes without any job a start would take."""
        return self._execution.pools[self.twin_places[place].pool_index].opened_nodes(gpus)

    def nodes(self, place: int) -> list[PlaceNode]:
        """Return the nodes that are up."""
        pool = self._pool_of[place]
        if not pool.by_node:
            return []
        return [
            PlaceNode(node, pool.free[node], power != SUSPENDED, self._ends(pool, node))
            for node, power in enumerate(pool.power)
            if power != DOWN
        ]

    def snapshot_without(self, job: WaitingJob) -> ClusterSnapshot:
        """Return the cluster as the daemon would see it, without the job that is asked about."""
        assert self.snapshots is not None
        return self.snapshots.snapshot(self, self.now_seconds + _FIRST_SECOND, without=job.job_id)

    def submission(self, job: WaitingJob) -> JobAsSubmitted:
        """Return the job as the daemon would get it; of its length is known what it takes where it is fastest."""
        assert isinstance(job, Job)
        expected = job.estimated_units * float(self.options(job).seconds_per_unit.min())
        runtime = RuntimeEstimate(seconds=expected, upper_seconds=expected, source="history")
        return JobAsSubmitted(job_request(job), self.now_seconds + _FIRST_SECOND, runtime)

    def _ends(self, pool: PoolState, node: int) -> tuple[tuple[float, int], ...]:
        """Return when the jobs on a node are expected to end, and the devices that they give back there."""
        begins = self.now_seconds if pool.power[node] != WAKING else pool.ready_seconds[node]
        return tuple(
            sorted(
                (self._expected_end(run, begins), sum(held for at, _, held in run.allocation if at == node))
                for run in pool.runs_on[node].values()
            )
        )

    def _expected_end(self, run: JobRun, begins_seconds: float) -> float:
        """Return when a job ends by its estimate, at the clock that was set; one that starts begins at a given time."""
        begun = run.begun_seconds if run.phase == COMPUTING else begins_seconds
        return min(begun + self._execution.pace.expected_seconds(run), run.limit_at_seconds)

    def _regional(self, series_by_region: Mapping[str, Series], place: int) -> float:
        series = regional_series(series_by_region, self.twin_places[place].pool.region)
        return 0.0 if series is None else value_at(series, self.now_seconds)


class SiteView(TwinView):
    """The twin as rules see it where jobs are hidden: asked about the copies of jobs that rules have."""

    hides_jobs = True

    def allowed_places(self, job: WaitingJob) -> tuple[int, ...]:
        """Return the places that request, partition and device allow."""
        return super().allowed_places(self._own(job))

    def possible_places(self, job: WaitingJob) -> tuple[int, ...]:
        """Return the places that could run the job."""
        return super().possible_places(self._own(job))

    def room(self, job: WaitingJob) -> Sequence[int]:
        """Return by place the largest device count that fits now."""
        return super().room(self._own(job))

    def partners(self, job: WaitingJob) -> Sequence[PartnerOffer]:  # noqa: ARG002  # the view's form
        """Return none: who could share a GPU is known by kinds alone."""
        return ()

    def _own(self, job: WaitingJob) -> WaitingJob:
        run = self.runs.get(job.job_id)
        return job if run is None else run.job


def may_share(run: JobRun) -> bool:
    """Return whether a job that runs could take another beside it on its one GPU."""
    return run.job.shareable and run.partner is None and run.phase == COMPUTING and run.gpus == 1


def job_request(job: Job) -> JobRequest:
    """Return a job of the twin as the daemon would get it from Slurm."""
    least, most = job.gpu_counts[0], job.gpu_counts[-1]
    counts: tuple[int, ...] = ()
    if job.asked_gpus and most > least:
        least, counts = job.asked_gpus, job.gpu_counts
    return JobRequest(
        user_id=1000,
        name=job.name,
        script=job.script,
        user_name=job.user or None,
        account=job.account or None,
        partitions=tuple(PartitionName(name) for name in job.partitions),
        time_limit_minutes=job.time_limit_seconds / 60.0 if job.time_limit_seconds < inf else None,
        cpus_per_task=job.cpus or None,
        gpus=(
            GpuDemand(
                count=least,
                max_count=most if most > least and not counts else None,
                slurm_type=job.devices[0] if len(job.devices) == 1 else None,
            ),
        ),
        exclusive=job.exclusive,
        count_options=tuple(GpuCountOption(gpus=count) for count in counts),
        options=EnergyOptions(
            gpu_counts=counts,
            open=job.open,
            max_slowdown=min(job.max_slowdown, 2.0) if job.max_slowdown < inf else None,
            deadline_seconds=job.deadline_seconds + _FIRST_SECOND if job.deadline_seconds < inf else None,
        ),
        submitted_at_seconds=job.submitted_seconds + _FIRST_SECOND,
    )
