"""The twin of a site, made from its database: nodes, partitions, users, names and jobs, and what it measured of them.

GPUs draw what the site's drew. The names that spent most energy are kinds of work of their own, with their own power;
where they ran at two clocks they answer to a clock as their runs did, else as the package's programs do.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from statistics import median
from typing import TypeVar

from slurm_energy.config import Config
from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import GpuTypeName, JobId
from slurm_energy.errors import TrainingError
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.evaluation.gate.twin_score import PredictedDay, TwinRuns, device_of
from slurm_energy.evaluation.replay import replay_kinds, workload_of_states, world_of_states
from slurm_energy.files import write_atomically
from slurm_energy.learning.nightly.history import DAY_SECONDS, SiteHistory
from slurm_energy.learning.nightly.name_clocks import NameDraw, NameResponse, name_draws, name_responses
from slurm_energy.policy.candidate import CandidatePolicy
from slurm_energy.store.site_history import ClockedRun
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.workloads.csv_file import write_csv
from slurm_energy.twin.world import World
from slurm_energy.twin.world.device_model import DeviceModel, Load
from slurm_energy.twin.world.file import load_world
from slurm_energy.twin.world.writer import world_to_toml

T = TypeVar("T")

WORLD_FILE = "world.toml"
LEARNED_FILE = "learned-from.csv"
HELD_OUT_FILE = "held-out.csv"
JUDGED_FILE = "judged.csv"
MIN_CALIBRATING_RUNS = 20
"""Of a GPU type, so that its measured watts take the place of the package's."""
MAX_NAMED_KINDS = 40
"""Names with the most energy, that are kinds of their own: each makes every replay a little slower."""
LAST_DAYS = 7.0
"""That the twin is held against."""
MIN_DAY_JOBS = 5
_MAX_FACTOR = 4.0
"""Beyond it a reading is not a matter of calibration: another board, or the wrong GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFiles:
    """The files that a comparison is made with."""

    world: Path
    learned_from: Path
    held_out: Path
    """Of the check that ends the search."""
    judged: Path
    """Later ones, for the gate alone."""
    learned_jobs: int
    held_out_jobs: int
    power_factors: Mapping[str, float]
    """By GPU type: measured watts over the model's."""
    named_kinds: int
    """Names that draw what their own runs drew."""
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedKind:
    """A name that is a kind of work of its own in the twin."""

    kind: str
    draws: Mapping[GpuTypeName, NameDraw]
    responses: Mapping[GpuTypeName, NameResponse]
    """Where its runs had two clocks."""


NamedKinds = Mapping[tuple[int, str], NamedKind]
"""By user and group of jobs."""


def build_twin(history: SiteHistory, folder: Path, max_jobs: int) -> ReplayFiles:
    """Write the site's world, its jobs before the split, and two stretches after it.

    Args:
        history: The site's.
        folder: For the files.
        max_jobs: In each of the three: the newest before the split, and the first of each half of those after it.

    Raises:
        TrainingError: too few jobs can be replayed.
        WorkloadError: no cluster can be made of them.
    """
    seen = world_of_states(history.states, history.cluster or "site", f"database of cluster {history.cluster}")
    factors = power_factors(history.runs, seen.world)
    named = named_kinds(history.runs)
    world = replace(with_kinds(calibrated(seen.world, factors), named), knowledge="site")
    path = folder / WORLD_FILE
    write_atomically(path, world_to_toml(world).encode(), mode=0o644)
    world = load_world(path)
    learned = history.learned_from[-max_jobs:]
    later = sorted(history.held_out, key=lambda state: state.submitted_at_seconds)
    held_out, judged = later[: len(later) // 2][:max_jobs], later[len(later) // 2 :][:max_jobs]
    counts = []
    for states, name in ((learned, LEARNED_FILE), (held_out, HELD_OUT_FILE), (judged, JUDGED_FILE)):
        counts.append(_write(states, world, named, folder / name))
    if min(counts) < 1:
        raise TrainingError(
            f"{counts[0]} jobs before, {counts[1]} after the split and {counts[2]} later ones for the gate can be "
            "replayed: at least one of each is needed"
        )
    return ReplayFiles(
        world=path,
        learned_from=folder / LEARNED_FILE,
        held_out=folder / HELD_OUT_FILE,
        judged=folder / JUDGED_FILE,
        learned_jobs=counts[0],
        held_out_jobs=counts[1],
        power_factors=factors,
        named_kinds=len(named),
        assumptions=seen.assumptions,
    )


def last_week(
    history: SiteHistory, twin: ReplayFiles, incumbent: CandidatePolicy, config: Config
) -> tuple[PredictedDay, ...]:
    """Return the energy of each of the last days: measured, and what the twin makes of those jobs.

    Of jobs with a reading beyond doubt alone. The twin has the live policy decide them, whichever did, and runs each as
    long as its node measured it: what Slurm adds for prologs is on no counter.
    """
    until = history.states[-1].ended_at_seconds or 0.0
    # Device time may run faster than the wall, as in a laboratory: the twin's does not.
    readings = {
        (run.user_id, run.name, run.ended_at_seconds): (run.joules * run.seconds / run.device_seconds, run.seconds)
        for run in history.runs
        if run.ended_at_seconds > until - LAST_DAYS * DAY_SECONDS
    }
    measured = {}
    states: list[JobState] = []
    for state in reversed(history.states):
        ended = state.ended_at_seconds or 0.0
        reading = readings.get((state.user_id, state.name, ended))
        if reading is not None and state.job_id not in measured and len(states) < config.nightly.replayed_jobs:
            joules, seconds = reading
            measured[state.job_id] = (int(ended // DAY_SECONDS), joules)
            began = max(state.started_at_seconds or 0.0, ended - seconds)
            states.append(replace(state, started_at_seconds=began))
    if not states:
        return ()
    world = load_world(twin.world)
    runs = TwinRuns(
        world=world,
        make_workload=lambda _: _workload(states, world, named_kinds(history.runs), "last-week"),
        config=config,
        user_ids={state.user_name: state.user_id for state in states},
    )
    outcome, _ = runs.replay(incumbent, 0)
    days: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for job_id, made, end in zip(outcome.job_id, outcome.energy_joules, outcome.state, strict=True):
        if end == "COMPLETED" and JobId(int(job_id)) in measured:
            day, found = measured[JobId(int(job_id))]
            days[day].append((float(made), found))
    return tuple(
        PredictedDay(twin_joules=sum(made for made, _ in pairs), measured_joules=sum(found for _, found in pairs))
        for _, pairs in sorted(days.items())
        if len(pairs) >= MIN_DAY_JOBS
    )


def _write(states: Sequence[JobState], world: World, named: NamedKinds, path: Path) -> int:
    found = _workload(states, world, named, path.name)
    if found.jobs:
        write_csv(found, path)
    return len(found.jobs)


def _workload(states: Sequence[JobState], world: World, named: NamedKinds, name: str) -> Workload:
    """Return the jobs for the site's twin, those of names with kinds of their own as such."""
    found = workload_of_states(states, world, PurePath(name), skip_bad=True)
    numbers = {state.user_name: state.user_id for state in states}
    for job in found.jobs:
        own = named.get((numbers.get(job.user, -1), job_group(job.name, None)))
        device = None if own is None else device_of(next(iter(own.draws)), world)
        if own is not None and device is not None and job.kind in device.loads:
            # As long at the default clock as the kind that it was taken for.
            units = device.loads[job.kind].seconds_per_unit[-1] / device.loads[own.kind].seconds_per_unit[-1]
            job.true_units, job.estimated_units = job.true_units * units, job.estimated_units * units
            job.kind = own.kind
    return found


def named_kinds(runs: Sequence[ClockedRun]) -> NamedKinds:
    """Return the names that are kinds of their own: those that spent most energy."""
    draws: dict[tuple[int, str], dict[GpuTypeName, NameDraw]] = defaultdict(dict)
    for draw in name_draws(runs):
        draws[draw.user_id, draw.group][draw.gpu_type] = draw
    responses: dict[tuple[int, str], dict[GpuTypeName, NameResponse]] = defaultdict(dict)
    for response in name_responses(runs):
        responses[response.user_id, response.group][response.gpu_type] = response
    most = sorted(draws, key=lambda name: (-sum(one.joules for one in draws[name].values()), name))
    return {
        name: NamedKind(kind=f"name-{number}", draws=draws[name], responses=responses.get(name, {}))
        for number, name in enumerate(most[:MAX_NAMED_KINDS], start=1)
    }


def with_kinds(world: World, named: NamedKinds) -> World:
    """Return the world with a load of each named kind on every GPU; where it was not measured, the usual one."""
    usual = replay_kinds(world)[0].name
    devices = dict(world.devices)
    for own in named.values():
        draws = _by_device(own.draws, world)
        responses = _by_device(own.responses, world)
        for name, device in devices.items():
            base = device.loads.get(usual) or next(iter(device.loads.values()), None)
            if base is None:
                continue
            load = base
            if name in responses:
                load = _answering(device, base, responses[name])
            elif name in draws:
                load = _drawing(device, base, draws[name])
            devices[name] = replace(device, loads={**device.loads, own.kind: load})
    return replace(world, devices=devices)


def _by_device(found: Mapping[GpuTypeName, T], world: World) -> dict[str, T]:
    devices = ((device_of(gpu_type, world), one) for gpu_type, one in found.items())
    return {device.name: one for device, one in devices if device is not None}


def _answering(device: DeviceModel, base: Load, response: NameResponse) -> Load:
    """Return a load that answers to each clock as a name's runs did; at the default clock it takes the usual time."""
    highest = device.relative_clocks[-1]
    clocks = [clock / highest for clock in device.relative_clocks]
    return replace(
        base,
        watts=tuple(response.default_watts * response.power_at(clock) for clock in clocks),
        seconds_per_unit=tuple(base.seconds_per_unit[-1] * response.time_at(clock) for clock in clocks),
    )


def _drawing(device: DeviceModel, base: Load, draw: NameDraw) -> Load:
    """Return the usual load, drawing at the clock of a name's runs what they drew."""
    highest = device.relative_clocks[-1]
    clocks = device.relative_clocks
    nearest = min(range(len(clocks)), key=lambda index: abs(clocks[index] / highest - draw.relative_clock))
    factor = draw.watts / max(base.watts[nearest], 1e-9)
    return replace(base, watts=tuple(watt * factor for watt in base.watts))


def power_factors(runs: Sequence[ClockedRun], world: World) -> dict[str, float]:
    """Return by how much the GPUs of each type drew more than the world says, as a median over names.

    Only runs near the default clock count, of types with enough of them.
    """
    by_type: dict[str, dict[tuple[int, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.sm_clock_mhz >= 0.97 * run.default_clock_mhz:
            watts = run.joules / run.device_seconds / run.gpus
            by_type[run.gpu_type][run.user_id, run.name].append(watts)
    found = {}
    for gpu_type, names in by_type.items():
        device = device_of(gpu_type, world)
        if device is None or sum(map(len, names.values())) < MIN_CALIBRATING_RUNS:
            continue
        model = median(load.watts[-1] for load in device.loads.values())
        factor = median(median(values) for values in names.values()) / model
        if 1.0 / _MAX_FACTOR < factor < _MAX_FACTOR:
            found[gpu_type] = factor
    return found


def calibrated(world: World, factors: Mapping[str, float]) -> World:
    """Return the world with the measured power of its devices; idle power stays."""
    devices = dict(world.devices)
    for gpu_type, factor in factors.items():
        device = device_of(gpu_type, world)
        if device is not None:
            loads = {
                kind: replace(load, watts=tuple(watt * factor for watt in load.watts))
                for kind, load in device.loads.items()
            }
            devices[device.name] = replace(device, loads=loads)
    return replace(world, devices=devices)
