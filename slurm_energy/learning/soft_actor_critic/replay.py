"""The replay: past transitions with their own masks, in a bounded and packed memory."""

import json
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.graph.blocks import DecisionBlock
from slurm_energy.learning.experience import Costs, DecisionMoment, DecisionStep
from slurm_energy.learning.soft_actor_critic.records import (
    PACKED_RECORDS,
    PackedMoment,
    Record,
    RecordPool,
    pack,
    restored_moment,
)


class KeptTransition(NamedTuple):
    """One step as it is kept."""

    moment: PackedMoment
    taken: int
    """Row of the option that is learned about: the granted one; where the scheduler refused, the one asked for."""
    is_start: bool
    """Whether the job was started in it."""
    reward: float
    costs: Costs
    elapsed_seconds: float
    following: PackedMoment | None
    """The next decision; None where nothing follows for ever."""


class Replay:
    """Keeps the latest transitions and draws from them with replacement.

    A start that the scheduler refused is kept as what it was: the option that was asked for led to the next decision at
    the cost of the time until then. Without it nothing would tell of what being refused costs, and the policy could
    drift towards it. What is not kept are steps whose end is cut off before a next decision was seen.
    """

    def __init__(self, capacity: int, seed: int) -> None:
        if capacity < 1:
            raise ConfigError(f"replay capacity {capacity} must be at least 1")
        self._capacity = capacity
        self._kept: list[KeptTransition] = []
        self._next = 0
        self._pool = RecordPool()
        self._generator = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, steps: Iterable[DecisionStep]) -> int:
        """Take in steps and return how many are kept; beyond the capacity the oldest are dropped.

        Raises:
            TrainingError: a step has no finite figures, or was granted or asked for what its mask had closed.
        """
        packed: dict[int, tuple[DecisionMoment, PackedMoment]] = {}

        def once(moment: DecisionMoment) -> PackedMoment:
            if id(moment) not in packed:
                packed[id(moment)] = (moment, pack(moment, self._pool))
            return packed[id(moment)][1]

        count = 0
        for step in steps:
            if not _tells_something(step):
                continue
            following = None if step.is_terminal or step.following is None else once(step.following)
            transition = KeptTransition(
                moment=once(step.moment),
                taken=_taken(step),
                is_start=step.granted >= 0,
                reward=step.reward,
                costs=step.costs,
                elapsed_seconds=step.elapsed_seconds,
                following=following,
            )
            if len(self._kept) < self._capacity:
                self._kept.append(transition)
            else:
                self._kept[self._next] = transition
            self._next = (self._next + 1) % self._capacity
            count += 1
        return count

    def sample(self, count: int) -> list[KeptTransition]:
        """Return some transitions, each drawn from all.

        Raises:
            TrainingError: there are none.
        """
        if not self._kept:
            raise TrainingError("the replay is empty: nothing can be drawn from it")
        return [self._kept[index] for index in self._generator.integers(len(self._kept), size=count)]

    def state(self) -> dict[str, Any]:
        """Return all that is kept, as tensors."""
        moments: dict[int, tuple[int, PackedMoment]] = {}
        for transition in self._kept:
            for moment in (transition.moment, transition.following):
                if moment is not None:
                    moments.setdefault(id(moment), (len(moments), moment))
        records = self._distinct_records()
        number = {id(record): index for index, record in enumerate(records)}
        payload = b"".join(record.packed for record in records)
        return {
            "next": self._next,
            "generator": json.dumps(self._generator.bit_generator.state),
            "payload": torch.frombuffer(bytearray(payload or b"\0"), dtype=torch.uint8),
            "lengths": torch.tensor([len(record.packed) for record in records], dtype=torch.int64),
            "moments": torch.tensor(
                [[number[id(record)] for record in moment] for _, moment in moments.values()], dtype=torch.int64
            ).reshape(-1, PACKED_RECORDS),
            "rows": torch.tensor(
                [
                    [
                        moments[id(one.moment)][0],
                        one.taken,
                        int(one.is_start),
                        -1 if one.following is None else moments[id(one.following)][0],
                    ]
                    for one in self._kept
                ],
                dtype=torch.int64,
            ).reshape(-1, 4),
            "figures": torch.tensor(
                [[one.reward, one.elapsed_seconds, *one.costs] for one in self._kept], dtype=torch.float64
            ).reshape(-1, 5),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; everything in it is looked at before anything is changed.

        Raises:
            TrainingError: it is not the state of a replay of this capacity.
        """
        try:
            pool, kept = RecordPool(), []
            moments = _restored_moments(state, pool)
            masks = [moment.block().option_open for moment in moments]
            figures = state["figures"].tolist()
            for (moment, taken, is_start, following), (reward, elapsed, *costs) in zip(
                state["rows"].tolist(), figures, strict=True
            ):
                if not (0 <= moment < len(moments) and -1 <= following < len(moments)):
                    raise TrainingError(f"a transition names moments {moment} and {following} of {len(moments)}")
                if not 0 <= taken < len(masks[moment]) or not masks[moment][taken]:
                    raise TrainingError(f"a transition is of option {taken}, which is not open")
                if not all(map(isfinite, (reward, elapsed, *costs))) or elapsed < 0.0:
                    raise TrainingError(f"a transition has reward {reward}, {elapsed} s and costs {costs}")
                kept.append(
                    KeptTransition(
                        moments[moment],
                        taken,
                        bool(is_start),
                        reward,
                        Costs(*costs),
                        elapsed,
                        None if following == -1 else moments[following],
                    )
                )
            generator = np.random.default_rng(0)
            generator.bit_generator.state = json.loads(state["generator"])
            place = int(state["next"])
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
            raise TrainingError(f"the state of the replay cannot be read: {error}") from error
        full = len(kept) == self._capacity
        if len(kept) > self._capacity or not (0 <= place < self._capacity if full else place == len(kept)):
            raise TrainingError(
                f"the state of the replay has {len(kept)} transitions and its next place is {place}: "
                f"that is none of a replay of {self._capacity}"
            )
        self._pool, self._kept, self._next, self._generator = pool, kept, place, generator

    def _distinct_records(self) -> list[Record]:
        found: dict[int, Record] = {}
        for transition in self._kept:
            for moment in (transition.moment, transition.following):
                for record in moment or ():
                    found.setdefault(id(record), record)
        return list(found.values())


def _tells_something(step: DecisionStep) -> bool:
    """Return whether a step is one to learn from."""
    figures = (step.reward, step.elapsed_seconds, *step.costs)
    if not all(isfinite(figure) for figure in figures) or step.elapsed_seconds < 0.0:
        raise TrainingError(f"a step has reward {step.reward}, {step.elapsed_seconds} s, {step.costs}: must be finite")
    mask, taken = step.moment.decision.option_open, _taken(step)
    if not 0 <= taken < len(mask) or not mask[taken]:
        word = "granted" if step.granted >= 0 else "refused"
        raise TrainingError(f"a step was {word} option {taken}, which is not open among its {len(mask)}")
    if step.is_terminal:
        return True
    return step.following is not None and _is_decision(step.following.decision)


def _taken(step: DecisionStep) -> int:
    """Return the row of the option that a step tells of."""
    return step.granted if step.granted >= 0 else step.asked


def _is_decision(block: DecisionBlock) -> bool:
    """Return whether anything could be chosen: what comes after a moment without a choice is not known."""
    return bool(block.option_open.any())


def _restored_moments(state: Mapping[str, Any], pool: RecordPool) -> list[PackedMoment]:
    payload, at, records = bytes(state["payload"].numpy()), 0, []
    for length in state["lengths"].tolist():
        if not 0 < length <= len(payload) - at:
            raise TrainingError(f"a record of {length} bytes is not in the {len(payload) - at} that are left")
        records.append(pool.record(Record(payload[at : at + length]).arrays()))
        at += length
    found = []
    for numbers in state["moments"].tolist():
        if not all(0 <= number < len(records) for number in numbers):
            raise TrainingError(f"a moment names records {numbers} of {len(records)}")
        found.append(restored_moment([records[number] for number in numbers]))
    return found
