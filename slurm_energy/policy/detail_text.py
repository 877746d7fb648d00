"""What a policy tells of its answer, in sentences and as the document that programs read."""

from collections.abc import Iterator, Mapping
from typing import Any

from slurm_energy.domain.decision import AnswerDetails, OptionCost

_MIN_SHARE = 0.001
"""A smaller part of the cost is left out."""
_UNITS = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"))
_MAX_NAME_LENGTH = 32


def detail_sentences(details: AnswerDetails) -> tuple[str, ...]:
    """Return the cheapest option, what it was chosen over, and what a network preferred or multiplied."""
    return (*_preference(details.preference), *_costs(details.options), *_factors(details.factors))


def costs_document(details: AnswerDetails) -> dict[str, Any] | None:
    """Return factors and options as JSON has them, None where nothing was weighed."""
    if not details.options and not details.factors:
        return None
    options = [{"partition": one.partition, "mhz": one.clock_mhz, **one.parts} for one in details.options]
    return {"factors": dict(details.factors) or None, "options": options}


def joules_text(joules: float) -> str:
    """Return an energy with its unit."""
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if joules >= scale), _UNITS[-1])
    return f"{joules / scale:.3g} {unit}"


def printable_name(name: str) -> str:
    """Return a name in printable ASCII, at most 32 characters; a site may call its partitions anything."""
    kept = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in name[:_MAX_NAME_LENGTH])
    return kept.strip() or "unnamed"


def _costs(options: tuple[OptionCost, ...]) -> Iterator[str]:
    if not options:
        return
    best = options[0]
    yield f"least cost: {_words(best)}"
    if len(options) > 1:
        more = f" ({options[1].joules / best.joules - 1.0:+.1%})" if best.joules > 0.0 else ""
        yield f"runner-up{more}: {_words(options[1])}"
    if best.full_parts and best.full_parts != best.parts:
        yield f"at its highest clock it would cost {_sum(best.full_parts)}"


def _preference(shares: Mapping[str, float]) -> Iterator[str]:
    if shares:
        ranked = sorted(shares.items(), key=lambda item: -item[1])[:3]
        listed = ", ".join(f"{printable_name(name)} {share:.0%}" for name, share in ranked)
        yield f"the network's preference: {listed}"


def _factors(factors: Mapping[str, float]) -> Iterator[str]:
    for name, factor in factors.items():
        times = f"{factor:.3g}"
        if times != "1":
            yield f"learned price of {name}: {times} times the configured one"


def _words(option: OptionCost) -> str:
    several = "" if option.gpu_type is None else f" on {printable_name(option.gpu_type)}, its dearest GPU type,"
    clock = "" if option.clock_mhz is None else f" at {option.clock_mhz} MHz"
    return f"{printable_name(option.partition)}{several}{clock}: {_sum(option.parts)}"


def _sum(parts: Mapping[str, float]) -> str:
    """Return the total with the parts that count: `1.2 MJ = energy 1 MJ + slowdown 200 kJ`."""
    total = sum(parts.values())
    shown = {name: part for name, part in parts.items() if part > _MIN_SHARE * total}
    return f"{joules_text(total)} = {' + '.join(f'{name} {joules_text(part)}' for name, part in shown.items())}"
