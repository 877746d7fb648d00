"""What an agent sees at a decision: arrays of fixed shape, every figure scaled into [-1, 1], no absolute time.

The same as a heterogeneous graph for torch_geometric; it and torch are loaded when the first graph is made.
docs/reference/environment.md has each feature's formula.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from math import cos, inf, log2, log10, pi, sin
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slurm_energy.errors import ConfigError
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.places import Place
from slurm_energy.twin.engine.sampling import DAY_SECONDS
from slurm_energy.twin.environment.choices import ActionSizes, ChoiceCosts, Choices
from slurm_energy.twin.world import Series, World

FloatArray = NDArray[np.float32]
Arrays = dict[str, FloatArray]

PLACE_FEATURES: Final = (
    "free_share",
    "room_share",
    "total_devices",
    "waiting_jobs",
    "joules_per_unit",
    "seconds_per_unit",
    "free_watts",
    "suspended_share",
    "wake_joules",
    "carbon",
    "price",
    "is_cpu",
    "can_run",
)
JOB_FEATURES: Final = (
    "is_present",
    "run_seconds",
    "energy",
    "least_devices",
    "most_devices",
    "counts",
    "waited_seconds",
    "has_deadline",
    "deadline_slack",
    "has_limit",
    "limit_slack",
    "max_slowdown",
)
CLUSTER_FEATURES: Final = (
    "power",
    "has_budget",
    "power_of_budget",
    "occupancy",
    "waiting_jobs",
    "running_jobs",
    "carbon",
    "price",
    "hour_sine",
    "hour_cosine",
)
OPTION_FEATURES: Final = ("is_legal", "devices", "joules_per_unit", "seconds_per_unit", "relative_clock")

_MAX_TABLES = 512
_DEVICE_OCTAVES = 10.0
_SECONDS_DECADES = 6.0
_JOB_DECADES = 4.0
_ENERGY_DECADES = 3.0


class Observer:
    """Makes the observations of one environment."""

    def __init__(self, world: World, places: Sequence[Place], sizes: ActionSizes, scale_joules: float) -> None:
        """Work out what does not change.

        Args:
            world: The cluster.
            places: Its places.
            sizes: Of the action space.
            scale_joules: Energy of a typical job.
        """
        self._sizes, self._scale_joules, self._places = sizes, scale_joules, places
        self._fixed = _fixed_place_features(places)
        self._total = np.array([place.pool.nodes * place.pool.gpus_per_node for place in places], dtype=np.float64)
        self._nodes = np.array([place.pool.nodes for place in places], dtype=np.float64)
        self._sleeps = [place.pool.suspend is not None for place in places]
        self._relative_clocks = _relative_clocks(places)
        self._peak_watts = peak_watts(world)
        self._has_waking = any(self._sleeps)
        self._max_carbon = _largest(world.carbon_grams_per_kwh)
        self._max_price = _largest(world.price_per_kwh)
        self._num_devices = sum(pool.nodes * pool.gpus_per_node for pool in world.pools)
        self._options: dict[ChoiceCosts, FloatArray] = {}
        """Option features of jobs without bounds, legality left out."""

    def begin(self) -> None:
        """Start a run: its option tables are new ones."""
        self._options.clear()

    def space(self) -> spaces.Dict:
        """Return the space of the arrays."""
        sizes = self._sizes
        shapes = {
            "places": (sizes.places, len(PLACE_FEATURES)),
            "options": (sizes.wait, len(OPTION_FEATURES)),
            "job": (len(JOB_FEATURES),),
            "cluster": (len(CLUSTER_FEATURES),),
        }
        return spaces.Dict({name: spaces.Box(-1.0, 1.0, shape, np.float32) for name, shape in shapes.items()})

    def arrays(self, job: Job | None, choices: Choices | None, view: TwinView) -> Arrays:
        """Return the observation: `places`, `options`, `job` and `cluster`.

        Args:
            job: The job in question, None at the end of a run.
            choices: Its choices; options are 0 without.
            view: The cluster.
        """
        places = self._place_features(job, choices, view)
        return {
            "places": places,
            "options": self._option_features(choices),
            "job": _clipped(self._job_features(job, choices, view.now_seconds)),
            "cluster": _clipped(self._cluster_features(places, view)),
        }

    def _place_features(self, job: Job | None, choices: Choices | None, view: TwinView) -> FloatArray:
        found = self._fixed.copy()
        free = np.array(view.free_gpus, dtype=np.float64)
        found[:, 0] = free / self._total
        found[:, 3] = np.log10(1.0 + np.array(view.waiting_by_place())) / _JOB_DECADES
        if self._has_waking:
            asleep = [view.pools[place.pool_index].suspended_nodes for place in self._places]
            found[:, 7] = np.array(asleep) / self._nodes
        if self._max_carbon > 0.0:
            found[:, 9] = [view.carbon_grams_per_kwh(place.index) / self._max_carbon for place in self._places]
        if self._max_price > 0.0:
            found[:, 10] = [view.price_per_kwh(place.index) / self._max_price for place in self._places]
        if job is not None and choices is not None:
            costs = choices.costs
            found[:, 1] = np.array(choices.room) / costs.gpu_counts[-1]
            found[:, 4] = costs.place_joules_level
            found[:, 5] = costs.place_seconds_level
            if self._has_waking:
                found[:, 8] = self._wake_levels(costs.gpu_counts[0], view)
            found[list(view.allowed_places(job)), 12] = 1.0
        return _clipped(found)

    def _wake_levels(self, gpus: int, view: TwinView) -> NDArray[np.float64]:
        """Return by place the energy of waking for the job's least devices: w / (w + that of a typical job)."""
        joules = np.array(
            [view.wakeup_joules(index, gpus) if sleeps else 0.0 for index, sleeps in enumerate(self._sleeps)]
        )
        return joules / (joules + self._scale_joules)

    def _option_features(self, choices: Choices | None) -> FloatArray:
        if choices is None:
            return np.zeros((self._sizes.wait, len(OPTION_FEATURES)), dtype=np.float32)
        if choices.is_bound and self._sizes.clocks == 1:
            found = self._costs_of_options(choices)
        else:
            known = self._options.get(choices.costs)
            if known is None:
                if len(self._options) >= _MAX_TABLES:
                    self._options.clear()
                known = self._options[choices.costs] = self._costs_of_options(choices)
            found = known.copy()
        found[:, 0] = choices.legal.ravel()
        return found

    def _costs_of_options(self, choices: Choices) -> FloatArray:
        """Return the option features without legality."""
        sizes, costs = self._sizes, choices.costs
        found = np.zeros((sizes.places, sizes.counts, sizes.clocks, len(OPTION_FEATURES)), dtype=np.float32)
        known = len(costs.gpu_counts)
        found[:, :known, :, 1] = (np.log2(costs.gpus[:known]) / _DEVICE_OCTAVES)[:, None]
        found[..., 2] = np.take_along_axis(costs.joules_level, choices.clocks, axis=2)
        found[..., 3] = np.take_along_axis(costs.seconds_level, choices.clocks, axis=2)
        found[..., 4] = self._relative_clocks[np.arange(sizes.places)[:, None, None], choices.clocks]
        return _clipped(found.reshape(sizes.wait, len(OPTION_FEATURES)))

    def _job_features(self, job: Job | None, choices: Choices | None, now: float) -> list[float]:
        if job is None or choices is None:
            return [0.0] * len(JOB_FEATURES)
        costs, units = choices.costs, job.estimated_units
        fastest = units * costs.fastest_seconds
        energy = units * costs.cheapest_joules / self._scale_joules
        return [
            1.0,
            log10(1.0 + fastest) / _SECONDS_DECADES,
            log10(energy) / _ENERGY_DECADES if energy > 0.0 else -1.0,
            log2(costs.gpu_counts[0]) / _DEVICE_OCTAVES,
            log2(costs.gpu_counts[-1]) / _DEVICE_OCTAVES,
            len(costs.gpu_counts) / self._sizes.counts,
            log10(1.0 + max(0.0, now - job.submitted_seconds)) / _SECONDS_DECADES,
            float(job.deadline_seconds < inf),
            _slack(job.deadline_seconds - now, fastest),
            float(job.time_limit_seconds < inf),
            _slack(job.time_limit_seconds, fastest),
            min(1.0, job.max_slowdown),
        ]

    def _cluster_features(self, places: FloatArray, view: TwinView) -> list[float]:
        power, budget = view.power_watts, view.power_budget_watts
        free = running = 0
        for pool in view.pools:
            free += pool.free_total
            running += len(pool.runs)
        turn = 2.0 * pi * (view.now_seconds / DAY_SECONDS % 1.0)
        return [
            power / self._peak_watts,
            float(budget < inf),
            0.0 if budget == inf else _slack(budget, power),
            1.0 - free / self._num_devices,
            log10(1.0 + view.num_waiting) / _JOB_DECADES,
            log10(1.0 + running) / _JOB_DECADES,
            float(places[:, 9].mean()) if self._max_carbon else 0.0,
            float(places[:, 10].mean()) if self._max_price else 0.0,
            sin(turn),
            cos(turn),
        ]


def peak_watts(world: World) -> float:
    """Return what the cluster would draw with every device at its hungriest load and clock, hosts included."""
    found = 0.0
    for pool in world.pools:
        device = world.devices[pool.device]
        most = max((max(load.watts) for load in device.loads.values()), default=device.free_watts)
        found += pool.nodes * (pool.gpus_per_node * most + pool.host_busy_watts)
    return found if found > 0.0 else 1.0


def _fixed_place_features(places: Sequence[Place]) -> FloatArray:
    """Return the place features with what never changes filled in; costs of no job are those of the dearest."""
    found = np.zeros((len(places), len(PLACE_FEATURES)), dtype=np.float32)
    most = max((place.device.free_watts for place in places), default=0.0)
    for row, place in zip(found, places, strict=True):
        row[2] = log2(place.pool.nodes * place.pool.gpus_per_node) / (2.0 * _DEVICE_OCTAVES)
        row[4] = row[5] = 1.0
        row[6] = place.device.free_watts / most if most > 0.0 else 0.0
        row[11] = float(place.device.is_cpu)
    return found


def _relative_clocks(places: Sequence[Place]) -> FloatArray:
    """Return each place's clocks over its highest, [places, clocks]; 0 beyond its grid."""
    found = np.zeros((len(places), max(len(place.device.relative_clocks) for place in places)), dtype=np.float32)
    for row, place in zip(found, places, strict=True):
        clocks = np.array(place.device.relative_clocks)
        row[: len(clocks)] = clocks / clocks.max()
    return found


def _slack(bound: float, needed: float) -> float:
    """Return (bound - needed) / (|bound| + needed): 1 for no bound, 0 when it just fits, -1 when it is past."""
    if bound == inf:
        return 1.0
    whole = abs(bound) + needed
    return (bound - needed) / whole if whole > 0.0 else 0.0


def _largest(series_by_region: Mapping[str, Series]) -> float:
    return max((abs(value) for series in series_by_region.values() for value in series.values), default=0.0)


def _clipped(values: Sequence[float] | FloatArray) -> FloatArray:
    found = np.asarray(values, dtype=np.float32)
    return np.minimum(1.0, np.maximum(-1.0, found, out=found), out=found)


NODE_TYPES = ("cluster", "place", "job", "option")


class GraphSpace(spaces.Space[Any]):
    """The space of graphs with these vertex types; it knows members and cannot draw any."""

    def __init__(self) -> None:
        """Store nothing: the number of options differs from graph to graph."""
        super().__init__(shape=None, dtype=None)

    @property
    def is_np_flattenable(self) -> bool:
        """A graph has no fixed length."""
        return False

    def contains(self, x: Any) -> bool:
        """Return whether a value is such a graph."""
        return set(getattr(x, "node_types", ())) == set(NODE_TYPES)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Refuse: graphs come from runs.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("graphs of a cluster cannot be drawn at random: take them from reset and step")


def require_torch_geometric() -> None:
    """Check that graphs can be made.

    Raises:
        ConfigError: torch_geometric or torch cannot be imported.
    """
    try:
        import_module("torch")
        import_module("torch_geometric")
    except ImportError as error:
        raise ConfigError(
            f'observation="graph" needs torch and torch_geometric: {error}; install them, or take observation="arrays"'
        ) from error


def graph_of(arrays: Arrays, mask: NDArray[np.int8], sizes: ActionSizes) -> Any:
    """Return an observation as a HeteroData.

    Vertices: `cluster` (1), `place` (all), `job` (1), `option` (one for every legal placement, with the number of its
    action in `action`). Edges: job to its options, options to their place, places to the cluster, and each backwards.

    Args:
        arrays: The same observation as arrays.
        mask: Legal actions, [actions]; the last one waits and is no vertex.
        sizes: Of the action space.
    """
    torch: Any = import_module("torch")
    legal = np.flatnonzero(mask[:-1])
    data: Any = import_module("torch_geometric.data").HeteroData()
    data["cluster"].x = torch.from_numpy(arrays["cluster"][None, :])
    data["place"].x = torch.from_numpy(arrays["places"])
    data["job"].x = torch.from_numpy(arrays["job"][None, :])
    data["option"].x = torch.from_numpy(arrays["options"][legal])
    data["option"].action = torch.from_numpy(legal.astype(np.int64))
    data.may_wait = bool(mask[-1])
    options, places = np.arange(len(legal)), np.arange(sizes.places)
    for source, relation, target, ends in (
        ("job", "may_take", "option", (np.zeros_like(options), options)),
        ("option", "uses", "place", (options, legal // (sizes.counts * sizes.clocks))),
        ("place", "belongs_to", "cluster", (places, np.zeros_like(places))),
    ):
        edges = torch.from_numpy(np.stack(ends).astype(np.int64))
        data[source, relation, target].edge_index = edges
        data[target, f"rev_{relation}", source].edge_index = edges.flip(0)
    return data
