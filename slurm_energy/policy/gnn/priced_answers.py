"""The answers of a network of prices at one moment: plain values, so that they can be given in another process.

Torch works out the prices of a moment; what is left for a job is arithmetic on some small arrays. The answering process
does it itself, and a job waits for no other process (daemon/remote_policy.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import NamedTuple

import numpy as np

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import ClockChoice, PolicyAnswer, Reason
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyMode, JobRequest
from slurm_energy.energy_model.operating_point import OperatingPoint
from slurm_energy.errors import PolicyError
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.job_features import LIMIT_SHARE, JobWishes, submitted_vector
from slurm_energy.policy.base import DecisionContext
from slurm_energy.policy.baselines import clock_choice, landing_types
from slurm_energy.policy.gnn.cost_words import PriceFactors, cost_notes
from slurm_energy.policy.gnn.option_costs import (
    OptionChoice,
    OptionPrices,
    clock_by_type,
    least_joules,
    option_choices,
)
from slurm_energy.policy.gnn.published_prices import PublishedPrices
from slurm_energy.policy.gnn.serving_options import (
    NOTHING_OPEN,
    ServedOption,
    as_submitted,
    expected_seconds,
    is_trial,
    nothing_open,
    partitions_to_name,
    served_options,
)
from slurm_energy.policy.gnn.shown import Shown
from slurm_energy.policy.mode_weights import BALANCED_PRICES, MODE_PRICES, ModePrices
from slurm_energy.policy.oracle import oracle_clocks, trial_note
from slurm_energy.policy.partition_check import landing_on
from slurm_energy.policy.price_factors import JOB_PRICES, price_factors, relative_joules

_TIME, _SLOWDOWN, _WAKING = (JOB_PRICES.index(name) for name in ("time_watts", "slowdown_joules", "waking"))
_CRITICALITY = 1.0
"""No job waits for one that is only being submitted: its whole delay reaches its own end."""


class Look(NamedTuple):
    """What prices of jobs are worked out from, all of the same moment."""

    prices: PublishedPrices
    shown: Shown
    mean_gpu_seconds: float
    """Of the jobs that wait or run; NaN when no length is known."""
    waiting_gpus: Mapping[PartitionName, float]
    """What pending jobs ask for in each partition."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedAnswers:
    """A policy that stays at one moment of the cluster: partition and clock of the least cost at its prices."""

    version: str
    default_mode: EnergyMode
    look: Look
    name: str = "gnn"

    def decide(self, job: JobRequest, snapshot: ClusterSnapshot, context: DecisionContext) -> PolicyAnswer:  # noqa: ARG002  # a policy's form: what it knows of the cluster is its own look
        """Return the partition of the least cost, a clock for each GPU type there, and what it costs.

        Raises:
            PolicyError: the network's prices are not finite.
        """
        asked, first = _Asked(job, context, self.look), tuple[str, ...]()
        priced = self._priced(asked)
        if priced is None:
            # Nothing has room: the job waits where it was sent, and its clock is worth what that costs there.
            asked, first = asked.as_submitted, (NOTHING_OPEN,)
            priced = self._priced(asked)
        if priced is None:
            return nothing_open(context)
        best = priced.choices[0].served
        named = partitions_to_name(best, asked.context)
        return PolicyAnswer(
            partitions=named,
            clocks=_clock_choices(self._clocks(asked, priced, named), named, context),
            reasons=(Reason.POLICY,),
            notes=(*first, *_trial_notes(best, asked.context), *cost_notes(*priced)),
        )

    def _priced(self, asked: "_Asked") -> "_Priced | None":
        """Return the open options at their prices, None where none is open."""
        served = served_options(asked.job, asked.context, self.look.shown, with_clocks=False)
        options = [one for one in served if one.types]
        if not options:
            return None
        prices, factors = self._option_prices(asked, options)
        return _Priced(option_choices(options, prices, asked.context.comparison), factors, prices)

    def _clocks(
        self, asked: "_Asked", priced: "_Priced", named: tuple[PartitionName, ...] | None
    ) -> Mapping[GpuTypeName, OperatingPoint | None]:
        """Return the clock of the least cost of each GPU type that the job can land on, as far as costs are known."""
        landing = landing_on(asked.context.candidates, named)
        names = {candidate.partition.name for candidate in landing}
        own = clock_by_type([one for one in priced.choices if one.served.candidate.partition.name in names])
        if named is None and asked.context.may_route and not own.keys() >= set(landing_types(landing)):
            # Of its own partitions one without room was not open to choice, and may have some when the job starts.
            others = self._priced(asked.as_submitted)
            return {**({} if others is None else clock_by_type(others.choices)), **own}
        return own

    def _option_prices(self, asked: "_Asked", options: Sequence[ServedOption]) -> tuple[OptionPrices, PriceFactors]:
        """Return what a job pays, and by what the network multiplied it."""
        job, context = asked.job, asked.context
        base = MODE_PRICES.get(job.options.mode or self.default_mode, BALANCED_PRICES)
        own_joules = least_joules(options, context.comparison)
        own = price_factors(self.look.prices.job_raw(_job_columns(asked, base.time_watts, own_joules)))
        scarcity = price_factors(self.look.prices.device_raw)[[served.option.partition for served in options]]
        if not (np.isfinite(own).all() and np.isfinite(scarcity).all()):
            raise PolicyError("the network's prices are not finite")
        factors = PriceFactors(
            time=float(own[_TIME]),
            slowdown=float(own[_SLOWDOWN]),
            waking=float(own[_WAKING]),
            scarcity={
                served.candidate.partition.name: float(factor) for served, factor in zip(options, scarcity, strict=True)
            },
        )
        prices = OptionPrices(
            time_watts=base.time_watts * factors.time,
            slowdown_joules=base.slowdown * own_joules * factors.slowdown,
            waking=base.waking * factors.waking,
            scarcity=tuple(_scarcity(options, asked.look.waiting_gpus, base, factors)),
        )
        return prices, factors


class _Priced(NamedTuple):
    """What options cost."""

    choices: tuple[OptionChoice, ...]
    """The cheapest first."""
    factors: PriceFactors
    prices: OptionPrices


def _trial_notes(chosen: ServedOption, context: DecisionContext) -> tuple[str, ...]:
    return (trial_note(chosen.candidate),) if is_trial(chosen, context) else ()


class _Asked(NamedTuple):
    """A question and what is known at that moment."""

    job: JobRequest
    context: DecisionContext
    look: Look

    @property
    def as_submitted(self) -> "_Asked":
        """The same question where the job may be sent nowhere else."""
        return self._replace(context=as_submitted(self.context))


def _job_columns(asked: _Asked, time_watts: float, own_joules: float) -> Floats:
    """Return the columns that the prices of a job depend on, [PRICED_JOB].

    Args:
        asked: The job.
        time_watts: Base price of its time.
        own_joules: Its least energy.
    """
    job, context = asked.job, asked.context
    draws = own_joules / (max(1, job.gpu_count) * expected_seconds(job, context))
    time_weight = time_watts / (time_watts + draws) if time_watts > 0.0 else 0.0
    wishes = JobWishes(max_slowdown=context.max_slowdown, time_weight=time_weight, energy_weight=1.0 - time_weight)
    facts = asked.look.shown.facts
    own = submitted_vector(job, context.now_seconds, facts, runtime=context.runtime, wishes=wishes)
    return np.append(own, np.array([_CRITICALITY, _relative_work(asked)], dtype=np.float32))


def _relative_work(asked: _Asked) -> float:
    """Return ln(the job's work over the mean job's) / 4, 0 where one is not known.

    Work is in GPU-seconds where the network was trained with energy: of the jobs in the snapshot none is known.
    """
    job, context, look = asked.job, asked.context, asked.look
    limit = job.time_limit_minutes
    estimate = nan if limit is None else LIMIT_SHARE * 60.0 * limit
    own = max(1, job.gpu_count) * (estimate if context.runtime is None else context.runtime.seconds)
    mean = look.mean_gpu_seconds
    return relative_joules(own, mean)


def _scarcity(
    options: Sequence[ServedOption], waiting: Mapping[PartitionName, float], base: ModePrices, factors: PriceFactors
) -> Iterator[float]:
    """Yield the price of each option's GPUs: 0 while there is room for everything that waits and for the job."""
    for served in options:
        name = served.candidate.partition.name
        is_full = served.gpus_left < waiting.get(name, 0.0)
        yield base.scarcity * factors.scarcity[name] if is_full else 0.0


def _clock_choices(
    found: Mapping[GpuTypeName, OperatingPoint | None],
    named: tuple[PartitionName, ...] | None,
    context: DecisionContext,
) -> tuple[ClockChoice, ...]:
    """Return clocks as an answer, with the oracle's for GPU types that have none of the least cost.

    Args:
        found: Clock by GPU type, None for the default one.
        named: Partitions to which the job is sent, None where it stays as it was submitted.
        context: What the guard worked out.
    """
    chosen = (clock_choice(gpu_type, point, context.board_limits) for gpu_type, point in found.items())
    others = (clock for clock in oracle_clocks(context, named) if clock.gpu_type not in found)
    return (*(clock for clock in chosen if clock is not None), *others)
