"""A site's own history as a comparison's jobs, and the cluster that the history shows."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from pathlib import Path, PurePath

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import expand_hostlist
from slurm_energy.energy_model.catalog import gpu_type_from_slurm_type
from slurm_energy.errors import ValueRangeError, WorkloadError
from slurm_energy.slurm.conversion import Converted
from slurm_energy.slurm.convert_accounting import convert_accounting, without_repeats
from slurm_energy.slurm.sacct_parsable import convert_parsable
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.workloads.accounting import workload_of_accounting
from slurm_energy.twin.workloads.formats import recognised_format
from slurm_energy.twin.workloads.replay import LoadOptions, ReplayKind, kinds_of_device
from slurm_energy.twin.world import Partition, Pool, World
from slurm_energy.twin.world.device_model import DeviceModel
from slurm_energy.twin.world.file import shipped_world

MODEL_WORLD = "philly-a100"
MODEL_POOL = "a100"
"""The pool of the package's worlds whose devices and hosts stand for GPUs of which the accounting says nothing, or of a
type that the world has no device for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWorld:
    """A world made from an accounting."""

    world: World
    assumptions: tuple[str, ...]
    """What the accounting does not say, a sentence each."""


def accounting_states(path: Path, *, skip_bad: bool) -> Converted[JobState]:
    """Return the jobs of a file with the output of `sacct --json` or `sacct -P`.

    Raises:
        SlurmError: it is neither.
        WorkloadError: it cannot be read, or has bad rows that are not to be skipped.
    """
    return _states(path, skip_bad)


@lru_cache(maxsize=1)
def _states(path: Path, skip_bad: bool) -> Converted[JobState]:
    first_bad: list[str] = []

    def note(line: int, column: str, value: str, reason: str) -> None:
        first_bad.append(f"line {line}, column {column}, value {value[:64]!r}: {reason}")

    form = recognised_format(path)
    if form not in ("sacct-json", "sacct-text"):
        raise WorkloadError(
            f"{str(path)!r} is not the output of sacct --json or sacct -P but {form}: try `arena run --workload`"
        )
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
        converted = _of_documents(text) if form == "sacct-json" else convert_parsable(text, on_bad=note)
    except (OSError, ValueError, RecursionError) as error:
        raise WorkloadError(f"accounting {str(path)!r} cannot be read: {error}") from error
    if converted.skipped_rows and not skip_bad:
        reasons = first_bad[:1] or [f"{count} rows: {reason}" for reason, count in converted.skipped.items()]
        raise WorkloadError(f"accounting {str(path)!r}, {reasons[0]}; --skip-bad leaves such rows out and counts them")
    return converted


def _of_documents(text: str) -> Converted[JobState]:
    """Return the jobs of one or several answers of `sacct --json`, one behind the other."""
    decode = json.JSONDecoder(strict=False).raw_decode
    items: list[JobState] = []
    skipped: Counter[str] = Counter()
    rest = text.lstrip()
    while rest:
        document, end = decode(rest)
        found = convert_accounting(document)
        items += found.items
        skipped.update(found.skipped)
        rest = rest[end:].lstrip()
    return Converted(items=without_repeats(items), skipped=dict(skipped))


def replay_workload(path: Path, world: World, *, skip_bad: bool) -> Workload:
    """Return the jobs of an accounting for a world; they keep their partitions where the world has all of them.

    Raises:
        SlurmError, WorkloadError: see `accounting_states`; or no job can be replayed.
    """
    converted = accounting_states(path, skip_bad=skip_bad)
    found = workload_of_states(converted.items, world, path, skip_bad=skip_bad, bad_rows=converted.skipped_rows)
    if not found.jobs:
        raise WorkloadError(f"accounting {str(path)!r} has no job with GPUs that ran and ended ({found.source})")
    return found


def workload_of_states(
    states: Sequence[JobState], world: World, source: PurePath, *, skip_bad: bool, bad_rows: int = 0
) -> Workload:
    """Return the jobs of an accounting, or of a database, for a world, as `replay_workload` does; it may have none.

    Raises:
        WorkloadError: a job cannot be, and bad ones are not to be skipped.
    """
    known = {partition.name for partition in world.partitions}
    named = {name for state in states if state.gpu_count for name in state.partitions}
    devices = {name: world.devices[device] for name, device in _devices(states, world).items()}
    options = LoadOptions(
        skip_bad=skip_bad,
        kinds=replay_kinds(world),
        kinds_by_gpu_type={name: kinds_of_device(device) for name, device in devices.items()},
        device_by_gpu_type={name: device.name for name, device in devices.items()},
        devices_by_partition={
            partition.name: frozenset(pool.device for pool in world.pools if pool.name in partition.pools)
            for partition in world.partitions
        },
        keep_partitions=named <= known,
    )
    return workload_of_accounting(states, options, source=source, bad_rows=bad_rows)


def reference_device(world: World) -> DeviceModel:
    """Return the device whose default clock the run times of a trace are taken for: the GPU of the first pool."""
    devices = [world.devices[pool.device] for pool in world.pools]
    return next((device for device in devices if not device.is_cpu and device.loads), devices[0])


def replay_kinds(world: World) -> tuple[ReplayKind, ...]:
    """Return the kinds of work that a trace may be taken for, the world's own first."""
    kinds = kinds_of_device(reference_device(world))
    settings = world.workload_settings
    own = str(settings.get("kind") or settings.get("kinds") or "").split(",")[0].strip()
    return tuple(sorted(kinds, key=lambda kind: kind.name != own))


def world_of_accounting(path: Path, *, skip_bad: bool) -> SeenWorld:
    """Return the cluster that an accounting shows: partitions, and pools of GPUs wide enough for what ran at once.

    Partitions that share a node share a pool.

    Raises:
        SlurmError, WorkloadError: see `accounting_states`; or no job with GPUs is in it.
    """
    found = accounting_states(path, skip_bad=skip_bad).items
    if not any(map(_held_gpus, found)):
        blind = bool(found) and all(state.gpu_count is None for state in found)
        advice = ": no column tells GPUs, add AllocTRES to sacct's --format" if blind else ""
        raise WorkloadError(
            f"accounting {str(path)!r} has no job that held GPUs{advice}: no cluster can be made from it"
        )
    return world_of_states(found, path.stem, f"made from {path.name}")


def world_of_states(found: Iterable[JobState], name: str, source: str) -> SeenWorld:
    """Return the cluster that ended jobs show, as `world_of_accounting` does.

    Raises:
        WorkloadError: none of them held GPUs.
    """
    states = [state for state in found if _held_gpus(state)]
    if not states:
        raise WorkloadError(f"{name} has no job that held GPUs: no cluster can be made from it")
    model = shipped_world(MODEL_WORLD)
    device_of = _devices(states, model)
    pools: list[Pool] = []
    partitions: list[Partition] = []
    for names in _groups(states):
        members = [state for state in states if set(_partitions(state)) & set(names)]
        own = _pools(names, members, device_of, model)
        pools += own
        partitions += [Partition(name=name, pools=tuple(pool.name for pool in own)) for name in names]
    world = World(
        name=name,
        devices={pool.device: model.devices[pool.device] for pool in pools},
        pools=tuple(pools),
        partitions=tuple(partitions),
        discipline=model.discipline,
        backfill_interval_seconds=model.backfill_interval_seconds,
        backfill_depth=model.backfill_depth,
        launch_seconds=model.launch_seconds,
        workload_settings=model.workload_settings,
        source=source,
    )
    kind = replay_kinds(world)[0].name
    return SeenWorld(
        world=world,
        assumptions=(
            *(
                f"pool {pool.name}: {pool.nodes} nodes with {pool.gpus_per_node} GPUs, the most that was used at once"
                for pool in pools
            ),
            *_device_words(states, device_of),
            f"hosts are taken for those of world {MODEL_WORLD}: the accounting does not say what they draw",
            (
                f"every job is taken for work of kind {kind}, unless its name or account is a kind's name, and its "
                "run time for that at the default clock"
            ),
            "nodes are never suspended",
        ),
    )


def _devices(states: Iterable[JobState], world: World) -> dict[str, str]:
    """Return the world's device for each GRES type of some jobs; a type that none of them is has none."""
    types = {name for state in states for name in state.gpu_types}
    found: dict[str, str] = {}
    for name in sorted(types):
        known = gpu_type_from_slurm_type(name)
        matches = [device for device in world.devices if device == known or (known or "").startswith(f"{device}-")]
        if name in world.devices or matches:
            found[name] = name if name in world.devices else matches[0]
    return found


def _device_words(states: Sequence[JobState], device_of: Mapping[str, str]) -> Iterator[str]:
    """Yield what stands for each GPU type that the accounting names, and for those that it does not name."""
    for name in sorted({name for state in states for name in state.gpu_types}):
        if name in device_of:
            yield f"GPUs of type {name} are taken for {device_of[name]}"
        else:
            yield f"GPUs of type {name} are taken for {MODEL_POOL}: no device of world {MODEL_WORLD} is one"
    untyped = sum(not state.gpu_types for state in states)
    if untyped:
        every = "every GPU is" if untyped == len(states) else f"the GPUs of {untyped} jobs are"
        yield f"{every} taken for {MODEL_POOL}: the accounting does not name their type"


def _held_gpus(state: JobState) -> bool:
    return bool(state.gpu_count) and state.started_at_seconds is not None and state.ended_at_seconds is not None


def _partitions(state: JobState) -> tuple[str, ...]:
    return tuple(str(name) for name in state.partitions) or ("all",)


def _nodes(state: JobState) -> tuple[str, ...]:
    try:
        return expand_hostlist(state.nodes)
    except ValueRangeError:
        return ()


def _groups(states: Sequence[JobState]) -> list[tuple[str, ...]]:
    """Return sets of partitions that are joined by common nodes, in the order of their first job."""
    group_of: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    seen: dict[str, None] = {}
    for state in states:
        names = _partitions(state)
        joined = [*names, *(owner.setdefault(node, names[0]) for node in _nodes(state))]
        merged: list[str] = []
        for name in joined:
            merged += [known for known in group_of.get(name, [name]) if known not in merged]
        seen.update(dict.fromkeys(names))
        merged.sort(key=list(seen).index)
        group_of.update(dict.fromkeys(merged, merged))
    unique: dict[int, tuple[str, ...]] = {}
    for members in group_of.values():
        unique.setdefault(id(members), tuple(members))
    return list(unique.values())


def _pools(names: Sequence[str], states: Sequence[JobState], device_of: Mapping[str, str], model: World) -> list[Pool]:
    """Return one pool for each device that the jobs of some partitions held; jobs without a type go to the first."""
    members: dict[str, list[JobState]] = defaultdict(list)
    for state in states:
        for device in dict.fromkeys(device_of.get(name, MODEL_POOL) for name in state.gpu_types):
            members[device].append(state)
    untyped = [state for state in states if not state.gpu_types]
    if untyped:
        members[next(iter(members), MODEL_POOL)] += untyped
    return [
        _pool(
            names[0] if len(members) == 1 else f"{names[0]}-{device}",
            own,
            next(pool for pool in model.pools if pool.device == device),
        )
        for device, own in members.items()
    ]


def _pool(name: str, states: Sequence[JobState], template: Pool) -> Pool:
    per_node = max(ceil((state.gpu_count or 0) / max(1, state.node_count)) for state in states)
    seen = {node for state in states for node in _nodes(state)}
    nodes = max(1, len(seen), ceil(_max_at_once(states) / per_node))
    return replace(
        template,
        name=name,
        nodes=nodes,
        gpus_per_node=per_node,
        cpus_per_node=0,
        memory_gib_per_node=float("inf"),
        host_idle_watts=template.host_idle_watts * per_node / template.gpus_per_node,
        host_busy_watts=template.host_busy_watts * per_node / template.gpus_per_node,
        suspend=None,
    )


def _max_at_once(states: Iterable[JobState]) -> int:
    """Return the most GPUs that were held at one time; what ends frees its GPUs before what starts then."""
    changes: dict[float, list[int]] = defaultdict(lambda: [0, 0])
    for state in states:
        gpus = state.gpu_count or 0
        start, end = state.started_at_seconds or 0.0, state.ended_at_seconds or 0.0
        if end > start:
            changes[start][1] += gpus
            changes[end][0] += gpus
    held = most = 0
    for _, (freed, taken) in sorted(changes.items()):
        held += taken - freed
        most = max(most, held)
    return most
