"""What running jobs draw, how fast they are and when they end: from tables, heat, neighbours on a board and limits."""

from collections.abc import Sequence
from heapq import heappush
from math import inf

from slurm_energy.twin.engine.events import FINISH, Events
from slurm_energy.twin.engine.job import COMPUTING, JobRun
from slurm_energy.twin.engine.ledger import Ledger
from slurm_energy.twin.engine.places import OptionTables, Place
from slurm_energy.twin.world.device_model import (
    DeviceModel,
    seconds_to_limit,
    steady_celsius,
    sustainable_watts,
    temperature_after,
)


class Pace:
    """Keeps power, speed and end of jobs true while clocks, neighbours and conditions change."""

    def __init__(
        self,
        places: Sequence[Place],
        tables: OptionTables,
        estimates: OptionTables,
        ledger_of_pool: Sequence[Ledger],
        events: Events,
    ) -> None:
        self.ambient_celsius: float | None = None
        """Replaces every device's own ambient temperature."""
        self._places = places
        self._tables = tables
        self._estimates = estimates
        self._ledger_of_pool = ledger_of_pool
        self._events = events

    def reprice(self, run: JobRun, now: float) -> None:
        """Bring power, speed and end of a job up to date after a change of clock, neighbour or conditions."""
        if run.phase != COMPUTING:
            return
        device = self._places[run.place].device
        if device.thermal is not None:
            warm_board(run, device, self.ambient_celsius, now)
        run.settle(now)
        run.version += 1
        self.update(run, now)

    def set_clock(self, run: JobRun, clock: int, now: float) -> None:
        """Change the clock of a running job."""
        if run.set_clock != clock:
            for each in (run, run.partner):
                if each is not None:
                    each.set_clock = clock
                    self.reprice(each, now)
            self.reprice(run, now)  # the neighbour's new clock is in the pair's power now

    def update(self, run: JobRun, now: float) -> None:
        """Set power and speed from the tables, with heat and a neighbour applied, and the next event of the job."""
        place = self._places[run.place]
        device = place.device
        rows = self._tables.rows(run.job.kind, run.job.gpu_counts)
        column = rows.column[run.gpus]
        times, powers = rows.seconds[run.place][column], rows.watts[run.place][column]
        clock = run.set_clock
        if device.thermal is not None:
            clock = self._allowed_clock(run, device, powers, now)
        run.clock = clock
        watts, speed = powers[clock], 1.0 / times[clock]
        partner = run.partner
        if partner is not None and partner.phase == COMPUTING:
            watts, speed = shared(run, partner, device, watts, speed)
        ledger = self._ledger_of_pool[place.pool_index]
        ledger.change_jobs(watts - run.watts, now)
        run.watts, run.units_per_second = watts, speed
        self.plan_end(run, now)

    def plan_end(self, run: JobRun, now: float) -> None:
        """Make the event of a job's end at its present speed."""
        job, speed = run.job, run.units_per_second
        if job.is_plain and run.limit_at_seconds == inf and not run.restarts:
            run.state = "COMPLETED"
            events = self._events
            events.made = made = events.made + 1
            left = job.true_units - run.units_done
            heappush(events.heap, (now + left / speed if left > 0.0 else now, made, FINISH, run, run.version))
            return
        target = job.true_units if job.true_units <= job.fails_after_units else job.fails_after_units
        end = now + max(0.0, target - run.units_kept - run.units_done) / speed
        if end <= run.limit_at_seconds:
            run.state = "COMPLETED" if job.true_units <= job.fails_after_units else "FAILED"
        else:
            end = max(now, run.limit_at_seconds)
            run.state = "TIMEOUT"
        self._events.add_job(end, FINISH, run)

    def _allowed_clock(self, run: JobRun, device: DeviceModel, powers: list[float], now: float) -> int:
        """Return the clock that heat allows; a job that will grow too hot gets an event for when it does."""
        thermal = device.thermal
        if thermal is None:
            return run.set_clock
        ambient = thermal.ambient_celsius if self.ambient_celsius is None else self.ambient_celsius
        board = board_watts(run, device, powers)
        clock = highest_within(board, run.set_clock, run.power_cap_watts)
        left = seconds_to_limit(thermal, run.temperature_celsius, steady_celsius(thermal, ambient, board[clock]))
        if left <= 1e-9:
            run.power_cap_watts = sustainable_watts(thermal, ambient)
            return highest_within(board, run.set_clock, run.power_cap_watts)
        if left < inf:
            version = run.version

            def throttle(then: float) -> None:
                if run.version == version and run.phase == COMPUTING:
                    self.reprice(run, then)

            self._events.add_call(now + left, throttle)
        return clock

    def expected_seconds(self, run: JobRun) -> float:
        """Return how long a job computes by its estimate, where it is and at the clock that was set."""
        rows = self._estimates.rows(run.job.kind, run.job.gpu_counts)
        return (
            max(0.0, run.job.estimated_units - run.units_kept)
            * rows.seconds[run.place][rows.column[run.gpus]][run.set_clock]
        )


def pair_scale(device: DeviceModel, kind: str, partner: str, clock: int) -> float:
    """Return a pair's power at a clock over that at the default clock: as the two powers alone fall together."""
    one, other = device.loads[kind].watts, device.loads[partner].watts
    return (one[clock] + other[clock]) / (one[-1] + other[-1])


def shared(run: JobRun, partner: JobRun, device: DeviceModel, watts: float, speed: float) -> tuple[float, float]:
    """Return power and speed beside a neighbour: the pair's power is split as the two would draw alone."""
    pair = device.pair(run.kind, partner.kind)
    if pair is None:
        return watts, speed
    own, theirs = device.loads[run.kind].watts[run.clock], device.loads[partner.kind].watts[run.clock]
    watts = pair.watts * pair_scale(device, run.kind, partner.kind, run.clock)
    return watts * own / (own + theirs), speed * pair.speed


def board_watts(run: JobRun, device: DeviceModel, powers: list[float]) -> list[float]:
    """Return the power of one device of a job at each clock, a neighbour on it counted in."""
    partner = run.partner
    pair = device.pair(run.kind, partner.kind) if partner is not None and partner.phase == COMPUTING else None
    if partner is None or pair is None:
        return [watts / run.gpus for watts in powers]
    return [pair.watts * pair_scale(device, run.kind, partner.kind, clock) for clock in range(len(powers))]


def highest_within(powers: list[float], clock: int, watts: float) -> int:
    """Return the highest clock up to `clock` whose power is inside the limit, the lowest if none is."""
    while clock > 0 and powers[clock] > watts * (1.0 + 1e-12):
        clock -= 1
    return clock


def warm_board(run: JobRun, device: DeviceModel, ambient_celsius: float | None, now: float) -> None:
    """Bring a job's temperature up to date, and a neighbour's with it: each is heated by the power of both.

    Args:
        run: A job that computes.
        device: Its device; nothing happens to one without heat.
        ambient_celsius: Of the room, None for the device's own.
        now: Time in s; both jobs are settled until then.
    """
    both = [run] if run.partner is None or run.partner.phase != COMPUTING else [run, run.partner]
    for each in both:
        _warm(each, device, ambient_celsius, now)
    for each in both:
        each.settle(now)


def _warm(run: JobRun, device: DeviceModel, ambient_celsius: float | None, now: float) -> None:
    thermal = device.thermal
    if thermal is None:
        return
    watts = run.watts / run.gpus
    if run.partner is not None and run.partner.phase == COMPUTING:
        watts += run.partner.watts
    ambient = thermal.ambient_celsius if ambient_celsius is None else ambient_celsius
    steady = steady_celsius(thermal, ambient, watts)
    warm = temperature_after(thermal, run.temperature_celsius, steady, now - run.updated_seconds)
    near = abs(warm - thermal.limit_celsius) < 1e-6
    run.temperature_celsius = thermal.limit_celsius if near else warm
