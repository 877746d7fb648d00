"""What options cost in words, and as notes for programs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_energy.domain.ids import PartitionName
from slurm_energy.policy.cost_note import factors_note, option_note
from slurm_energy.policy.gnn.names import printable
from slurm_energy.policy.gnn.option_costs import Costs, OptionChoice, OptionPrices, TypeChoice

_LISTED = 4
_LEAST_SHARE = 0.001
"""A smaller part of the cost is not told."""
_UNITS = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"))


class PriceFactors(NamedTuple):
    """By what a network multiplies the prices of one job."""

    time: float
    slowdown: float
    waking: float
    scarcity: Mapping[PartitionName, float]


def cost_notes(choices: Sequence[OptionChoice], factors: PriceFactors, prices: OptionPrices) -> tuple[str, ...]:
    """Return the cheapest option, what it was chosen over and the network's factors: sentences, then notes to be read.

    Args:
        choices: The cheapest first; at least one.
        factors: Of the network; those of the cheapest option are told, as far as they multiply anything.
        prices: What was paid.
    """
    best = choices[0]
    sentences = [f"least cost: {_words(best)}"]
    if len(choices) > 1:
        second = choices[1]
        more = f" ({second.total / best.total - 1.0:+.1%})" if best.total > 0.0 else ""
        sentences.append(f"runner-up{more}: {_words(second)}")
    if best.dearest.costs != best.dearest.full:
        sentences.append(f"at its highest clock it would cost {_sum(best.dearest.full)}")
    of_best = _factors_that_count(best, factors, prices)
    told = ", ".join(f"{name} {factor:.3g}" for name, factor in of_best.items())
    sentences += [f"the network multiplies the price of {told}"] if told else []
    options = (
        option_note(_name(choice), _clock_mhz(choice.dearest), choice.dearest.costs._asdict())
        for choice in choices[:_LISTED]
    )
    return (*sentences, *((factors_note(of_best),) if told else ()), *options)


def _factors_that_count(best: OptionChoice, factors: PriceFactors, prices: OptionPrices) -> dict[str, float]:
    """Return the factors whose price is not 0 for the job: any other changes nothing, whatever it is."""
    costs = best.dearest.costs
    found = {
        "time": (prices.time_watts, factors.time),
        "slowdown": (prices.slowdown_joules, factors.slowdown),
        "waking": (costs.waking, factors.waking),
        "scarcity": (costs.scarcity, factors.scarcity[best.served.candidate.partition.name]),
    }
    return {name: factor for name, (price, factor) in found.items() if price > 0.0}


def _words(choice: OptionChoice) -> str:
    clock_mhz = _clock_mhz(choice.dearest)
    dearest = f" on {printable(choice.dearest.gpu_type)}, its dearest GPU type," if len(choice.types) > 1 else ""
    clock = "" if clock_mhz is None else f" at {clock_mhz} MHz"
    return f"{_name(choice)}{dearest}{clock}: {_sum(choice.dearest.costs)}"


def _sum(costs: Costs) -> str:
    """Return the total with the parts that count: `1.2 MJ = energy 1 MJ + slowdown 200 kJ`."""
    shown = {name: part for name, part in costs._asdict().items() if part > _LEAST_SHARE * costs.total}
    return f"{_joules(costs.total)} = {' + '.join(f'{name} {_joules(part)}' for name, part in shown.items())}"


def _joules(joules: float) -> str:
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if joules >= scale), _UNITS[-1])
    return f"{joules / scale:.3g} {unit}"


def _name(choice: OptionChoice) -> str:
    return printable(choice.served.candidate.partition.name)


def _clock_mhz(choice: TypeChoice) -> int | None:
    return None if choice.point is None else choice.point.sm_clock_mhz
