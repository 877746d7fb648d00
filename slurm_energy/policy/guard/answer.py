"""What a policy returned, not trusted: parsed into plain safe values, or refused as a whole."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_energy.domain.decision import (
    MAX_CLOCK_MHZ,
    AnswerDetails,
    DeferredDetails,
    OptionCost,
    PolicyAnswer,
    Reason,
)
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.errors import PolicyError
from slurm_energy.forms import is_feature_name

logger = logging.getLogger(__name__)

_MAX_NOTES = 16
_MAX_NOTE_LENGTH = 200
_MAX_CLOCKS = 64
_MAX_PARTITIONS = 1024
_MAX_OPTIONS = 4
_MAX_FIGURES = 16
_MAX_FIGURE = 1e300
_WHOLE_FROM = 100.0
_DECIMALS = 4
"""Of figures below that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedAnswer:
    """A policy's proposal in plain values; only its wishes are kept, the guard works out what they would do."""

    partitions: tuple[PartitionName, ...] | None
    clocks_mhz: Mapping[GpuTypeName, int]
    prefer: str | None
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]
    details: AnswerDetails


def checked_answer(answer: object) -> CheckedAnswer:
    """Return the answer in plain values.

    Raises:
        PolicyError: it is no answer, or a part of it is of the wrong kind, repeated, not finite, or absurdly long.
    """
    if not isinstance(answer, PolicyAnswer):
        raise PolicyError(f"the policy returned a {type(answer).__name__}, not a PolicyAnswer")
    return CheckedAnswer(
        partitions=_partitions(answer.partitions),
        clocks_mhz=_clocks(answer.clocks),
        prefer=_feature(answer.prefer),
        reasons=tuple(reason for reason in _tuple("reasons", answer.reasons, 64) if isinstance(reason, Reason)),
        notes=tuple(plain_note(note) for note in _tuple("notes", answer.notes, 1024)[:_MAX_NOTES]),
        details=_details(answer.details),
    )


def plain_note(note: object) -> str:
    """Return a note as one short printable line."""
    text = (note if isinstance(note, str) else type(note).__name__)[:_MAX_NOTE_LENGTH]
    if text.isprintable():  # nearly always: a note is looked at several times on its way
        return str(text)
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _details(details: object) -> AnswerDetails:
    """Return the details in plain values; an option or a figure that is none is left out."""
    if not isinstance(details, AnswerDetails):
        return AnswerDetails()
    if isinstance(details, DeferredDetails):
        return DeferredDetails(lambda: _found_details(details))
    options = (_option(one) for one in _tuple("options", details.options, 1024)[:_MAX_OPTIONS])
    return AnswerDetails(
        options=tuple(one for one in options if one is not None),
        factors=_figures(details.factors),
        attention=_figures(details.attention),
        preference=_figures(details.preference),
    )


def _found_details(details: DeferredDetails) -> AnswerDetails:
    """Return what a decision that was given is explained by; nothing where that fails."""
    try:
        return _details(details.found)
    except Exception:
        logger.exception("a decision cannot be explained")
        return AnswerDetails()


def _option(option: object) -> OptionCost | None:
    if not isinstance(option, OptionCost) or not isinstance(option.partition, str):
        return None
    clock, gpu_type = option.clock_mhz, option.gpu_type
    return OptionCost(
        partition=PartitionName(plain_note(option.partition)),
        parts=_figures(option.parts),
        clock_mhz=clock if isinstance(clock, int) and 0 < clock <= MAX_CLOCK_MHZ else None,
        gpu_type=GpuTypeName(plain_note(gpu_type)) if isinstance(gpu_type, str) else None,
        full_parts=_figures(option.full_parts),
    )


def _figures(table: object) -> dict[str, float]:
    found = list(table.items())[:_MAX_FIGURES] if isinstance(table, Mapping) else []
    return {
        plain_note(name): float(round(value, 0 if abs(value) >= _WHOLE_FROM else _DECIMALS))
        for name, value in found
        if isinstance(value, int | float) and math.isfinite(value) and abs(value) <= _MAX_FIGURE
    }


def _partitions(names: object) -> tuple[PartitionName, ...] | None:
    if names is None:
        return None
    found = _tuple("partitions", names, _MAX_PARTITIONS)
    if not found or not all(isinstance(name, str) for name in found) or len(set(found)) != len(found):
        raise PolicyError(f"the policy's partitions are empty, repeated or no names: {plain_note(repr(found))}")
    return tuple(PartitionName(str(name)) for name in found)


def _clocks(choices: object) -> dict[GpuTypeName, int]:
    clocks: dict[GpuTypeName, int] = {}
    for choice in _tuple("clocks", choices, _MAX_CLOCKS):
        gpu_type, clock = getattr(choice, "gpu_type", None), getattr(choice, "sm_clock_mhz", None)
        if not isinstance(gpu_type, str) or gpu_type in clocks:
            raise PolicyError(f"the policy's clocks name a bad or repeated GPU type: {plain_note(repr(gpu_type))}")
        if isinstance(clock, bool) or not isinstance(clock, int | float) or not math.isfinite(clock):
            raise PolicyError(f"the policy's clock for {plain_note(gpu_type)} is no number of MHz")
        for name in ("predicted_slowdown", "predicted_energy_change"):
            prediction = getattr(choice, name, None)
            if not isinstance(prediction, int | float) or not math.isfinite(prediction):
                raise PolicyError(f"the policy's {name} for {plain_note(gpu_type)} is not finite")
        clocks[GpuTypeName(str(gpu_type))] = round(clock)
    return clocks


def _feature(name: object) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or not is_feature_name(name):
        raise PolicyError(f"the policy's preferred node feature is no name of one: {plain_note(repr(name))}")
    return str(name)


def _tuple(thing: str, value: object, longest: int) -> tuple[object, ...]:
    if not isinstance(value, tuple | list) or len(value) > longest:
        raise PolicyError(f"the policy's {thing} are no list of up to {longest}")
    return tuple(value)
