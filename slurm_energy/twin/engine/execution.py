"""Jobs on devices: start, compute, change of clock or conditions, end. Every change of power passes through here."""

from collections.abc import Sequence
from heapq import heappush
from math import inf

from sortedcontainers import SortedList

from slurm_energy.policy.placement import Placement
from slurm_energy.twin.engine.events import BEGIN, FINISH, Events
from slurm_energy.twin.engine.job import (
    COMPUTING,
    ENDED,
    NO_STAGING,
    STARTING,
    WAITING,
    Allocation,
    JobRun,
    Staging,
)
from slurm_energy.twin.engine.ledger import HOST, IDLE, ledger_of_pool
from slurm_energy.twin.engine.nodes import NodePower
from slurm_energy.twin.engine.pace import Pace, warm_board
from slurm_energy.twin.engine.places import OptionTables, Place, Site, estimated_tables
from slurm_energy.twin.engine.pool_state import PoolState, needs_nodes
from slurm_energy.twin.engine.waiting import Waiting
from slurm_energy.twin.world import World


class Execution:
    """Starts, changes and ends jobs; keeps free devices, power and future events true."""

    def __init__(  # noqa: PLR0913  # the parts of one run, put together once
        self,
        world: World,
        places: Sequence[Place],
        events: Events,
        waiting: Waiting,
        *,
        backfill: bool,
        plans_by_estimates: bool = False,
        known_tables: OptionTables | None = None,
        seed: int = 0,
    ) -> None:
        self.world = world
        self.places = places
        self.events = events
        self.tables = OptionTables(world, places)
        self.estimates = known_tables or estimated_tables(world, places, self.tables, seed)
        """What the scheduler and every rule know; the true tables where the world has no errors of estimates."""
        self._plans_by_estimates = plans_by_estimates
        self.pools = [PoolState(pool, by_node=needs_nodes(world, index)) for index, pool in enumerate(world.pools)]
        self.devices = [world.devices[pool.device] for pool in world.pools]
        self.ledger_of_pool = ledger_of_pool(world, [pool.total for pool in self.pools], self.devices)
        self.ledgers = list(dict.fromkeys(self.ledger_of_pool))
        self.places_of_pool = [
            [place.index for place in places if place.pool_index == index] for index in range(len(self.pools))
        ]
        self.free_gpus = [self.pools[place.pool_index].free_total for place in places]
        self.expected_ends: list[SortedList[tuple[float, int]]] | None = (
            [SortedList() for _ in self.pools] if backfill else None
        )
        """(expected end, job id) of the jobs that hold devices, by pool; kept only where backfill looks at them."""
        self.computing: dict[int, JobRun] = {}
        self.held_moment_seconds = 0.0
        """Times at which jobs gave devices back less times at which they got them: see `held_job_seconds`."""
        self.coming_watts = 0.0
        """Power that starting jobs will add when they compute."""
        self.changed: set[int] = set()
        """Places at which the scheduler must look: devices became free there, or a job came that may start."""
        self.ended: list[JobRun] = []
        """Jobs that ended since the engine looked."""
        self.has_evicted = False
        """Whether any job was taken off failed devices."""
        self.pace = Pace(places, self.tables, self.estimates, self.ledger_of_pool, events)
        self.nodes = NodePower(self)
        self._at = [Site(self, place, waiting) for place in places]

    @property
    def power_watts(self) -> float:
        """Power of the whole cluster now."""
        return sum(ledger.total_watts for ledger in self.ledgers)

    def total_joules(self, now: float) -> float:
        """Energy of the whole cluster from time 0 until now."""
        return sum(ledger.total_at(now) for ledger in self.ledgers)

    def held_job_seconds(self, now: float) -> float:
        """Return the time that all jobs together have held devices until now."""
        return self.held_moment_seconds + sum(len(pool.runs) for pool in self.pools) * now

    def start(
        self, run: JobRun, placement: Placement, staging: Staging, now: float, allocation: Allocation | None = None
    ) -> None:
        """Give a job its devices, on certain nodes or where they fit best.

        It computes at once, or after waking, staging and launch.
        """
        place, gpus, clock, partner, _ = placement
        job, at = run.job, self._at[place]
        limit = at.max_time_seconds if job.is_plain else min(job.time_limit_seconds, at.max_time_seconds)
        run.limit_at_seconds = now + limit if limit < inf else inf
        if at.plain and staging is NO_STAGING and partner is None and (job.is_plain or not job.exclusive):
            rows = self.tables.rows(job.kind, job.gpu_counts)
            column = rows.column[gpus]
            seconds, watts = rows.seconds[place][column][clock], rows.watts[place][column][clock]
            self._compute_at_once(run, at, (gpus, clock, seconds, watts), now)
            self.pace.plan_end(run, now)
            return
        run.place, run.gpus, run.set_clock = place, gpus, clock
        run.started_seconds = run.updated_seconds = now
        if run.first_started_seconds == inf:
            run.first_started_seconds = now
        run.version += 1
        self.held_moment_seconds -= now
        self._start_with_care(run, placement, staging, now, allocation)

    def start_plain(self, run: JobRun, placement: Placement, room: Sequence[int], now: float) -> bool:
        """Start a plain job that has no way to go, if nothing but devices and power changes; return whether it was so.

        It does the same as `start` after the guard, without asking what cannot be. A placement that the guard would
        have to look at is not carried out.

        Args:
            run: A job as `plain_job` makes it.
            placement: What the rule said.
            room: By place, the most devices that the job may take now.
            now: Time in s.
        """
        place, gpus, clock, partner, _ = placement
        if not 0 <= place < len(room) or gpus > room[place] or partner is not None or self.has_evicted:
            return False
        job, at = run.job, self._at[place]
        rows = self.tables.rows(job.kind, job.gpu_counts)
        column = rows.column.get(gpus)
        if column is None or not (at.plain_without_limit and 0 <= clock < rows.num_clocks[place]):
            return False
        seconds, watts = rows.seconds[place][column][clock], rows.watts[place][column][clock]
        speed = self._compute_at_once(run, at, (gpus, clock, seconds, watts), now)
        run.state = "COMPLETED"
        events = self.events
        events.made = made = events.made + 1
        heappush(events.heap, (now + job.true_units / speed, made, FINISH, run, run.version))
        return True

    def _compute_at_once(self, run: JobRun, at: Site, option: tuple[int, int, float, float], now: float) -> float:
        """Let a job compute where nothing but devices and power changes, as with care; return its units per second.

        Args:
            run: The job.
            at: Where.
            option: Device count, clock, seconds per unit, watts.
            now: Time in s.
        """
        gpus, clock, seconds, watts = option
        run.place, run.gpus = at.index, gpus
        run.clock = run.set_clock = clock
        run.started_seconds = run.updated_seconds = now
        if run.first_started_seconds == inf:
            run.first_started_seconds = now
        run.version += 1
        run.phase = COMPUTING
        run.watts = watts
        run.units_per_second = speed = 1.0 / seconds
        self.held_moment_seconds -= now
        job_id, pool = run.job_id, at.pool
        pool.runs[job_id] = self.computing[job_id] = run
        pool.free_total = free = pool.free_total - gpus
        for sibling in at.siblings:
            self.free_gpus[sibling] = free
        at.ledger.swap(-gpus * at.free_watts, watts, now)
        return speed

    def _start_with_care(
        self, run: JobRun, placement: Placement, staging: Staging, now: float, allocation: Allocation | None
    ) -> None:
        place = self.places[placement.place]
        pool_index = place.pool_index
        pool, ledger = self.pools[pool_index], self.ledger_of_pool[pool_index]
        gpus = placement.gpus
        partner = None if placement.partner is None else pool.runs.get(placement.partner)
        ready = now
        computing_gpus = gpus
        if partner is not None:
            self._join(run, partner, pool)
        else:
            if allocation is None:
                allocation = pool.find(run.job, gpus, wish=placement.node)
            if allocation is None:
                raise AssertionError(f"job {run.job_id} was placed where {gpus} devices are not free")
            run.allocation = allocation
            asleep = pool.take(run, allocation, gpus)
            if pool.by_node:
                ready, computing_gpus = self.nodes.occupy(pool_index, allocation, asleep, now)
            ledger.change(IDLE, -computing_gpus * place.device.free_watts, now)
            slope = place.pool.host_busy_watts - place.pool.host_idle_watts
            if slope:
                ledger.change(HOST, slope * computing_gpus / place.pool.gpus_per_node, now)
            self.show_free(pool_index)
        begin = ready + staging.seconds + self.world.launch_seconds
        run.limit_at_seconds += ready - now  # Slurm counts the limit from when the nodes are up
        if self.expected_ends is not None:
            run.expected_end_seconds = self._expected_end(run, begin)
            self.expected_ends[pool_index].add((run.expected_end_seconds, run.job_id))
        if begin <= now:
            run.watts = run.units_per_second = 0.0
            run.energy_joules += staging.joules
            ledger.add_joules(staging.joules)
            self.begin(run, now)
            return
        run.phase = STARTING
        run.units_per_second = 0.0
        more = (place.device.context_watts - place.device.free_watts) * staging.seconds
        run.starting_watts = place.device.free_watts + (more / (begin - ready) if begin > ready else 0.0)
        run.watts = computing_gpus * (place.device.free_watts + more / (begin - now)) if partner is None else 0.0
        run.watts += staging.joules / (begin - now)
        ledger.change_jobs(run.watts, now)
        rows = self.tables.rows(run.job.kind, run.job.gpu_counts)
        run.coming_watts = rows.watts[run.place][rows.column[gpus]][run.set_clock] - run.watts
        self.coming_watts += run.coming_watts
        if run.limit_at_seconds < begin:
            run.state = "TIMEOUT"
            self.events.add_job(run.limit_at_seconds, FINISH, run)
        else:
            self.events.add_job(begin, BEGIN, run)

    def _expected_end(self, run: JobRun, begin: float) -> float:
        """Return when backfill takes a job to end: at its limit, or by its estimate."""
        if run.limit_at_seconds < inf and not self._plans_by_estimates:
            return run.limit_at_seconds
        return min(run.limit_at_seconds, begin + self.pace.expected_seconds(run))

    def begin(self, run: JobRun, now: float) -> None:
        """Let a job compute from now on."""
        run.settle(now)
        self._forget_coming(run)
        run.phase = COMPUTING
        run.begun_seconds = now
        self.computing[run.job_id] = run
        device = self.places[run.place].device
        if device.thermal is not None:
            run.power_cap_watts = inf
            if run.partner is not None and run.partner.phase == COMPUTING:
                warm_board(run.partner, device, self.pace.ambient_celsius, now)
                run.temperature_celsius = run.partner.temperature_celsius
                run.power_cap_watts = run.partner.power_cap_watts  # the board's: both have one clock
            else:
                self.nodes.warm_start(run, device, now)
        run.clock = run.set_clock
        self.pace.update(run, now)
        if run.partner is not None:
            self.pace.reprice(run.partner, now)

    def _forget_coming(self, run: JobRun) -> None:
        if run.coming_watts:
            self.coming_watts -= run.coming_watts
            run.coming_watts = 0.0

    def finish(self, run: JobRun, now: float) -> None:
        """End a job when it was planned to, in the state that was planned with it."""
        job, at = run.job, self._at[run.place]
        if at.plain and job.is_plain and run.state == "COMPLETED":  # as `end`, where that is all
            job_id, gpus, watts, pool = run.job_id, run.gpus, run.watts, at.pool
            run.energy_joules += watts * (now - run.updated_seconds)
            run.updated_seconds = run.ended_seconds = now
            run.watts = run.units_per_second = 0.0
            run.version += 1
            run.phase = ENDED
            self.held_moment_seconds += now
            del self.computing[job_id]
            del pool.runs[job_id]
            pool.free_total = free = pool.free_total + gpus
            for place in at.siblings:
                self.free_gpus[place] = free
            for queue in at.queues:
                if queue.size:  # jobs wait for these devices
                    self.changed.add(at.index)
                    break
            at.ledger.swap(gpus * at.free_watts, -watts, now)
            run.units_done = job.true_units - run.units_kept if self.has_evicted else job.true_units
            self.ended.append(run)
            return
        self.end(run, run.state, now)
        if run.state == "COMPLETED":
            run.units_done = job.true_units - run.units_kept if self.has_evicted else job.true_units
        elif run.state == "FAILED":
            run.units_done = job.fails_after_units - run.units_kept

    def end(self, run: JobRun, state: str, now: float) -> None:
        """Take a job off its devices and close its record."""
        self._leave(run, now)
        run.version += 1
        run.state = state
        run.phase = ENDED
        run.ended_seconds = now
        self.ended.append(run)

    def evict(self, run: JobRun, now: float) -> None:
        """Take a job off failed devices so that it can be queued again: what no checkpoint holds is lost."""
        self.has_evicted = True
        self._leave(run, now)
        held = now - run.started_seconds
        run.run_seconds_before += held
        run.gpu_seconds_before += run.gpus * held
        kept = run.units - run.units % run.job.checkpoint_units if run.job.checkpoint_units < inf else 0.0
        kept = max(run.units_kept, kept)
        run.units_lost += run.units - kept
        run.units_kept, run.units_done = kept, 0.0
        run.restarts += 1
        run.version += 1
        run.phase = WAITING
        run.state = "PENDING"
        run.place = -1

    def release(self) -> None:
        """Let go of the jobs of a run that is over."""
        self.ended.clear()
        self.computing.clear()
        for pool in self.pools:
            pool.runs.clear()

    def _leave(self, run: JobRun, now: float) -> None:
        """Take a job off its devices."""
        at, job, is_computing = self._at[run.place], run.job, run.phase == COMPUTING
        if is_computing and at.device.thermal is not None:
            warm_board(run, at.device, self.pace.ambient_celsius, now)
        watts, gpus = run.watts, run.gpus
        seconds = now - run.updated_seconds
        run.energy_joules += watts * seconds
        run.units_done += run.units_per_second * seconds
        run.updated_seconds = now
        self.held_moment_seconds += now
        if is_computing:
            job_id = run.job_id
            del self.computing[job_id]
            if at.plain and (job.is_plain or (run.partner is None and not job.exclusive)):
                pool = at.pool
                del pool.runs[job_id]
                pool.free_total = free = pool.free_total + gpus
                for place in at.siblings:
                    self.free_gpus[place] = free
                    self.changed.add(place)
                at.ledger.swap(gpus * at.free_watts, -watts, now)
                run.watts = run.units_per_second = 0.0
                return
        self._leave_with_care(run, now)

    def _leave_with_care(self, run: JobRun, now: float) -> None:
        self._forget_coming(run)
        place = self.places[run.place]
        pool_index = place.pool_index
        pool, ledger = self.pools[pool_index], self.ledger_of_pool[pool_index]
        device = place.device
        if device.thermal is not None and run.phase == COMPUTING:
            self.nodes.keep_temperature(run, now)
        ledger.change_jobs(-run.watts, now)
        run.watts = run.units_per_second = 0.0
        if self.expected_ends is not None:
            self.expected_ends[pool_index].remove((run.expected_end_seconds, run.job_id))
        partner = run.partner
        if partner is not None:
            self._part(run, partner, pool, now)
            return
        awake_gpus = self.nodes.awake_gpus(pool_index, run.allocation) if pool.by_node else run.gpus
        idle = pool.give_back(run, run.gpus)
        run.allocation = []
        ledger.change(IDLE, awake_gpus * device.free_watts, now)
        slope = place.pool.host_busy_watts - place.pool.host_idle_watts
        if slope:
            ledger.change(HOST, -slope * awake_gpus / place.pool.gpus_per_node, now)
        self.show_free(pool_index)
        if idle and place.pool.suspend is not None:
            self.nodes.set_timers(pool_index, idle, now)

    def _join(self, run: JobRun, partner: JobRun, pool: PoolState) -> None:
        """Put a job beside another on the same GPU, at the other's clock."""
        run.partner, partner.partner = partner, run
        run.allocation = []
        run.set_clock = partner.set_clock
        pool.runs[run.job_id] = run

    def _part(self, run: JobRun, partner: JobRun, pool: PoolState, now: float) -> None:
        """Leave the shared GPU to the neighbour."""
        run.partner = partner.partner = None
        if run.allocation:
            partner.allocation, run.allocation = run.allocation, []
            for node, _, _ in partner.allocation:
                del pool.runs_on[node][run.job_id]
                pool.runs_on[node][partner.job_id] = partner
        del pool.runs[run.job_id]
        place = self.places[run.place]
        self.changed.update(self.places_of_pool[place.pool_index])
        if partner.phase == STARTING:
            partner.settle(now)
            watts = partner.gpus * partner.starting_watts
            partner.watts += watts
            self.ledger_of_pool[place.pool_index].change_jobs(watts, now)
        self.pace.reprice(partner, now)

    def show_free(self, pool_index: int) -> None:
        """Bring the free devices that rules see up to date, and let the scheduler look at their places."""
        free = self.pools[pool_index].free_total
        for place in self.places_of_pool[pool_index]:
            self.free_gpus[place] = free
            self.changed.add(place)
