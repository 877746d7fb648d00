"""One board under one or two jobs: its power at a clock, its temperature, and what two jobs leave each other."""

from slurm_energy.twin.engine.job_run import COMPUTING, JobRun
from slurm_energy.twin.world.device_model import DeviceModel, steady_celsius, temperature_after


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
