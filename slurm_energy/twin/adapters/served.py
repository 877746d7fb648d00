"""The daemon's policies in the twin: asked at submission with a job request and a snapshot, behind the daemon's guard.

What the daemon would answer is what happens here, so that a policy is judged by the code that serves it. The answer is
a list of partitions and a clock for each GPU type; Slurm then starts the job in the first of them that has room. It
knows of a job what the daemon would know in any world: request, limit, and what ended runs of its name say; never its
kind, its length or its own curves.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from random import Random

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import ClockChoice, EnergyDecision, Reason
from slurm_energy.domain.ids import DecisionId, GpuTypeName, PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.domain.predicted_clocks import PredictedWork
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.energy_model.catalog import CATALOG, gpu_type_from_slurm_type
from slurm_energy.errors import PolicyError
from slurm_energy.estimation.clock_trials import ClockTrials
from slurm_energy.estimation.job_groups import job_group, script_family
from slurm_energy.policy.base import FollowingPolicy, Policy, RehearsablePolicy
from slurm_energy.policy.gnn.outcomes.graph import Ask
from slurm_energy.policy.gnn.outcomes.inference import loaded_network
from slurm_energy.policy.gnn.outcomes.site import SitePredictions
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, JobTrials, PlaceInfo, Placement, PlacementRule, Reroute
from slurm_energy.policy.registry import create_policy
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.twin.adapters.ended_runs import ServedRuns, run_key
from slurm_energy.twin.adapters.view import TwinView, job_request
from slurm_energy.twin.engine.job import Job, JobRun
from slurm_energy.twin.engine.knowledge import KnownEnd, known_end

PREDICTED_SECONDS = 600.0
"""Between two looks at all runs by a network, as in the daemon."""
KnownClocks = Mapping[tuple[str, str], Mapping[GpuTypeName, LearnedClock]]
"""By login name and group of jobs."""
CLAMPING = frozenset(
    {
        Reason.SLOWDOWN_BOUND,
        Reason.TIME_LIMIT,
        Reason.DEADLINE,
        Reason.CLOCK_TABLE,
        Reason.PARTITION_NOT_ALLOWED,
        Reason.POLICY_ERROR,
    }
)
"""Reasons with which the guard says that it changed an answer."""


class ServedPolicy(PlacementRule):
    """A policy of the daemon behind its guard; `reasons` counts what the guard said."""

    routes = True
    observes_ends = True

    def __init__(self, policy: Policy, config: Config, clocks: KnownClocks | None = None) -> None:
        """Serve a policy; `clocks` are those of names that a candidate brings."""
        self.name = policy.name
        self._clocks = clocks or {}
        self.version = policy.version
        self.reasons: Counter[Reason] = Counter()
        self._policy = policy
        # In the twin no user reads what a named partition costs.
        config = self._config = replace(config, routing=replace(config.routing, invite=False))
        self._guard = Guard(config, ids=partial(next, _ids()))
        self._decisions: dict[int, EnergyDecision] = {}
        self._gpu_types: list[GpuTypeName | None] = []
        self._without_default = False
        self._runs = ServedRuns()
        self._predictions = _ServedPredictions(config) if config.policy.clock_predictions == "network" else None
        self._places: Sequence[PlaceInfo] = ()
        self._waiting: dict[int, tuple[Job, JobRequest]] = {}
        """Jobs that were decided and have not started, as they were submitted."""
        if config.routing.redecide == "on":
            self.control_interval_seconds = config.routing.redecide_seconds
        self._trials: dict[int, JobTrials] = {}
        self.trials = _ServedTrials(self) if config.policy.clock_trials != "off" else None

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Forget the last run."""
        self.reasons.clear()
        self.clamped = 0
        self._decisions.clear()
        self._waiting.clear()
        self._trials.clear()
        self._runs = ServedRuns()
        if self._predictions is not None:
            self._predictions.forget()
        self._places = view.places
        self._gpu_types = [gpu_type_from_slurm_type(place.device) for place in view.places]
        if isinstance(view, TwinView):
            view.open_by_default = self._config.routing.open and self._config.routing.open_by_default
        self._without_default = isinstance(view, TwinView) and not any(one.is_default for one in view.world.partitions)

    def route(self, job: WaitingJob, view: ClusterView) -> tuple[int, ...] | Reroute | None:
        """Ask the policy, as the daemon does at submission; the job waits in the queue of its partitions.

        As in Slurm, the number of GPUs of a job with a range is fixed when it is submitted.
        """
        if not isinstance(view, TwinView) or not isinstance(job, Job):
            raise PolicyError(f"policy {self.name} is served in the twin only")
        snapshot = view.snapshot_without(job)
        if isinstance(self._policy, FollowingPolicy):
            self._policy.warm_up(snapshot)
        request = self._request(job, view)
        decision = self._decided(self._policy, job, request, view, snapshot, {})
        if self._config.routing.redecide == "on":
            self._waiting[job.job_id] = job, request
        self.reasons.update(decision.reasons)
        self.clamped += not CLAMPING.isdisjoint(decision.reasons)
        self._decisions[job.job_id] = decision
        named = decision.partitions
        places = None if named is None else self._waits_in(named, request, view)
        return Reroute(places, decision.gpus or job.asked_gpus) if job.asked_gpus else places

    def _waits_in(self, named: tuple[PartitionName, ...], request: JobRequest, view: TwinView) -> tuple[int, ...]:
        """Return the named places and the job's own: where the first have no room after all, it starts in one of those.

        Its own are those of its request, wherever it waits.
        """
        own = request.partitions or self._default(view)
        return tuple(
            index
            for index, place in enumerate(view.places)
            if PartitionName(place.partition) in own or PartitionName(place.partition) in named
        )

    def _decided(  # each is one thing that a decision rests on
        self,
        policy: Policy,
        job: Job,
        request: JobRequest,
        view: TwinView,
        snapshot: ClusterSnapshot,
        claimed: Mapping[PartitionName, float],
    ) -> EnergyDecision:
        runtime, work = self._runs.about(job, view.now_seconds)
        return self._guard.decide(
            policy,
            request,
            snapshot,
            snapshot.taken_at_seconds,
            runtime=runtime,
            claimed_gpus=claimed,
            work=work if self._config.policy.learn_from_runs else None,
            scaling=self._runs.scaling(job) if job.asked_gpus else None,
            predicted=None if self._predictions is None else self._predictions.of(job, self._runs, view.now_seconds),
            learned_clocks={
                **self._named_clocks(job),
                **(self._runs.clocks_of(job) if self.trials is not None else {}),
            },
            site_clocks=self._runs.site_clocks(self._config, view.now_seconds),
        )

    def _named_clocks(self, job: Job) -> Mapping[GpuTypeName, LearnedClock]:
        return self._clocks.get((job.user, job_group(job.name, run_key(job))), {}) if self._clocks and job.name else {}

    def rerouted(self, view: ClusterView) -> Mapping[int, Reroute]:
        """Decide the jobs that wait again, as the daemon does: in their order, on what those before leave."""
        if not self._waiting or not isinstance(view, TwinView):
            return {}
        first, _ = next(iter(self._waiting.values()))
        snapshot = replace(view.snapshot_without(first))
        for _ in snapshot.work_out({}):
            pass
        policy = self._policy
        if isinstance(policy, RehearsablePolicy):
            policy = policy.for_rehearsal(snapshot)
        claimed: dict[PartitionName, float] = {}
        found: dict[int, Reroute] = {}
        for job_id, (job, request) in self._waiting.items():
            before = self._decisions[job_id]
            decision = self._decided(policy, job, request, view, snapshot, claimed)
            moves = decision.partitions is not None and decision.partitions != before.partitions
            resizes = bool(job.asked_gpus) and decision.gpus is not None and decision.gpus != before.gpus
            if Reason.NO_IDLE_PARTITION in decision.reasons:
                decision = replace(decision, partitions=before.partitions)
                moves = False
            if moves or resizes or decision.clocks != before.clocks:
                self._decisions[job_id] = decision
            named = decision.partitions or ()
            if moves or resizes:
                found[job_id] = Reroute(self._waits_in(named, request, view), decision.gpus if resizes else None)
            gpus = float(decision.gpus or job.asked_gpus or job.gpu_counts[0])
            for name in named[:1] or request.partitions or self._default(view):
                claimed[name] = claimed.get(name, 0.0) + gpus
        return found

    def _default(self, view: TwinView) -> tuple[PartitionName, ...]:
        return tuple(PartitionName(one.name) for one in view.world.partitions if one.is_default)

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Start the job in the first of its partitions with room, at the clock chosen for the GPUs found there."""
        decision = self._decisions.get(job.job_id)
        room = view.room(job)
        named = () if decision is None else decision.partitions or ()
        later = len(named)
        order = {name: position for position, name in enumerate(named)}
        places = sorted(range(len(room)), key=lambda at: order.get(PartitionName(view.places[at].partition), later))
        for index in places:
            if room[index]:
                self._waiting.pop(job.job_id, None)
                return Placement(index, room[index], self._clock(decision, index, view))
        return None

    def trials_of(self, job: WaitingJob, placement: Placement) -> JobTrials | None:
        """Return the trials that the sampler would make where the job starts, None where there are none."""
        decision, gpu_type = self._decisions.get(job.job_id), self._gpu_types[placement.place]
        bound = None if decision is None or gpu_type is None else decision.trial_bounds.get(gpu_type)
        row = None if gpu_type is None else CATALOG.get(gpu_type)
        if bound is None or row is None or gpu_type is None or row.default_sm_clock_mhz is None:
            return None
        relative = self._places[placement.place].relative_clocks
        clocks = [row.nearest_supported_clock_mhz(row.default_sm_clock_mhz * one / relative[-1]) for one in relative]
        known = tuple(clock for clock in clocks if clock is not None)
        if len(known) < len(clocks) or list(known) != sorted(set(known)):
            return None
        ladder = ClockTrials(clocks_mhz=known, table_clock_mhz=known[placement.clock], max_slowdown=bound)
        made = self._trials[job.job_id] = JobTrials(ladder=ladder, gpu_type=gpu_type, clocks_mhz=known, records=[])
        return made

    def ended(self, job: EndedJob) -> None:
        """Learn from a job that ended, as the daemon does from its report."""
        decision, trials = self._decisions.pop(job.job_id, None), self._trials.pop(job.job_id, None)
        self._waiting.pop(job.job_id, None)
        gpu_type = self._gpu_types[job.place] if job.place >= 0 else None
        if gpu_type is None:
            return
        end = known_end(job) if isinstance(job, JobRun) else job
        if not isinstance(end, KnownEnd):
            return
        clocks = () if decision is None else decision.clocks  # runs from before the daemon was there had none
        is_decided = decision is not None
        chosen = next((clock for clock in clocks if clock.gpu_type == gpu_type), None)
        self._runs.learn(end, gpu_type, self._places[job.place], chosen, trials, is_decided=is_decided)

    def _clock(self, decision: EnergyDecision | None, index: int, view: ClusterView) -> int:
        chosen = [] if decision is None else [c for c in decision.clocks if c.gpu_type == self._gpu_types[index]]
        return clock_index(chosen[0], view.places[index].relative_clocks) if chosen else -1

    def _request(self, job: Job, view: TwinView) -> JobRequest:
        """Return what Slurm would say of a job; where no partition is the default, it is submitted to all of them."""
        request = job_request(job)
        if request.partitions or not self._without_default:
            return request
        return replace(request, partitions=tuple(PartitionName(partition.name) for partition in view.world.partitions))


class _ServedPredictions:
    """What a network expects of jobs, by the runs that a served policy has seen; looked at again once in a while."""

    def __init__(self, config: Config) -> None:
        self._network = loaded_network()
        self._limits = site_board_limits(config)
        self._at_seconds = -inf
        self._found: SitePredictions | None = None

    def forget(self) -> None:
        """Forget the last run's."""
        self._at_seconds, self._found = -inf, None

    def of(self, job: Job, runs: "ServedRuns", now_seconds: float) -> PredictedWork | None:
        """Return what is expected of a job that is being submitted."""
        if self._found is None or now_seconds - self._at_seconds >= PREDICTED_SECONDS:
            self._at_seconds, self._found = now_seconds, runs.predictions(self._network, self._limits, now_seconds)
        family = "" if job.script is None else script_family(job.script)
        return self._found.of(Ask(job.user, job_group(job.name, run_key(job)), family))


class _ServedTrials:
    """Asks a served policy for the trials of a job, as the engine asks."""

    def __init__(self, policy: ServedPolicy) -> None:
        self._policy = policy

    def begin(self, job: WaitingJob, placement: Placement) -> JobTrials | None:
        """Return the trials of a job that is being started; None for none."""
        return self._policy.trials_of(job, placement)


def served_policy(name: str, config: Config | None = None) -> ServedPolicy:
    """Return a policy of the daemon's registry, ready for the twin.

    Raises:
        PolicyError: there is no policy of that name.
    """
    settings = config or Config()
    settings = replace(settings, policy=replace(settings.policy, name=name))
    return ServedPolicy(create_policy(settings), settings)


def clock_index(choice: ClockChoice, relative_clocks: tuple[float, ...]) -> int:
    """Return the grid's clock nearest to a choice, as a share of the default clock; of two the higher."""
    wanted = choice.sm_clock_mhz / choice.default_clock_mhz * relative_clocks[-1]
    return min(range(len(relative_clocks)), key=lambda index: (abs(relative_clocks[index] - wanted), -index))


def _ids() -> Iterator[DecisionId]:
    """Yield decision ids in their order: the twin repeats itself exactly."""
    for number in count(1):
        yield DecisionId(f"{number:016x}")
