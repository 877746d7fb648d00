"""A placement rule that decides at submission: one question, one answer, in the form that Slurm can carry out.

The rule is asked with the places that have room: where it would start the job says which partition is tried first.
Slurm may start the job in others of its partitions, and takes any GPU type of one: the rule is asked again for each
type on which the job can land, with room there alone, and its clock for that type goes with the job.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, isfinite
from random import Random
from typing import TYPE_CHECKING

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import AnswerDetails, ClockChoice, DeferredDetails, OptionCost, PolicyAnswer, Reason
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.energy_model.operating_point import OperatingPoint
from slurm_energy.policy.base import Case, CountCost
from slurm_energy.policy.oracle import trial_note
from slurm_energy.policy.placement import Placement, PlacementRule, Reroute
from slurm_energy.policy.site.comparison import Candidate, clock_choice, landing_on, with_room
from slurm_energy.policy.site.type_bound import default_candidate, lacks_runs_at_home
from slurm_energy.policy.submission.options import JobOptions, landing_options, routing_options
from slurm_energy.policy.submission.places import SitePlaces, point_at, site_of
from slurm_energy.policy.submission.view import SnapshotView, SubmittedJob

if TYPE_CHECKING:  # the base installation has no numpy
    from slurm_energy.policy.rules.cost_table import Explanation

_SEED = 0


class SubmissionAdapter:
    """What stands between a rule and the submissions that it decides: the cluster's places, as the rule saw them last.

    A rule's prices follow the jobs that it is asked about; it begins again where the cluster's places are others.
    """

    def __init__(self, configured: Mapping[str, str]) -> None:
        """Know no cluster yet.

        Args:
            configured: [gpu_types].
        """
        self._configured = configured
        self._site: SitePlaces | None = None
        self._seen: ClusterSnapshot | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> "SubmissionAdapter":
        """Return another one at the same cluster, which neither of them changes."""
        copied = SubmissionAdapter(self._configured)
        copied._site, copied._seen = self._site, self._seen
        return copied

    def follow(self, rule: PlacementRule, snapshot: ClusterSnapshot) -> SitePlaces:
        """Take the cluster's places and return them; the rule begins where they are others."""
        if self._site is not None and (snapshot is self._seen or self._site.holds(snapshot)):
            self._seen = snapshot
            return self._site
        self._seen, site = snapshot, site_of(snapshot, self._configured)
        view = SnapshotView(
            snapshot=snapshot,
            now_seconds=snapshot.taken_at_seconds,
            places=site.infos,
            free_gpus=site.free_gpus(snapshot, {}),
            table=site.table(JobOptions(units=1.0, work={}, room={}), 1),
            open_places=(),
            room_by_place=[0] * len(site.infos),
        )
        rule.begin(view, Random(_SEED))  # noqa: S311  # a rule's own stream, the same after every start
        self._site = site
        return site

    def answer(self, rule: PlacementRule, case: Case) -> PolicyAnswer:
        """Return the partition that the rule chooses and its clock for each GPU type that the job can land on."""
        return _Question(rule, self.follow(rule, case.snapshot), case).answer()

    def count_cost(self, rule: PlacementRule, case: Case) -> CountCost | None:
        """Return what the job costs in the cheapest of its partitions; None where the rule weighs none of them."""
        return _Question(rule, self.follow(rule, case.snapshot), case).cost()


class _Question:
    """One job's way through the rule."""

    def __init__(self, rule: PlacementRule, site: SitePlaces, case: Case) -> None:
        self._rule, self._site, self._case = rule, site, case
        self._gpus = max(1, case.job.gpu_count)
        self._free = site.free_gpus(case.snapshot, case.claimed_gpus)
        self._reasons: tuple[Reason, ...] = (Reason.POLICY,)
        self._notes: list[str] = []
        self._weighed: list[tuple[JobOptions, Callable[[], Explanation | None]]] = []
        """What the rule says of the partitions: the first that says anything counts."""
        self._last: tuple[tuple[tuple[Candidate, ...], bool], JobOptions] | None = None

    def answer(self) -> PolicyAnswer:
        """Ask for a partition where one may be named, then for clocks."""
        case = self._case
        routing = routing_options(case) if case.may_route else None
        submitted = landing_on(case.candidates, None)
        arrival = routing or self._landing(submitted, is_sent=False)
        asked = self._job(arrival)
        routed = self._arrive(asked, arrival)
        named = self._named(asked, routing, routed) if case.may_route else None
        clocks = tuple(self._clocks(named))
        return PolicyAnswer(
            partitions=named,
            clocks=clocks,
            details=self._details(),
            reasons=self._reasons,
            notes=tuple(self._notes),
        )

    def cost(self) -> CountCost | None:
        """Return the least cost over partitions and clocks: of those with room now, else of those that it waits for."""
        case = self._case
        idle = with_room(case.candidates)
        options = routing_options(case) if case.may_route else None
        where = idle if options is not None else landing_on(case.candidates, None)
        options = options or self._landing(where, is_sent=False)
        places = [place for one in where for place in self._site.of(one, options.types(one))]
        weighed = self._rule.explained(self._job(options), self._view(options, ()).only(sorted(places), self._gpus))
        joules = min((sum(one.parts.values()) for one in weighed.costs), default=inf) if weighed is not None else inf
        if not isfinite(joules):
            return None
        return CountCost(gpus=self._gpus, joules=joules, has_room=any(one.has_idle_room for one in where))

    def _arrive(self, asked: SubmittedJob, options: JobOptions) -> tuple[int, ...] | None:
        """Tell the rule of the job's arrival; return the places to which it sends the job, None where it does not."""
        if not self._rule.routes:
            return None
        places = [place for one in self._case.candidates for place in self._site.of(one, one.gpu_types)]
        answer = self._rule.route(asked, self._view(options, places))
        if isinstance(answer, Reroute):
            return answer.places
        return (answer,) if isinstance(answer, int) else answer

    def _named(
        self, asked: SubmittedJob, options: JobOptions | None, routed: tuple[int, ...] | None
    ) -> tuple[PartitionName, ...] | None:
        """Return the partition to be tried first, None to leave the job where Slurm starts it."""
        idle = with_room(self._case.candidates)
        if not idle:
            self._reasons = (*self._reasons, Reason.NO_IDLE_PARTITION)
            self._notes.append("no partition has room now: the choice is left to Slurm")
            return None
        if options is None:
            self._notes.append("the GPU types with room cannot be compared: the choice is left to Slurm")
            return None
        places = {
            one.partition.name: [
                place for place in self._site.of(one, options.types(one)) if routed is None or place in routed
            ]
            for one in idle
        }
        chosen = self._chosen(asked, options, places)
        self._explain(asked, options, self._view(options, ()), sorted(_all(places)))
        if chosen is None:
            self._notes.append("the rule starts the job in no partition now: the choice is left to Slurm")
            return None
        candidate = next(one for one in idle if one.partition.name == chosen)
        own = default_candidate(idle)
        if candidate is own:
            self._notes.append(f"{chosen}, where Slurm starts the job, is the rule's choice: it is not sent elsewhere")
            return None
        if lacks_runs_at_home(candidate, own, self._case.comparison):
            self._notes.append(trial_note(candidate))
            return None
        self._notes.append(f"{chosen} is the rule's choice among those with room now")
        return (chosen,)

    def _chosen(
        self, asked: SubmittedJob, options: JobOptions, places: Mapping[PartitionName, Sequence[int]]
    ) -> PartitionName | None:
        """Return the partition that the rule chooses by its worst GPU type, since Slurm takes any of them.

        What it chooses is closed and it is asked again, until a partition has none left: of all, that one's last is the
        best.
        """
        left = {name: set(several) for name, several in places.items() if several}
        view = self._view(options, [place for several in left.values() for place in several])
        while left:
            open_places = [place for several in left.values() for place in several]
            placement = self._placed(asked, view.only(open_places, self._gpus))
            if placement is None or placement.place not in open_places:
                return None
            name = self._site.partition(placement.place)
            left[name].discard(placement.place)
            if not left[name]:
                return name
        return None

    def _clocks(self, named: tuple[PartitionName, ...] | None) -> Iterator[ClockChoice]:
        """Yield the clock for each GPU type where the job can land; of several partitions with a type the highest."""
        case = self._case
        landing = landing_on(case.candidates, named)
        options = self._landing(landing, is_sent=named is not None)
        places = [place for one in landing for place in self._site.of(one, one.gpu_types)]
        view, asked = self._view(options, places), self._job(options)
        self._explain(asked, options, view, places)
        found: dict[GpuTypeName, OperatingPoint | None] = {}
        for candidate in landing:
            for name in candidate.gpu_types:
                if (candidate.partition.name, name) not in options.room:
                    continue
                point = self._point(candidate, name, options, asked, view)
                if name in found:
                    point = _higher(found[name], point)
                found[name] = point
        for name, point in found.items():
            choice = clock_choice(name, point, case.board_limits)
            if choice is not None:
                yield choice

    def _explain(self, asked: SubmittedJob, options: JobOptions, view: SnapshotView, places: Sequence[int]) -> None:
        """Keep what works out what the rule says of places, as if they alone had room."""
        self._weighed.append((options, self._rule.explaining(asked, view.only(places, self._gpus))))

    def _details(self) -> AnswerDetails:
        """Return what the rule says of the partitions, worked out when it is read: the job does not wait for it."""
        return DeferredDetails(self._found_details)

    def _found_details(self) -> AnswerDetails:
        weighed = ((options, explain()) for options, explain in self._weighed)
        said = ((options, one) for options, one in weighed if one is not None and one.costs)
        return next((self._of_partitions(options, one) for options, one in said), AnswerDetails())

    def _of_partitions(self, options: JobOptions, weighed: "Explanation") -> AnswerDetails:
        """Return what is weighed by partition: each costs what its dearest GPU type does."""
        dearest: dict[PartitionName, OptionCost] = {}
        several: dict[PartitionName, int] = {}
        for cost in weighed.costs:
            partition, name = self._site.partition(cost.place), self._site.gpu_type(cost.place)
            work = None if name is None else options.work.get(name)
            point = None if name is None or work is None else point_at(work.clocks, name, cost.clock)
            several[partition] = several.get(partition, 0) + 1
            dearest[partition] = OptionCost(
                partition=partition,
                parts=cost.parts,
                clock_mhz=None if point is None else point.sm_clock_mhz,
                gpu_type=name if several[partition] > 1 else None,
                full_parts=cost.full_parts,
            )
        costs = sorted(dearest.values(), key=lambda one: one.joules)
        return AnswerDetails(options=tuple(costs), factors=weighed.factors)

    def _landing(self, landing: tuple[Candidate, ...], *, is_sent: bool) -> JobOptions:
        if self._last is None or self._last[0] != (landing, is_sent):
            self._last = (landing, is_sent), landing_options(self._case, landing, is_sent=is_sent)
        return self._last[1]

    def _point(
        self,
        candidate: Candidate,
        name: GpuTypeName,
        options: JobOptions,
        asked: SubmittedJob,
        view: SnapshotView,
    ) -> OperatingPoint | None:
        """Return the rule's clock where the job has room on one type of one partition alone."""
        where = self._site.of(candidate, (name,))
        placement = self._placed(asked, view.only(where, self._gpus)) if where else None
        if placement is None or placement.place not in where:
            return None
        return point_at(options.work[name].clocks, name, placement.clock)

    def _placed(self, asked: SubmittedJob, view: SnapshotView) -> Placement | None:
        answer = self._rule.place(asked, view)
        return answer if isinstance(answer, Placement) else None

    def _view(self, options: JobOptions, places: Sequence[int]) -> SnapshotView:
        return SnapshotView(
            snapshot=self._case.snapshot,
            now_seconds=self._case.now_seconds,
            places=self._site.infos,
            free_gpus=self._free,
            table=self._site.table(options, self._gpus),
            open_places=tuple(sorted(places)),
            room_by_place=[0] * len(self._site.infos),
        )

    def _job(self, options: JobOptions) -> SubmittedJob:
        case, job = self._case, self._case.job
        limit, deadline = job.time_limit_minutes, job.options.deadline_seconds
        return SubmittedJob(
            gpu_counts=(self._gpus,),
            submitted_seconds=case.now_seconds,
            estimated_units=options.units,
            time_limit_seconds=inf if limit is None else 60.0 * limit,
            deadline_seconds=inf if deadline is None else deadline,
            max_slowdown=case.max_slowdown,
            user=job.user_name or str(job.user_id),
            account=job.account or "",
            name=job.name,
            request=job,
            runtime=case.runtime,
        )


def _all(places: Mapping[PartitionName, Sequence[int]]) -> list[int]:
    return [place for several in places.values() for place in several]


def _higher(one: OperatingPoint | None, other: OperatingPoint | None) -> OperatingPoint | None:
    """Return the higher of two clocks; None is the default one."""
    if one is None or other is None:
        return None
    return max(one, other, key=lambda point: point.sm_clock_mhz)
