"""What the network looked at for one job: shares of its attention, critical path, bottlenecks, and that in words."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slurm_energy.errors import PolicyError
from slurm_energy.policy.detail_text import printable_name
from slurm_energy.policy.gnn.configuration import Attention
from slurm_energy.policy.gnn.embeddings import TopKind
from slurm_energy.policy.gnn.top_level import OBJECTIVES

Weights = NDArray[np.float64]
_LISTED = 3
_MIN_SHARE = 0.01
_RESOURCES = (TopKind.PARTITION, TopKind.QUEUE, TopKind.FABRIC)
_WORDS = {
    TopKind.JOB: "the job",
    TopKind.PARTITION: "the capacity of {name}",
    TopKind.QUEUE: "the queue of {name}",
    TopKind.FABRIC: "the network",
    TopKind.CLUSTER: "the cluster as a whole",
    TopKind.POWER: "power",
    TopKind.COOLING: "cooling",
    TopKind.CARBON: "carbon",
    TopKind.QUALITY: "deadlines",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of the job's attention by group; they add up to 1, or are all 0 when it looked at nothing."""

    queue: float = 0.0
    """Pending work."""
    bottleneck: float = 0.0
    """The network, and the partition with the least room where the room of several is known."""
    deadline: float = 0.0
    """Deadlines and service."""
    energy: float = 0.0
    """Power, cooling and carbon."""
    capacity: float = 0.0
    """The other partitions."""
    cluster: float = 0.0
    """The cluster as a whole."""


_GROUP_NAMES = tuple(field.name for field in fields(Shares))
_GROUPS = {
    TopKind.PARTITION: "capacity",
    TopKind.QUEUE: "queue",
    TopKind.FABRIC: "bottleneck",
    TopKind.CLUSTER: "cluster",
    TopKind.POWER: "energy",
    TopKind.COOLING: "energy",
    TopKind.CARBON: "energy",
    TopKind.QUALITY: "deadline",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """One subject of attention: a vertex, or the vertices that have the same words."""

    words: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionReport:
    """What the network looked at for one job."""

    shares: Shares
    """Of all heads."""
    objectives: Mapping[str, Shares]
    """Of the heads of each objective; empty when the heads are not tied."""
    subjects: tuple[LookedAt, ...]
    """What was looked at most, of all heads."""
    objective_subjects: Mapping[str, LookedAt]
    """What the heads of each objective looked at most."""
    critical_path: tuple[str, ...]
    """Chain of attention of the time heads, from what the job looks at outwards."""
    bottlenecks: tuple[LookedAt, ...]
    """Resources at which all vertices look most through the time heads."""

    def document(self) -> dict[str, Any]:
        """Return the report as it is written to JSON."""
        return {
            "shares": asdict(self.shares),
            "objectives": {name: asdict(shares) for name, shares in self.objectives.items()},
            "subjects": [asdict(subject) for subject in self.subjects],
            "objective_subjects": {name: asdict(subject) for name, subject in self.objective_subjects.items()},
            "critical_path": list(self.critical_path),
            "bottlenecks": [asdict(subject) for subject in self.bottlenecks],
        }

    def sentences(self) -> list[str]:
        """Return at most three sentences of printable ASCII, each at most 200 characters; fewer if little is known."""
        looked = [f"{_percent(item.share)} on {item.words}" for item in self.subjects if item.share >= _MIN_SHARE]
        objectives = [f"{name} at {item.words}" for name, item in self.objective_subjects.items()]
        found = (
            ("attention: ", ", ".join(looked)),
            ("most looked at for ", ", ".join(objectives)),
            ("critical path: ", ", then ".join(self.critical_path[:_LISTED])),
        )
        return [start + rest for start, rest in found if rest]


def attention_report(
    layers: Sequence[Tensor],
    kinds: Sequence[int],
    names: Sequence[str],
    mode: Attention = "objectives",
    room: Sequence[float | None] | None = None,
) -> AttentionReport:
    """Return what the job's vertex looked at, over all layers.

    Args:
        layers: Attention of each layer, first layer first, [heads, V, V] each, rows looking at columns.
        kinds: Kind of each vertex, as `TopKind`; the first JOB is the one reported.
        names: Name of each vertex; of a partition and its queue, the partition's.
        mode: Whether the heads are tied to objectives; with `none` the weights are equal and tell nothing of the job,
            so there are no subjects, and no sentences.
        room: Share of each partition that is free; None where it is not known, and for other vertices.

    Raises:
        PolicyError: shapes do not agree, or there is no job among the vertices.
    """
    attention = _stacked(layers, kinds, names)
    top = [TopKind(kind) for kind in kinds]
    groups = [_GROUPS.get(kind, "") for kind in top]
    if room is not None and len(room) != len(kinds):
        raise PolicyError(f"room is given for {len(room)} of {len(kinds)} vertices: one entry for each is needed")
    least = _smallest_room(top, room)
    if least is not None:
        groups[least] = "bottleneck"
    words = [_words(kind, name) for kind, name in zip(top, names, strict=True)]
    overall = job_shares(attention.mean(1), top)
    by_objective: dict[str, list[float]] = {}
    if mode == "objectives":
        by_objective = {name: job_shares(_heads_of(attention, name), top) for name in OBJECTIVES}
    firsts = {name: _subjects(shares, words, 1) for name, shares in by_objective.items()}
    time = _heads_of(attention, "time") if mode == "objectives" else None
    return AttentionReport(
        shares=_grouped(overall, groups),
        objectives={name: _grouped(shares, groups) for name, shares in by_objective.items()},
        subjects=() if mode == "none" else _subjects(overall, words, _LISTED),
        objective_subjects={name: found[0] for name, found in firsts.items() if found},
        critical_path=() if time is None else critical_path(time, kinds, names),
        bottlenecks=() if time is None else bottlenecks(time, kinds, names),
    )


def job_shares(attention: Tensor | Weights, kinds: Sequence[int]) -> list[float]:
    """Return the share of each vertex in what reaches the job's vertex, by attention rollout.

    Each layer passes on half of a vertex as it is and half of what it looks at (Abnar and Zuidema, "Quantifying
    Attention Flow in Transformers", 2020); one that looks at nothing stays as it is. What is left at jobs is no answer
    to what was looked at: it is taken out, and the rest is brought to the sum 1.

    Args:
        attention: Attention of each layer, one head or a mean of heads, [layers, V, V].
        kinds: Kind of each vertex; the first JOB is the one asked about.
    """
    weights = np.asarray(attention)
    flow = np.zeros(weights.shape[-1], dtype=weights.dtype)
    flow[_job_of(kinds)] = 1.0
    least = np.finfo(weights.dtype).tiny
    for layer in weights[::-1]:
        row_sum = layer.sum(-1)
        looks = row_sum > 0.0
        passed = np.where(looks, 0.5 / np.maximum(row_sum, least), 0.0)
        flow = np.where(looks, 0.5, 1.0) * flow + (flow * passed) @ layer
    flow[[kind == TopKind.JOB for kind in kinds]] = 0.0
    shares: list[float] = (flow / max(flow.sum(), least)).tolist()
    return shares


def critical_path(attention: Tensor | Weights, kinds: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    """Return the chain of vertices with the largest product of attention, in words.

    It starts at what the job looks at in the last layer and goes one layer back with each step; a vertex that looks at
    itself is named once. Empty when no chain goes through all layers.

    Args:
        attention: Attention of each layer, the mean of the time heads, [layers, V, V].
        kinds: Kind of each vertex; the first JOB is where the chain starts.
        names: Name of each vertex.
    """
    layers = np.asarray(attention)
    weight = np.ones(layers.shape[-1], dtype=layers.dtype)
    steps = []
    for layer in layers:  # from the far end of the chain to the job
        chains = layer * weight
        step = chains.argmax(-1)  # [V]: the next vertex of the best chain that starts at each
        weight = chains[np.arange(len(step)), step]
        steps.append(step)
    at = _job_of(kinds)
    if float(weight[at]) <= 0.0:
        return ()
    path: list[str] = []
    for step in reversed(steps):
        at = int(step[at])
        words = _words(TopKind(kinds[at]), names[at])
        if kinds[at] != TopKind.JOB and (not path or path[-1] != words):
            path.append(words)
    return tuple(path)


def bottlenecks(
    attention: Tensor | Weights, kinds: Sequence[int], names: Sequence[str], count: int = _LISTED
) -> tuple[LookedAt, ...]:
    """Return the partitions, queues and networks at which all vertices look most.

    Shares are of the attention that goes to such resources, from all vertices in all layers.

    Args:
        attention: Attention of each layer, the mean of the time heads, [layers, V, V].
        kinds: Kind of each vertex.
        names: Name of each vertex.
        count: The most that are returned.
    """
    received = np.asarray(attention).sum((0, 1)) * np.array([kind in _RESOURCES for kind in kinds])  # [V]
    words = [_words(TopKind(kind), name) for kind, name in zip(kinds, names, strict=True)]
    return _subjects((received / max(received.sum(), np.finfo(received.dtype).tiny)).tolist(), words, count)


def _stacked(layers: Sequence[Tensor], kinds: Sequence[int], names: Sequence[str]) -> Weights:
    """Return all layers as [layers, heads, V, V], in double precision; what is not finite becomes 0.

    From here on numpy: on so few numbers its calls cost a third of torch's.
    """
    shapes = {tuple(layer.shape) for layer in layers}
    vertices = len(kinds)
    if len(shapes) != 1 or next(iter(shapes))[1:] != (vertices, vertices) or len(names) != vertices:
        raise PolicyError(
            f"attention of shapes {sorted(shapes)} does not fit {vertices} vertices with {len(names)} names: "
            "each layer must be [heads, vertices, vertices]"
        )
    attention = np.stack([layer.detach().cpu().numpy() for layer in layers]).astype(np.float64)
    return np.where(np.isfinite(attention) & (attention > 0.0), attention, 0.0)


def _heads_of(attention: Weights, objective: str) -> Weights:
    """Return the mean over the heads of one objective, [layers, V, V]."""
    heads = attention.shape[1]
    if heads % len(OBJECTIVES):
        raise PolicyError(f"{heads} attention heads are not a multiple of {len(OBJECTIVES)}")
    third = heads // len(OBJECTIVES)
    first = OBJECTIVES.index(objective) * third
    mean: Weights = attention[:, first : first + third].mean(1)
    return mean


def _job_of(kinds: Sequence[int]) -> int:
    for index, kind in enumerate(kinds):
        if kind == TopKind.JOB:
            return index
    raise PolicyError(f"there is no job among the {len(kinds)} vertices of the attention")


def _smallest_room(kinds: Sequence[TopKind], room: Sequence[float | None] | None) -> int | None:
    """Return the partition with the least room, the first of equals; None where fewer than two are known."""
    known = [
        (value, index)
        for index, (kind, value) in enumerate(zip(kinds, room or [None] * len(kinds), strict=True))
        if kind == TopKind.PARTITION and value is not None and isfinite(value)
    ]
    return min(known)[1] if len(known) > 1 else None


def _grouped(shares: Sequence[float], groups: Sequence[str]) -> Shares:
    sums = dict.fromkeys(_GROUP_NAMES, 0.0)
    for share, group in zip(shares, groups, strict=True):
        if group:
            sums[group] += share
    return Shares(**sums)


def _subjects(shares: Sequence[float], words: Sequence[str], count: int) -> tuple[LookedAt, ...]:
    """Return the largest shares, vertices of the same words taken together; of equals, the first vertex first."""
    sums: dict[str, float] = {}
    for share, text in zip(shares, words, strict=True):
        sums[text] = sums.get(text, 0.0) + share
    ranked = sorted(sums.items(), key=lambda item: -item[1])[:count]
    return tuple(LookedAt(words=text, share=share) for text, share in ranked if share > 0.0)


@lru_cache(maxsize=4096)
def _words(kind: TopKind, name: str) -> str:
    return _WORDS[kind].format(name=printable_name(name))


def _percent(share: float) -> str:
    return f"{round(100 * share)} %"
