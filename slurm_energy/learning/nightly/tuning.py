"""The prices of `total-cost`, tuned by cross-entropy search on a site's own replayed days.

Each generation draws prices around the best of the one before and replays the same jobs with all of them. What a policy
costs there is its energy over the live policy's, and what it adds to turnaround and to jobs that end otherwise than
COMPLETED, at a price. The result is held against the live policy on days that the search has not seen.
"""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, log
from pathlib import Path
from statistics import fmean, pstdev

from slurm_energy.config import Config
from slurm_energy.errors import TrainingError
from slurm_energy.evaluation.arena.comparison import run_arena
from slurm_energy.evaluation.arena.plan import ArenaPlan
from slurm_energy.evaluation.contenders import SERVED
from slurm_energy.evaluation.metrics import Metrics
from slurm_energy.files import write_atomically
from slurm_energy.policy.rules.settings import policy_name, split_text

TURNAROUND_PRICE = 0.3
"""Of one more mean turnaround, in terms of the energy: a job that is 1 % longer must save 0.3 %."""
FAILURE_PRICE = 5.0
"""Of a job that ends otherwise than COMPLETED, in terms of a job's energy."""
POPULATION = 6
ELITE = 3
MAX_GENERATIONS = 4
_WIDEST = 1.2
_NARROWEST = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One price that is searched, on a logarithmic scale."""

    name: str
    start: float
    low: float
    high: float


SEARCHED = (
    Price(name="V", start=5.0, low=0.01, high=500.0),
    Price(name="slowdown", start=0.3, low=0.01, high=3.0),
    Price(name="scarcity", start=1.0, low=0.05, high=10.0),
    Price(name="share", start=1.0, low=0.05, high=4.0),
)
"""Settings of `total-cost`; the others keep their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a policy came to on some jobs."""

    joules: float
    turnaround_seconds: float
    failed_share: float

    @classmethod
    def of(cls, metrics: Metrics) -> "Cost | None":
        """Return it of a run; None where the run says nothing."""
        turnaround = metrics.turnaround
        if not metrics.jobs or turnaround is None or not isfinite(metrics.total_joules):
            return None
        return cls(
            joules=metrics.total_joules,
            turnaround_seconds=turnaround.mean_seconds,
            failed_share=metrics.ended_otherwise_jobs / metrics.jobs,
        )

    def against(self, live: "Cost") -> float:
        """Return the cost in terms of the live policy's energy: 1 is as good, below is better."""
        longer = max(0.0, self.turnaround_seconds / max(live.turnaround_seconds, 1e-9) - 1.0)
        failed = max(0.0, self.failed_share - live.failed_share)
        return self.joules / live.joules + TURNAROUND_PRICE * longer + FAILURE_PRICE * failed


@dataclass(slots=True)
class Evaluations:
    """Replays that were made, kept in a file: what is resumed does not make them again."""

    path: Path
    known: dict[str, Cost | None] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Why a policy could not be replayed in this run; it is tried again when the night is resumed."""

    @classmethod
    def read(cls, path: Path) -> "Evaluations":
        """Return those of a file; a file that cannot be read holds none."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            known = {key: None if value is None else Cost(**value) for key, value in document.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            known = {}
        return cls(path, known)

    def keep(self, key: str, cost: Cost | None) -> None:
        """Keep a replay, on the disk too."""
        self.known[key] = cost
        document = {
            one: None
            if found is None
            else {
                "joules": found.joules,
                "turnaround_seconds": found.turnaround_seconds,
                "failed_share": found.failed_share,
            }
            for one, found in self.known.items()
        }
        write_atomically(self.path, json.dumps(document).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReplay:
    """Where policies are tried: a world and its jobs, with a limit of time."""

    world: Path
    jobs: Path
    evaluations: Evaluations
    deadline_seconds: float
    """Monotonic; no replay is begun afterwards."""
    workers: int = 1

    def costs(self, texts: Sequence[str]) -> list[Cost | None]:
        """Return what policies come to; None for one that failed or was not reached in time.

        Raises:
            SlurmEnergyError: nothing can be replayed.
        """
        missing = [text for text in dict.fromkeys(texts) if self._key(text) not in self.evaluations.known]
        for begin in range(0, len(missing), self.workers):
            if time.monotonic() >= self.deadline_seconds:
                break
            some = tuple(missing[begin : begin + self.workers])
            result = run_arena(
                ArenaPlan(policies=some, world=str(self.world), workload=self.jobs, skip_bad=True, drain=True),
                workers=self.workers,
            )
            records = {record.policy: record for record in result.runs}
            for text in some:
                record = records.get(text)
                if record is not None:
                    self.evaluations.keep(self._key(text), Cost.of(record.metrics))
            self.evaluations.failures.update({failure.policy: failure.error for failure in result.failed})
        return [self.evaluations.known.get(self._key(text)) for text in texts]

    def _key(self, text: str) -> str:
        return f"{self.jobs.name} {text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a search came to."""

    policy: str | None
    """As `policy.name` takes it; None where nothing was better than the live policy on the held-out days."""
    learned_cost: float
    """On the days of the search."""
    held_out_cost: float | None
    figures: Mapping[str, float]


def tune(  # noqa: PLR0913  # what is searched, where, and how it is reported
    config: Config,
    live: str,
    learned: SiteReplay,
    held_out: SiteReplay,
    *,
    seed: int,
    say: Callable[[str], None],
    min_gain: float = 0.002,
) -> Tuned:
    """Search prices on the days learned from; keep them if they are better on the held-out days too.

    Raises:
        TrainingError: the live policy itself could not be replayed in time.
    """
    live_text = served_text(live, config)
    base = learned.costs([live_text])[0]
    if base is None:
        why = learned.evaluations.failures.get(live_text, "the time did not suffice (nightly.max_minutes)")
        raise TrainingError(f"the live policy {live} could not be replayed: {why}; it stays")
    best, cost = _search(config, base, learned, seed, say)
    if best is None:
        return Tuned(policy=None, learned_cost=1.0, held_out_cost=None, figures={})
    text = price_text(best)
    # A part of the time is kept for this: without it nothing that was found can be trusted.
    live_cost, own_cost = held_out.costs([live_text, served_text(text, config)])
    if live_cost is None or own_cost is None:
        say("the held-out days could not be replayed in time: the prices stay as they are")
        return Tuned(policy=None, learned_cost=cost, held_out_cost=None, figures={})
    against = own_cost.against(live_cost)
    figures = {
        "held_out_joules": own_cost.joules,
        "incumbent_held_out_joules": live_cost.joules,
        "held_out_turnaround_seconds": own_cost.turnaround_seconds,
        "incumbent_held_out_turnaround_seconds": live_cost.turnaround_seconds,
        "held_out_failed_share": own_cost.failed_share,
        "incumbent_held_out_failed_share": live_cost.failed_share,
        "held_out_cost": against,
        "learned_from_cost": cost,
    }
    is_better = against < 1.0 - min_gain
    used = "" if is_better else ", not used"
    say(f"prices {text}: {100.0 * (against - 1.0):+.2f} % on the held-out days{used}")
    return Tuned(policy=text if is_better else None, learned_cost=cost, held_out_cost=against, figures=figures)


def _search(
    config: Config, base: Cost, replay: SiteReplay, seed: int, say: Callable[[str], None]
) -> tuple[Mapping[str, float] | None, float]:
    draw = random.Random(seed)  # noqa: S311  # a search, not a secret
    centre = {price.name: log(price.start) for price in SEARCHED}
    width = dict.fromkeys(centre, _WIDEST)
    best: Mapping[str, float] | None = None
    best_cost = float("inf")
    for generation in range(MAX_GENERATIONS):
        drawn = [
            {price.name: _drawn(draw, price, centre[price.name], width[price.name]) for price in SEARCHED}
            for _ in range(POPULATION)
        ]
        if generation == 0:
            drawn[0] = {price.name: price.start for price in SEARCHED}
        costs = replay.costs([served_text(price_text(one), config) for one in drawn])
        scored = sorted((one.against(base), number) for number, one in enumerate(costs) if one is not None)
        if not scored:
            break
        if scored[0][0] < best_cost:
            best_cost, best = scored[0][0], drawn[scored[0][1]]
        found = f"best {100.0 * (best_cost - 1.0):+.2f} % of the live policy's cost"
        say(f"generation {generation + 1} of {MAX_GENERATIONS}: {found}")
        elite = [drawn[number] for _, number in scored[:ELITE]]
        for price in SEARCHED:
            values = [log(one[price.name]) for one in elite]
            centre[price.name] = fmean(values)
            width[price.name] = max(_NARROWEST, pstdev(values))
        if None in costs and time.monotonic() >= replay.deadline_seconds:
            say("the time for the search is used up: the best so far counts")
            break
    return best, best_cost


def _drawn(draw: random.Random, price: Price, centre: float, width: float) -> float:
    value = exp(draw.gauss(centre, width))
    return float(f"{min(max(value, price.low), price.high):.3g}")


def price_text(prices: Mapping[str, float]) -> str:
    """Return prices as `policy.name` takes them."""
    return "total-cost:" + ",".join(f"{name}={value:g}" for name, value in prices.items())


def served_text(policy: str, config: Config) -> str:
    """Return a policy as the arena runs it: as the daemon would serve it, under the site's bound and routing."""
    own = [f"{key}={value}" for key, value in split_text(policy)[1].items()]
    name = policy_name(policy)
    if name == "gnn":
        own.append(f"checkpoint={config.policy.checkpoint}")
    own += [f"max_slowdown={config.policy.max_slowdown:g}", f"open={int(config.routing.open)}"]
    return f"{SERVED}{name}:{','.join(own)}"
