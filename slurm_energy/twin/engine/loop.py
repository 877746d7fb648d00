"""The engine: runs a workload on a world under a rule, one event after the other.

Deterministic from (world, workload, rule, seed). The engine knows no rule by name, learns nothing and writes no files.
Finishes come before arrivals of the same time, and one scheduling pass follows all events of one time.

It is longer than other files on purpose: every event passes through `steps`, and what a job meets on its way into a
queue is called from there; parts of their own would be one more call for each event.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from heapq import heappop
from math import inf
from sys import float_info, maxsize

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.placement import Discipline, Knowledge, Placement, Postponement, Reroute, TrialsOfJobs
from slurm_energy.twin.adapters.view import SiteView, TwinView
from slurm_energy.twin.engine.disruptions import Disruptions
from slurm_energy.twin.engine.events import BACKGROUND, FINISH, REACH, Arrivals, Call, Events, WorkloadArrivals
from slurm_energy.twin.engine.execution import Execution
from slurm_energy.twin.engine.job import ENDED, NO_STAGING, WAITING, Job, JobRun, Staging, fix_gpus
from slurm_energy.twin.engine.knowledge import JobKnowledge
from slurm_energy.twin.engine.outcome import Outcome, WarmUp, outcome_of, warm_up_of
from slurm_energy.twin.engine.places import places_of
from slurm_energy.twin.engine.sampling import Sampler
from slurm_energy.twin.engine.scheduler import Scheduler
from slurm_energy.twin.engine.trials import RunningTrials
from slurm_energy.twin.engine.waiting import Precedence, Waiting, queue_key
from slurm_energy.twin.snapshot.source import SnapshotSource
from slurm_energy.twin.world import World

Answer = Placement | Postponement | Reroute | int | tuple[int, ...] | None
Steps = Generator[Job | None, Answer, None]
"""Yields a job that needs a decision, or None when `control` is due."""
Ask = Callable[[Job], Answer]
"""Answers a decision at once."""


class Engine:
    """One run. `steps()` yields a job for every decision; `deciding` says which kind, and `view` what may be seen."""

    def __init__(  # noqa: PLR0913  # one run's settings
        self,
        world: World,
        arrivals: Arrivals,
        *,
        seed: int,
        discipline: Discipline | None = None,
        routes: bool = False,
        control_interval_seconds: float | None = None,
        horizon_seconds: float | None = None,
        warm_up_seconds: float = 0.0,
        knowledge: Knowledge = "site",
    ) -> None:
        if horizon_seconds is not None and not 0.0 <= horizon_seconds < inf:
            raise ValueRangeError(f"horizon {horizon_seconds} s is not a finite number from 0 up")
        if not 0.0 <= warm_up_seconds < inf:
            raise ValueRangeError(f"warm-up {warm_up_seconds} s is not a finite number from 0 up")
        self.world = world
        self.deciding = "start"
        """`route` or `start`: what the job that was yielded needs."""
        self.runs: dict[int, JobRun] = {}
        self._control_due = False
        self._arrivals = arrivals
        self._routes = routes
        self._horizon = inf if horizon_seconds is None else horizon_seconds
        self._discipline = discipline or world.discipline
        self._places = places_of(world)
        self.knowledge = JobKnowledge(world, self._places, knowledge) if world.knowledge == "site" else None
        """What rules know of jobs; None where nothing is hidden."""
        self._events = Events()
        self._waiting = Waiting([place.pool_index for place in self._places])
        self._execution = Execution(
            world,
            self._places,
            self._events,
            self._waiting,
            backfill=self._discipline.backfill == "easy",
            plans_by_estimates=self._discipline.run_times == "estimates",
            known_tables=None if self.knowledge is None else self.knowledge.tables,
            seed=seed,
        )
        hides = self.knowledge is not None and not self.knowledge.is_truth
        self.view = (SiteView if hides else TwinView)(world, self._places, self._execution, self._waiting)
        self.view.runs = self.runs
        self.view.snapshots = SnapshotSource()
        self._precedence = self.view.precedence = Precedence(self.runs)
        self._scheduler = Scheduler(
            self._places,
            self._execution,
            self._waiting,
            self.view,
            self._discipline,
            world.backfill_depth,
            self._staging,
            self._postpone,
        )
        self.sampler = Sampler(self._execution, self._waiting, self._horizon)
        self._disruptions = Disruptions(world, self._execution, self._events, self.view, seed, self._requeue)
        self._latencies = [
            [self._latency(ingress, place.index) for place in self._places] for ingress in range(len(world.ingresses))
        ]
        """[ingress][place], s; a job that is not routed is staged so long when it starts."""
        self._num_ingresses = len(self._latencies) or maxsize
        self._control_interval = control_interval_seconds
        self._backfill_due = world.backfill_interval_seconds == 0.0
        self._backfill_waits = False
        self._warm_up_seconds = warm_up_seconds
        self._warm_up: WarmUp | None = None
        self._num_ended = 0
        self._shortest_first = self._discipline.order == "sjf"
        self._only_plain_jobs = True
        self._changed = self._execution.changed

    def steps(  # noqa: PLR0912, PLR0915  # the loop every event passes through: calls would double its time
        self, route: Ask | None = None, place: Ask | None = None
    ) -> Steps:
        """Run to the end, yielding every job that needs a decision and taking the answer.

        Args:
            route: Answers where a job must wait, so that no job is yielded for that.
            place: Answers how a job must start, the same as who takes the jobs that are yielded. It is asked about the
                head of a queue that is alone in its pools, which is then not yielded; all others still are.
        """
        self._begin()
        heap, arrivals, view, sampler = self._events.heap, self._arrivals, self.view, self.sampler
        changed, waiting, scheduler = self._execution.changed, self._waiting, self._scheduler
        finish, precedence, only_heads = self._execution.finish, self._precedence, scheduler.only_heads
        last_time = min(self._horizon, float_info.max)
        has_interval = self.world.backfill_interval_seconds > 0.0
        next_arrival, next_sample = arrivals.next_time(), sampler.next_seconds
        while True:
            due = heap[0][0]
            now = due if due < next_arrival else next_arrival
            if now > last_time or (next_arrival == inf and self._is_over()):
                break
            view.now_seconds = now
            if now >= next_sample:
                next_sample = sampler.sample(now)
            while due == now:
                _, _, kind, subject, version = heappop(heap)
                if kind == FINISH:
                    if subject.version == version:  # type: ignore[union-attr]  # FINISH carries a job
                        finish(subject, now)  # type: ignore[arg-type]
                        self._num_ended += 1
                        if precedence.is_needed:
                            self._release(subject, now)  # type: ignore[arg-type]
                elif kind == REACH:
                    self._enqueue(subject, now, now)  # type: ignore[arg-type]  # and so does REACH
                else:
                    self._handle(kind, subject, version, now)
                due = heap[0][0]
            while next_arrival == now:
                run = self._admitted(arrivals.take(), now)
                reaches = now
                if run.allowed:
                    if self._routes:
                        if route is None:
                            self.deciding = "route"
                            answer = yield run.job
                            self.deciding = "start"
                        else:
                            answer = route(run.job)
                        self._take_route(run, answer)
                    if run.job.is_plain or not self._is_held(run, now):
                        reaches = self._sent(run, now)
                next_arrival = arrivals.after_route()
                if reaches > now:
                    is_next = reaches < next_arrival and reaches < heap[0][0] and reaches <= last_time
                    if is_next and not (changed or self._control_due):  # then it need not go through the events
                        now = view.now_seconds = reaches
                        if now >= next_sample:
                            next_sample = sampler.sample(now)
                        self._enqueue(run, now, now)
                    else:
                        self._events.add_job(reaches, REACH, run)
            if self._control_due:
                self._control_due = False
                yield None
            if changed:
                queues = waiting.take_touched(changed)
                if queues:
                    if only_heads and len(queues) == 1:
                        queue = queues[0]
                        while (first := scheduler.first_startable(queue)) is not None:
                            start = (yield first.job) if place is None else place(first.job)
                            if not scheduler.answered(queue, first, start, now):  # type: ignore[arg-type]
                                break
                    else:
                        yield from scheduler.run(queues, now, self._backfill_due)
                    changed.clear()
                    if has_interval:
                        self._plan_backfill(now)
        self._close()

    @property
    def now(self) -> float:
        """Present time."""
        return self.view.now_seconds

    @property
    def total_joules(self) -> float:
        """Energy of the whole cluster from time 0 until now."""
        return self._execution.total_joules(self.now)

    @property
    def waiting_job_seconds(self) -> float:
        """Time that all jobs together have waited until now."""
        return self._waiting.job_seconds(self.now)

    @property
    def held_job_seconds(self) -> float:
        """Time that all jobs together have held devices until now."""
        return self._execution.held_job_seconds(self.now)

    def outcome(self, rule_name: str) -> Outcome:
        """Return the record of the finished run."""
        return outcome_of(
            self.world,
            self._places,
            self._execution,
            self.runs,
            self.sampler,
            name=rule_name,
            end_seconds=self.now,
            clamped=self._scheduler.clamped,
            declined=self._scheduler.declined,
            disruptions=self._disruptions.count,
            only_plain_jobs=self._only_plain_jobs,
            warm_up=self._warm_up,
        )

    def release(self) -> None:
        """Let go of every job of a run whose outcome was taken.

        The parts of an engine know each other, so that its memory would wait for the collector of cycles, which would
        first walk over all jobs.
        """
        self.runs.clear()
        self._arrivals = WorkloadArrivals(())
        self.view.forget_room()
        self._events.heap.clear()
        self._waiting.release()
        self._execution.release()

    def change_clocks(self, clocks: Mapping[int, int]) -> None:
        """Change clocks of running jobs, as `control` answered; unknown jobs and clocks are left aside."""
        for job_id, clock in clocks.items():
            run = self._execution.computing.get(job_id)
            if run is not None:
                last = len(self._places[run.place].device.relative_clocks) - 1
                self._execution.pace.set_clock(run, last if clock == -1 else min(max(clock, 0), last), self.now)
                self._changed.add(run.place)  # a job that waited for power may start now

    def reroute(self, answers: Mapping[int, Reroute]) -> None:
        """Let jobs that wait do so in other places, or for other numbers of devices; those that do not are left."""
        for job_id, answer in answers.items():
            run = self.runs.get(job_id)
            if run is None or run.phase != WAITING or run.job.routed_place is not None:
                continue
            job, before = run.job, self._waiting.queue_for(run.allowed, None)
            resized = None if answer.gpus is None or (answer.gpus,) == job.gpu_counts else answer.gpus
            wanted = job
            if resized is not None:
                wanted = replace(job)
                fix_gpus(wanted, resized)
            named = run.allowed if answer.places is None else answer.places
            places = tuple(sorted(set(self.view.possible_places(wanted)).intersection(named)))
            if not places or (places == run.allowed and resized is None):
                continue
            before.remove(run)
            if resized is not None:
                fix_gpus(job, resized)
            run.allowed = places
            queue = self._waiting.queue_for(places, None)
            queue.add(run)
            self._changed.update(places)

    def try_clocks(self, source: TrialsOfJobs, seed: int) -> Callable[[Job, Answer], None]:
        """Let jobs have clocks tried while they run; return what is to be called with each answer about a start."""
        trials = RunningTrials(self._execution, self._events, source, self._changed, seed)

        def placed(job: Job, answer: Answer) -> None:
            if isinstance(answer, Placement):
                trials.placed(self.runs[job.job_id], answer, self.view.now_seconds)

        return placed

    def ended_jobs(self) -> list[JobRun]:
        """Return the jobs that ended since this was last asked."""
        ended, self._execution.ended = self._execution.ended, []
        return ended

    def _begin(self) -> None:
        """Plan what is known to come."""
        self._execution.nodes.all_idle(0.0)
        self._disruptions.start()
        if self._control_interval is not None:
            self._events.add_call(0.0, self._control_tick, background=True)
        if self._warm_up_seconds > 0.0:
            self._events.add_call(self._warm_up_seconds, self._end_warm_up, background=True)

    def _is_over(self) -> bool:
        """Return whether nothing happens any more after the last arrival: no job left, or nothing that starts one."""
        if self._horizon < inf:
            return False
        if self._num_ended == len(self.runs) or self._events.only_background:
            return True
        if self._waiting.count or any(pool.runs for pool in self._execution.pools):
            return False
        return all(kind != REACH for _, _, kind, _, _ in self._events.heap)  # only jobs are left that wait for others

    def _handle(self, kind: int, subject: JobRun | Call, version: int, now: float) -> None:
        """Carry out an event that is neither a job's end nor its reaching a place."""
        if isinstance(subject, JobRun):
            if subject.version == version:
                self._execution.begin(subject, now)
            return
        self._events.background -= kind == BACKGROUND
        subject(now)

    def _ended(self, run: JobRun, now: float) -> None:
        """Count a job that is over."""
        self._num_ended += 1
        if self._precedence.is_needed:
            self._release(run, now)

    def _release(self, run: JobRun, now: float) -> None:
        """Let go of what waited for a job that ended: its children and the next task of its array."""
        over = [run]
        while over:
            ready, hopeless = self._precedence.ended(over.pop())
            for child in ready:
                child.eligible_seconds = now
                reaches = self._sent(child, now)
                if reaches > now:
                    self._events.add_job(reaches, REACH, child)
            for child in hopeless:
                self._cancel(child, now)
            over.extend(hopeless)

    def _cancel(self, run: JobRun, now: float) -> None:
        """End a job whose dependency can never be satisfied."""
        run.state, run.phase, run.ended_seconds = "CANCELLED", ENDED, now
        self._num_ended += 1
        self._execution.ended.append(run)

    def _admitted(self, job: Job, now: float) -> JobRun:
        """Take a job in; one that could run nowhere is refused and has no allowed places."""
        job_id, runs = job.job_id, self.runs
        if job_id in runs:
            raise ValueRangeError(f"job {job_id} comes twice in the workload")
        if job.ingress >= self._num_ingresses:
            raise ValueRangeError(
                f"job {job_id} comes from ingress {job.ingress}; world {self.world.name} has ingresses 0 to "
                f"{self._num_ingresses - 1}"
            )
        job.routed_place = None
        if job.range_counts:
            job.gpu_counts, job.range_counts = job.range_counts, ()
        if job.asked_limit_seconds:
            job.time_limit_seconds, job.asked_limit_seconds = job.asked_limit_seconds, 0.0
        run = runs[job_id] = JobRun(job)
        run.allowed = allowed = self.view.allowed_to(job)
        if self.knowledge is not None:
            self.knowledge.set_estimate(job, allowed)
        if not job.is_plain:
            self._only_plain_jobs = False
        if self._shortest_first:
            run.queue_key = queue_key(job, self._expected_seconds(run))
        if not allowed:
            run.state, run.phase, run.ended_seconds = "REJECTED", ENDED, now
            self._ended(run, now)
        return run

    def _take_route(self, run: JobRun, answer: Answer) -> None:
        """Let a job wait where the rule says, as far as it may, for the number of devices that the rule fixes."""
        if isinstance(answer, Reroute):
            if answer.gpus is not None:
                fix_gpus(run.job, answer.gpus)
                run.allowed = self.view.allowed_to(run.job) or run.allowed
            answer = answer.places
        if isinstance(answer, int):
            if answer in run.allowed:
                run.job.routed_place = answer
        elif answer is not None and not isinstance(answer, Placement | Postponement):
            possible = set(self.view.possible_places(run.job))
            run.allowed = tuple(sorted(possible.intersection(answer))) or run.allowed

    def _is_held(self, run: JobRun, now: float) -> bool:
        """Return whether a job must wait for others before it can queue; end it where it would wait for ever."""
        job = run.job
        if not (job.after_ok or job.after_any or job.array_limit):
            return False
        if self._precedence.add(run):
            self._cancel(run, now)
            self._release(run, now)
            return True
        return self._precedence.holds(run)

    def _sent(self, run: JobRun, now: float) -> float:
        """Let a job queue if it is where it must wait; return when it reaches the place to which it was routed."""
        job = run.job
        routed = job.routed_place
        if routed is not None and self._latencies:
            reaches = job.submitted_seconds + self._latencies[job.ingress][routed]
            if reaches > now:
                return reaches
        self._enqueue(run, job.submitted_seconds, now)
        return now

    def _expected_seconds(self, run: JobRun) -> float:
        """Return the shortest run expected of a job: its estimate at the default clock of its fastest option."""
        rows = self._execution.estimates.rows(run.kind, run.job.gpu_counts)
        fastest = min((rows.fastest_seconds[place] for place in run.allowed), default=inf)
        return run.job.estimated_units * fastest

    def _latency(self, ingress: int, place: int) -> float:
        """Return how long a job is on its way from an ingress to a place."""
        names = self.world.ingresses
        region = self._places[place].pool.region
        return self.world.latency_seconds.get((names[ingress], region), 0.0)

    def _staging(self, run: JobRun, place: int, now: float) -> Staging:
        """Return what a job waits for between start and computing: its way from the ingress, and its data."""
        job = run.job
        seconds = joules = 0.0
        if job.routed_place is None and self._latencies:
            arrives = job.submitted_seconds + self._latencies[job.ingress][place]
            seconds = arrives - now if arrives > now else 0.0
        elif job.is_plain:
            return NO_STAGING
        if job.input_gigabytes > 0.0 and not self._precedence.data_is_here(run, place):
            pool = self._places[place].pool
            seconds += job.input_gigabytes / (pool.link_gigabytes_per_second * self._disruptions.congestion)
            joules += job.input_gigabytes * pool.link_joules_per_gigabyte
        return Staging(seconds, joules) if seconds or joules else NO_STAGING

    def _enqueue(self, run: JobRun, since_seconds: float | None, now: float) -> None:
        """Let a job wait for devices.

        Args:
            run: The job.
            since_seconds: Orders the queue where it is in order of coming: submission, or in a place's own queue when
                the job reached it. None for a job that goes back to where it was in the queue.
            now: Time in s.
        """
        job = run.job
        if since_seconds is not None and not self._shortest_first:
            run.queue_key = queue_key(job, since_seconds)
        run.phase = WAITING
        waiting, routed = self._waiting, job.routed_place
        waiting.count += 1
        waiting.moment_seconds -= now
        if routed is not None:
            self.view.waiting_jobs[routed] += 1
        queue = waiting.queue_for(run.allowed, routed)
        if queue.add(run) or self._scheduler.easy:
            self._changed.update(queue.places)

    def _come_back(self, run: JobRun) -> None:
        """Put a job that was put off into its queue again."""
        self._waiting.postponed -= 1
        queue = self._waiting.queue_for(run.allowed, run.job.routed_place)
        if queue.add(run) or self._scheduler.easy:
            self._changed.update(queue.places)

    def _postpone(self, run: JobRun, until_seconds: float) -> None:
        """Let a job that left its queue come back later; it waits anyway."""
        self._waiting.postponed += 1

        self._events.add_call(until_seconds, lambda _: self._come_back(run))

    def _requeue(self, run: JobRun, now: float) -> None:
        """Put the job of a failed device back into the queue, or end it."""
        if self.world.requeue and run.job.requeue:
            self._execution.evict(run, now)
            self._enqueue(run, None, now)
        else:
            self._execution.end(run, "NODE_FAIL", now)
            self._ended(run, now)

    def _plan_backfill(self, now: float) -> None:
        """Plan the next backfill where it has an interval; right after one, nothing has changed for another."""
        interval = self.world.backfill_interval_seconds
        just_done, self._backfill_due = self._backfill_due, False
        queued = self._waiting.count - self._waiting.postponed
        if self._scheduler.easy and queued and not (just_done or self._backfill_waits):
            self._backfill_waits = True
            self._events.add_call((now // interval + 1.0) * interval, self._backfill_tick)

    def _backfill_tick(self, now: float) -> None:  # noqa: ARG002  # the form of a call
        self._backfill_waits = False
        self._backfill_due = True
        self._changed.update(range(len(self._places)))

    def _control_tick(self, now: float) -> None:
        self._control_due = True
        interval = self._control_interval
        if interval is not None:
            self._events.add_call(now + interval, self._control_tick, background=True)

    def _end_warm_up(self, now: float) -> None:
        self._warm_up = warm_up_of(self._execution, self.runs, self.sampler, now)

    def _close(self) -> None:
        """Account everything until the end."""
        if self._warm_up_seconds > 0.0 and self._warm_up is None:
            raise ValueRangeError(
                f"the run ends at {self.now if self._horizon == inf else self._horizon:.6g} s, within its warm-up of "
                f"{self._warm_up_seconds:.6g} s: nothing of it would count"
            )
        if self._horizon < inf:
            self.view.now_seconds = self._horizon
        for pool in self._execution.pools:
            for run in pool.runs.values():
                run.settle(self.now)
        for ledger in self._execution.ledgers:
            ledger.close(self.now)
        self._execution.nodes.close(self.now)
        self.sampler.close(self.now)
