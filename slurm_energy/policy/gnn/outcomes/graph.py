"""The graph that outcomes are predicted from: ended runs, their names, users, scripts and GPU types, and the options.

A run hangs on its GPU type and its name, a name on its user and on what its script shares with others,
users on the site. An option is a job on a GPU type; measurements that may tell of it are edges from runs: those of its
own name first, then those with like scripts and those of its user. Trials are runs that measured a lower clock too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log, log1p
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import CATALOG, BoardLimits

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
_Key = TypeVar("_Key")
KNOTS = (0.5, 0.6, 0.7, 0.8, 0.86, 0.93)
"""Clocks over the default one at which outcomes are predicted."""
RUN_WIDTH, TYPE_WIDTH, EDGE_WIDTH, OPTION_WIDTH, CLOCK_WIDTH = 8, 3, 8, 5, 3
MAX_OWN_RUNS, MAX_ALIKE_RUNS = 16, 8
MAX_RUNS = 5_000
"""Newest runs that are vertices."""


class RunVertex(NamedTuple):
    """One ended run, or one trial in it."""

    user: int | str
    group: str
    """See `job_group`."""
    family: str
    """See `script_family`; empty where the script says nothing."""
    gpu_type: GpuTypeName
    gpus: int
    seconds: float
    watts: float
    """Mean power of one GPU at its default clock."""
    ended_at_seconds: float
    relative_clock: float = 1.0
    """That was tried, over the default clock; 1: none was."""
    slowdown: float = 0.0
    """That was measured at it."""
    error: float = 0.0
    """Standard error of it."""


class Ask(NamedTuple):
    """A job of which outcomes are wanted."""

    user: int | str
    group: str
    family: str


class TypeFacts(NamedTuple):
    """What the catalogue says of a GPU type."""

    max_clock_mhz: float
    limit_watts: float
    memory_gib: float

    @property
    def row(self) -> tuple[float, float, float]:
        """The features of its vertex."""
        return log(self.max_clock_mhz / 1500.0), log(self.limit_watts / 300.0), log(self.memory_gib / 40.0)


def catalogue_facts(names: Iterable[GpuTypeName], limits: BoardLimits) -> dict[GpuTypeName, TypeFacts]:
    """Return the facts of the types of which the catalogue knows clock, limit and memory."""
    found = {}
    for name in names:
        row, watts = CATALOG.get(name), limits.known_watts(name)
        if (
            row is not None
            and row.default_sm_clock_mhz is not None
            and row.memory_gib is not None
            and watts is not None
        ):
            found[name] = TypeFacts(float(row.default_sm_clock_mhz), watts, row.memory_gib)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunGraph:
    """Vertices of ended runs and what they hang on, as arrays."""

    types: tuple[GpuTypeName, ...]
    type_x: FloatArray
    run_x: FloatArray
    """[runs, RUN_WIDTH]: power over the limit, time, GPUs, age, whether a clock was tried, and what that measured."""
    run_type: IntArray
    run_name: IntArray
    name_user: IntArray
    name_family: IntArray
    """Index of the family, -1 for none."""
    users: Mapping[int | str, int]
    families: Mapping[str, int]
    names: Mapping[tuple[int | str, str], int]
    name_runs: Sequence[Sequence[int]]
    user_runs: Sequence[Sequence[int]]
    family_runs: Sequence[Sequence[int]]


def run_graph(records: Iterable[RunVertex], facts: Mapping[GpuTypeName, TypeFacts], now_seconds: float) -> RunGraph:
    """Return the graph of a site's newest runs; those that are not finite, or of types without facts, are left out."""
    types = tuple(sorted(facts))
    type_index = {name: index for index, name in enumerate(types)}
    sound = [one for one in records if one.gpu_type in type_index and _is_sound(one)]
    kept = sorted(sound, key=lambda one: -one.ended_at_seconds)[:MAX_RUNS]
    users: dict[int | str, int] = {}
    families: dict[str, int] = {}
    names: dict[tuple[int | str, str], int] = {}
    name_user: list[int] = []
    name_family: list[int] = []
    by_name: list[list[int]] = []
    by_user: list[list[int]] = []
    by_family: list[list[int]] = []
    run_x = np.zeros((len(kept), RUN_WIDTH), dtype=np.float32)
    for index, one in enumerate(kept):
        run_x[index] = _run_row(one, facts[one.gpu_type].limit_watts, now_seconds)
        user = _index(users, one.user, by_user)
        family = _index(families, one.family, by_family) if one.family else -1
        name = _index(names, (one.user, one.group), by_name)
        if name == len(name_user):
            name_user.append(user)
            name_family.append(family)
        by_name[name].append(index)
        by_user[user].append(index)
        if family >= 0:
            by_family[family].append(index)
    return RunGraph(
        types=types,
        type_x=np.array([facts[name].row for name in types], dtype=np.float32).reshape(-1, TYPE_WIDTH),
        run_x=run_x,
        run_type=np.array([type_index[one.gpu_type] for one in kept], dtype=np.int64),
        run_name=np.array([names[one.user, one.group] for one in kept], dtype=np.int64),
        name_user=np.array(name_user, dtype=np.int64),
        name_family=np.array(name_family, dtype=np.int64),
        users=users,
        families=families,
        names=names,
        name_runs=by_name,
        user_runs=by_user,
        family_runs=by_family,
    )


def _index(known: dict[_Key, int], key: _Key, lists: list[list[int]]) -> int:
    found = known.get(key)
    if found is None:
        found = known[key] = len(known)
        lists.append([])
    return found


def _is_sound(one: RunVertex) -> bool:
    figures = (one.seconds, one.watts, one.ended_at_seconds, one.slowdown, one.error)
    return all(map(isfinite, figures)) and one.seconds > 0.0 and one.watts > 0.0 and 0.2 < one.relative_clock <= 1.0


def _run_row(one: RunVertex, limit_watts: float, now_seconds: float) -> tuple[float, ...]:
    longer = 1.0 / one.relative_clock - 1.0
    tried = longer > 0.01
    return (
        max(-4.0, min(1.0, log(one.watts / limit_watts))),
        log(one.seconds / 3600.0) / 3.0,
        log(max(1, one.gpus)) / 2.0,
        min(5.0, max(0.0, now_seconds - one.ended_at_seconds) / 864_000.0),
        float(tried),
        longer if tried else 0.0,
        max(-1.0, min(2.0, one.slowdown / longer)) if tried else 0.0,
        min(2.0, one.error / longer) if tried else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptionGraph:
    """Options of some jobs, one for each GPU type, and the measurements that may tell of them."""

    option_x: FloatArray
    """[options, OPTION_WIDTH]: its GPU type's features, runs of the own name, runs of alike jobs."""
    option_user: IntArray
    """-1 where nothing is known of the user."""
    option_family: IntArray
    run_option: IntArray
    """[2, edges]: from a run to an option."""
    edge_x: FloatArray
    """[edges, EDGE_WIDTH]: same type, own name, like script, same user, how the types differ, whether it tried."""
    own_runs: IntArray
    """By job."""
    alike_runs: IntArray


def option_graph(graph: RunGraph, asks: Sequence[Ask]) -> OptionGraph:
    """Return the options of jobs on every type of the graph, in the order of jobs, then of types."""
    types = len(graph.types)
    option_x = np.zeros((len(asks) * types, OPTION_WIDTH), dtype=np.float32)
    users, families, own_counts, alike_counts = [], [], [], []
    sources: list[int] = []
    flags: list[tuple[float, float, float]] = []
    targets: list[int] = []
    for number, ask in enumerate(asks):
        own = _newest(graph.name_runs, graph.names.get((ask.user, ask.group)), MAX_OWN_RUNS)
        family = graph.families.get(ask.family, -1) if ask.family else -1
        user = graph.users.get(ask.user, -1)
        same_script = [one for one in _newest(graph.family_runs, family, 2 * MAX_ALIKE_RUNS) if one not in own]
        same_user = [one for one in _newest(graph.user_runs, user, 2 * MAX_ALIKE_RUNS) if one not in own]
        alike = dict.fromkeys(same_script[:MAX_ALIKE_RUNS] + same_user[:MAX_ALIKE_RUNS])
        scripts, persons = set(same_script), set(same_user)
        own_counts.append(len(own))
        alike_counts.append(len(alike))
        for one in (*own, *alike):
            sources.append(one)
            flags.append((float(one in own), float(one in own or one in scripts), float(one in own or one in persons)))
            targets.append(number)
        users.append(user)
        families.append(family)
        option_x[number * types : (number + 1) * types, TYPE_WIDTH:] = log1p(len(own)) / 3.0, log1p(len(alike)) / 3.0
    option_x[:, :TYPE_WIDTH] = np.tile(graph.type_x, (len(asks), 1))
    source, target = np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)
    to_type = np.tile(np.arange(types), len(source))
    run, job = np.repeat(source, types), np.repeat(target, types)
    edge_x = np.zeros((len(run), EDGE_WIDTH), dtype=np.float32)
    if len(run):
        from_type = graph.run_type[run]
        edge_x[:, 0] = from_type == to_type
        edge_x[:, 1:4] = np.repeat(np.array(flags, dtype=np.float32), types, axis=0)
        edge_x[:, 4:7] = graph.type_x[to_type] - graph.type_x[from_type]
        edge_x[:, 7] = graph.run_x[run, 4]
    return OptionGraph(
        option_x=option_x,
        option_user=np.repeat(np.array(users, dtype=np.int64), types),
        option_family=np.repeat(np.array(families, dtype=np.int64), types),
        run_option=np.stack([run, job * types + to_type]).astype(np.int64),
        edge_x=edge_x,
        own_runs=np.array(own_counts, dtype=np.int64),
        alike_runs=np.array(alike_counts, dtype=np.int64),
    )


def _newest(lists: Sequence[Sequence[int]], index: int | None, count: int) -> Sequence[int]:
    return () if index is None or index < 0 else lists[index][:count]


def clock_columns() -> FloatArray:
    """Return the features of the knots, [knots, CLOCK_WIDTH]."""
    clocks = np.array(KNOTS, dtype=np.float32)
    return np.stack([clocks, 1.0 / clocks - 1.0, clocks**3], axis=1).astype(np.float32)
