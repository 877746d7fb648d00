"""Made programs: what a GPU does over time at a clock, in pieces of constant power, and the rate of its work."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEP_SECONDS: Final = 0.005
"""Resolution of a made program; a sensor averages over more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What a board draws."""

    idle_watts: float
    dynamic_watts: float
    exponent: float
    """Of dynamic power over the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of constant power."""

    seconds: float
    level: float
    """Share of the board's dynamic power."""
    work: float = 0.0
    """Work done in it, spread evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of one repetition at the first clock."""

    compute_seconds: float
    """Grows as the clock falls."""
    fixed_seconds: float
    """Memory, host, network: does not."""
    level: float


@dataclass(slots=True, kw_only=True)
class Program:
    """A program that repeats, or does not."""

    family: str
    periodic: bool
    pieces: Callable[[float, Generator], Iterator[Piece]]
    """Its pieces at a clock relative to the first, for ever."""
    slowdown: Callable[[float], float]
    """True slowdown at a clock relative to the first."""
    board: Board
    period_seconds: float = 1.0
    """Time for one unit of work at the first clock."""
    timer: bool = False
    traits: dict[str, float] = field(default_factory=dict)

    def rate(self, clock: float) -> float:
        """Return what a counter of work counts per unit of work, over its pieces."""
        return self.period_seconds if self.periodic or self.timer else 1.0 / (1.0 + self.slowdown(clock))


def phases(rng: Generator, period_seconds: float, compute_share: float, count: int) -> list[Phase]:
    """Return phases of one repetition with levels that differ."""
    parts = rng.dirichlet(np.full(count, 2.0)) * period_seconds
    levels = rng.uniform(0.15, 1.0, count)
    levels[rng.integers(count)] = 1.0
    levels[(int(np.argmax(levels)) + 1) % count] = rng.uniform(0.1, 0.6)
    result = []
    for seconds, level in zip(parts, levels, strict=True):
        share = float(np.clip(compute_share + rng.normal(0.0, 0.1), 0.0, 1.0))
        result.append(Phase(compute_seconds=seconds * share, fixed_seconds=seconds * (1.0 - share), level=float(level)))
    return result


def length(parts: list[Phase], clock: float) -> float:
    """Return how long phases take at a clock."""
    return sum(part.compute_seconds / clock + part.fixed_seconds for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What disturbs repetitions."""

    jitter: float
    """Standard deviation of a repetition's length over its mean."""
    stall_chance: float = 0.0
    stall_seconds: float = 0.0
    evaluation_every: int = 0
    evaluation_seconds: float = 0.0
    drift: float = 0.0
    """Growth of the period over 60 s."""
    loader_chance: float = 0.0
    """Chance that a repetition begins a stretch in which the loader is the slower one."""


def repeat(parts: list[Phase], habits: Habits) -> Callable[[float, Generator], Iterator[Piece]]:
    """Return pieces of a program that repeats its phases."""

    def pieces(clock: float, rng: Generator) -> Iterator[Piece]:
        turn, now, slow_left = 0, 0.0, 0
        begin = rng.uniform()
        while True:
            scale = float(np.exp(rng.normal(0.0, habits.jitter) - habits.jitter**2 / 2.0))
            scale *= 1.0 + habits.drift * now / 60.0
            for part in parts:
                seconds = (part.compute_seconds / clock + part.fixed_seconds) * scale
                if turn == 0:
                    seconds *= max(begin, 0.05)
                now += seconds
                yield Piece(seconds=seconds, level=part.level, work=1.0 / len(parts))
            turn += 1
            if habits.loader_chance and slow_left == 0 and rng.uniform() < habits.loader_chance:
                slow_left = int(rng.integers(5, 20))
            if slow_left:
                slow_left -= 1
                wait = float(rng.uniform(0.3, 0.6)) * length(parts, clock)
                now += wait
                yield Piece(seconds=wait, level=0.05)
            if rng.uniform() < habits.stall_chance:
                wait = float(rng.exponential(habits.stall_seconds))
                now += wait
                yield Piece(seconds=wait, level=0.05)
            if habits.evaluation_every and turn % habits.evaluation_every == 0:
                left = habits.evaluation_seconds / clock
                while left > 0.0:
                    step = float(rng.uniform(0.1, 0.4))
                    left -= step
                    now += step
                    yield Piece(seconds=step, level=float(rng.uniform(0.3, 0.7)), work=0.0)

    return pieces


def render(program: Program, clock: float, seconds: float, rng: Generator) -> tuple[Floats, Floats]:
    """Return true power and rate of work every STEP_SECONDS."""
    count = int(seconds / STEP_SECONDS)
    level, work = np.zeros(count), np.zeros(count)
    at = 0.0
    for piece in program.pieces(clock, rng):
        low, high = int(at / STEP_SECONDS), int((at + piece.seconds) / STEP_SECONDS)
        level[low:high] = piece.level
        if piece.work and high > low:
            work[low:high] = piece.work / piece.seconds
        at += piece.seconds
        if at >= seconds:
            break
    watts = program.board.idle_watts + program.board.dynamic_watts * level * clock**program.board.exponent
    return watts, work * program.rate(clock)


def _board(rng: Generator) -> Board:
    return Board(
        idle_watts=float(rng.uniform(30, 120)),
        dynamic_watts=float(np.exp(rng.uniform(np.log(60), np.log(500)))),
        exponent=float(rng.uniform(1.0, 2.7)),
    )


def _period(rng: Generator, low: float = 0.3, high: float = 15.0) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _share(rng: Generator) -> float:
    return float(rng.choice([rng.uniform(0.0, 0.2), rng.uniform(0.2, 1.0), rng.uniform(0.8, 1.0)]))


def _made(family: str, rng: Generator, parts: list[Phase], habits: Habits, **traits: float) -> Program:
    whole = length(parts, 1.0)
    return Program(
        family=family,
        periodic=True,
        pieces=repeat(parts, habits),
        slowdown=lambda clock: length(parts, clock) / whole - 1.0,
        period_seconds=whole,
        traits={"period": whole, "jitter": habits.jitter, **traits},
        board=_board(rng),
    )


def _jitter(rng: Generator) -> float:
    return float(np.exp(rng.uniform(np.log(0.01), np.log(0.10))))


def training(rng: Generator) -> Program:
    """Forward, backward and step, again and again."""
    parts = phases(rng, _period(rng), _share(rng), int(rng.integers(2, 5)))
    return _made("training", rng, parts, Habits(jitter=_jitter(rng)))


def stalling(rng: Generator) -> Program:
    """Training that waits now and then."""
    parts = phases(rng, _period(rng), _share(rng), int(rng.integers(2, 5)))
    habits = Habits(jitter=_jitter(rng), stall_chance=float(rng.uniform(0.005, 0.04)), stall_seconds=2.0)
    return _made("stalling", rng, parts, habits)


def evaluating(rng: Generator) -> Program:
    """Training with evaluations between."""
    period = _period(rng, 0.3, 8.0)
    parts = phases(rng, period, _share(rng), int(rng.integers(2, 5)))
    every = max(8, int(rng.uniform(15, 60) / period))
    habits = Habits(jitter=_jitter(rng), evaluation_every=every, evaluation_seconds=float(rng.uniform(2, 12)))
    return _made("evaluating", rng, parts, habits)


def accumulating(rng: Generator) -> Program:
    """Several equal micro-batches, then the optimizer's step and communication."""
    period = _period(rng, 1.5, 12.0)
    count = int(rng.integers(2, 9))
    tail = float(rng.uniform(0.1, 0.35))
    share = _share(rng)
    micro = phases(rng, period * (1.0 - tail) / count, share, 2)
    step = phases(rng, period * tail, float(rng.uniform(0.0, 1.0)), 2)
    return _made("accumulating", rng, micro * count + step, Habits(jitter=_jitter(rng)))


def nested(rng: Generator) -> Program:
    """A long repetition made of short waves of the same kind."""
    period = _period(rng, 2.0, 12.0)
    waves = int(rng.integers(3, 12))
    one = phases(rng, period * 0.7 / waves, _share(rng), 2)
    rest = phases(rng, period * 0.3, _share(rng), 1)
    return _made("nested", rng, one * waves + rest, Habits(jitter=_jitter(rng)))


def drifting(rng: Generator) -> Program:
    """Training whose repetitions become slowly longer."""
    parts = phases(rng, _period(rng, 0.3, 6.0), _share(rng), 3)
    return _made("drifting", rng, parts, Habits(jitter=_jitter(rng), drift=float(rng.uniform(-0.004, 0.004))))


def loading(rng: Generator) -> Program:
    """Training that its data loader holds up for stretches."""
    parts = phases(rng, _period(rng, 0.3, 4.0), _share(rng), 3)
    return _made("loading", rng, parts, Habits(jitter=_jitter(rng), loader_chance=float(rng.uniform(0.002, 0.02))))


def inference(rng: Generator) -> Program:
    """Prefill and decode of equal batches: a high first phase and a long low one."""
    period = _period(rng, 0.8, 10.0)
    compute = float(rng.uniform(0.6, 1.0))
    first = float(rng.uniform(0.1, 0.4))
    parts = [
        Phase(compute_seconds=period * first * compute, fixed_seconds=period * first * (1 - compute), level=1.0),
        Phase(compute_seconds=0.1 * period * (1 - first), fixed_seconds=0.9 * period * (1 - first), level=0.45),
    ]
    return _made("inference", rng, parts, Habits(jitter=_jitter(rng)))


def simulation(rng: Generator) -> Program:
    """A solver: many small kernels with ramps, a short exchange of borders at the end."""
    period = _period(rng, 0.4, 8.0)
    share = _share(rng)
    levels = 0.6 + 0.4 * np.sin(np.linspace(0.0, np.pi, 8))
    parts = [
        Phase(compute_seconds=period * 0.11 * share, fixed_seconds=period * 0.11 * (1 - share), level=float(level))
        for level in levels
    ]
    parts.append(Phase(compute_seconds=0.0, fixed_seconds=period * 0.12, level=0.1))
    return _made("simulation", rng, parts, Habits(jitter=_jitter(rng)))


def timer(rng: Generator) -> Program:
    """Constant load that slows down with the clock, and a timer of the host that shows in the power."""
    period = _period(rng, 0.5, 10.0)
    share = _share(rng)
    width = float(rng.uniform(0.05, 0.4)) * period
    low = float(rng.uniform(0.3, 0.85))
    spread = float(np.exp(rng.uniform(np.log(0.001), np.log(0.05))))

    def pieces(clock: float, rng: Generator) -> Iterator[Piece]:
        rate = 1.0 / (share / clock + 1.0 - share)
        while True:
            rest = max(period * (1.0 + rng.normal(0.0, spread)) - width, 0.05)
            yield Piece(seconds=rest, level=0.9, work=rate * rest)
            yield Piece(seconds=width, level=0.9 * low, work=rate * width)

    return Program(
        family="timer",
        periodic=False,
        pieces=pieces,
        slowdown=lambda clock: share / clock - share,
        timer=True,
        traits={"period": period},
        board=_board(rng),
    )


def _aperiodic(
    family: str, rng: Generator, pieces: Callable[[float, Generator], Iterator[Piece]], **traits: float
) -> Program:
    share = _share(rng)
    return Program(
        family=family,
        periodic=False,
        pieces=pieces,
        slowdown=lambda clock: share / clock - share,
        traits=traits,
        board=_board(rng),
    )


def walk(rng: Generator) -> Program:
    """Power that wanders."""
    step, size = float(rng.uniform(0.1, 1.0)), float(rng.uniform(0.02, 0.2))

    def pieces(_clock: float, rng: Generator) -> Iterator[Piece]:
        level = 0.5
        while True:
            level = float(np.clip(level + rng.normal(0.0, size), 0.0, 1.0))
            yield Piece(seconds=step, level=level, work=step)

    return _aperiodic("walk", rng, pieces)


def constant(rng: Generator) -> Program:
    """Power that stays."""

    def pieces(_clock: float, _rng: Generator) -> Iterator[Piece]:
        while True:
            yield Piece(seconds=10.0, level=0.8, work=10.0)

    return _aperiodic("constant", rng, pieces)


def bursts(rng: Generator) -> Program:
    """Bursts and pauses of random length."""
    mean, shape = float(_period(rng, 0.4, 6.0)), float(rng.uniform(0.8, 3.0))

    def pieces(_clock: float, rng: Generator) -> Iterator[Piece]:
        while True:
            yield Piece(seconds=0.05 + float(rng.gamma(shape, mean / shape)), level=1.0, work=1.0)
            yield Piece(seconds=0.05 + float(rng.gamma(shape, mean / shape)), level=0.1)

    return _aperiodic("bursts", rng, pieces)


def chirp(rng: Generator) -> Program:
    """Repetitions that become shorter or longer fast."""
    start = _period(rng, 0.6, 5.0)
    growth = float(rng.uniform(0.01, 0.05)) * float(rng.choice([-1.0, 1.0]))

    def pieces(_clock: float, _rng: Generator) -> Iterator[Piece]:
        period = start
        while True:
            yield Piece(seconds=period * 0.6, level=1.0, work=1.0)
            yield Piece(seconds=period * 0.4, level=0.2)
            period *= 1.0 + growth
            if not 0.3 < period < 12.0:
                period = start

    return _aperiodic("chirp", rng, pieces)


def mixed_lengths(rng: Generator) -> Program:
    """Requests of very different lengths, one after the other."""
    spread = float(rng.uniform(0.4, 1.0))
    middle = _period(rng, 0.3, 3.0)

    def pieces(_clock: float, rng: Generator) -> Iterator[Piece]:
        while True:
            seconds = float(middle * np.exp(rng.normal(0.0, spread)))
            yield Piece(seconds=seconds * 0.3, level=1.0, work=0.3)
            yield Piece(seconds=seconds * 0.7, level=0.5, work=0.7)
            yield Piece(seconds=float(rng.exponential(0.2)) + 0.02, level=0.05)

    return _aperiodic("mixed lengths", rng, pieces)


def coloured(rng: Generator) -> Program:
    """Noise in a narrow band: waves that lose their phase."""
    period, memory = _period(rng, 0.5, 5.0), float(rng.uniform(0.85, 0.99))
    step = 0.05

    def pieces(_clock: float, rng: Generator) -> Iterator[Piece]:
        turn = 2.0 * np.pi * step / period
        keep = memory ** (step / period * 4.0)
        a, b = 2.0 * keep * np.cos(turn), -(keep**2)
        one, two = 0.0, 0.0
        size = np.sqrt(1.0 - keep**2) * turn
        while True:
            one, two = a * one + b * two + size * rng.normal(), one
            yield Piece(seconds=step, level=float(np.clip(0.5 + 0.15 * one, 0.0, 1.0)), work=step)

    return _aperiodic("coloured", rng, pieces)


TUNING_PERIODIC: Final = (training, stalling, evaluating, accumulating, loading)
HELD_OUT_PERIODIC: Final = (nested, drifting, inference, simulation)
TUNING_APERIODIC: Final = (walk, constant, bursts)
HELD_OUT_APERIODIC: Final = (chirp, mixed_lengths, coloured)


def two_programs(rng: Generator) -> Program:
    """Two programs on one GPU, each with its own period and its own slowdown."""
    makers = (training, inference, simulation)
    one, other = (makers[int(rng.integers(3))](rng) for _ in range(2))
    ratio = float(rng.uniform(0.3, 1.0))

    def pieces(clock: float, rng: Generator) -> Iterator[Piece]:
        streams = [program.pieces(clock, rng) for program in (one, other)]
        now = [next(stream) for stream in streams]
        left = [piece.seconds for piece in now]
        while True:
            step = min(left)
            level = (now[0].level + ratio * now[1].level) / (1.0 + ratio)
            work = sum(piece.work * step / piece.seconds for piece in now)
            yield Piece(seconds=step, level=level, work=work)
            for place in range(2):
                left[place] -= step
                if left[place] <= 1e-9:
                    now[place] = next(streams[place])
                    left[place] = now[place].seconds

    return Program(
        family="two programs",
        periodic=False,
        pieces=pieces,
        slowdown=lambda clock: max(one.slowdown(clock), other.slowdown(clock)),
        traits={"least": min(one.traits["period"], other.traits["period"])},
        board=_board(rng),
    )
