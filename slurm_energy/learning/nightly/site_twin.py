"""The twin of a site, made from its database: nodes, partitions, users, names and jobs, and the watts it measured."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from statistics import median

from slurm_energy.domain.cluster import JobState
from slurm_energy.energy_model.catalog import gpu_type_from_slurm_type
from slurm_energy.errors import TrainingError
from slurm_energy.evaluation.replay import workload_of_states, world_of_states
from slurm_energy.files import write_atomically
from slurm_energy.learning.nightly.history import SiteHistory
from slurm_energy.store.site_history import ClockedRun
from slurm_energy.twin.workloads.csv_file import write_csv
from slurm_energy.twin.world import World
from slurm_energy.twin.world.device_model import DeviceModel
from slurm_energy.twin.world.file import load_world
from slurm_energy.twin.world.writer import world_to_toml

WORLD_FILE = "world.toml"
LEARNED_FILE = "learned-from.csv"
HELD_OUT_FILE = "held-out.csv"
JUDGED_FILE = "judged.csv"
MIN_CALIBRATING_RUNS = 20
"""Of a GPU type, so that its measured watts take the place of the package's."""
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
    assumptions: tuple[str, ...]


def build_twin(history: SiteHistory, folder: Path, max_jobs: int) -> ReplayFiles:
    """Write the site's world, its jobs before the split, and and two stretches after it.

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
    world = replace(calibrated(seen.world, factors), knowledge="site")
    path = folder / WORLD_FILE
    write_atomically(path, world_to_toml(world).encode(), mode=0o644)
    world = load_world(path)
    learned = history.learned_from[-max_jobs:]
    later = sorted(history.held_out, key=lambda state: state.submitted_at_seconds)
    held_out, judged = later[: len(later) // 2][:max_jobs], later[len(later) // 2 :][:max_jobs]
    counts = []
    for states, name in ((learned, LEARNED_FILE), (held_out, HELD_OUT_FILE), (judged, JUDGED_FILE)):
        counts.append(_write(states, world, folder / name))
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
        assumptions=seen.assumptions,
    )


def _write(states: Sequence[JobState], world: World, path: Path) -> int:
    found = workload_of_states(states, world, PurePath(path.name), skip_bad=True)
    if found.jobs:
        write_csv(found, path)
    return len(found.jobs)


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


def device_of(gpu_type: str, world: World) -> DeviceModel | None:
    """Return the world's device that stands for a GPU type."""
    known = gpu_type_from_slurm_type(gpu_type) or gpu_type
    return next(
        (device for name, device in world.devices.items() if known == name or known.startswith(f"{name}-")), None
    )
