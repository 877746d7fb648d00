"""The one list of vertex and edge features, in order, with unit, scale and source; it has a version.

A checkpoint belongs to one version: weights are columns of this list. To add, remove or reorder a feature, or
to change a scale, raises `SCHEMA_VERSION`.

Every feature is brought near [-1, 1] by its form:

- `linear`: value / scale;
- `log`: ln(1 + value / scale) / 4, for what spans decades and is not negative;
- `flag`: 0 or 1.

What is unknown or not finite becomes 0; where 0 could be taken for a value, a flag of the same vertex says that it is
known. Results are cut to [-4, 4]: one absurd reading must not drown the rest.
"""

from dataclasses import dataclass
from math import isfinite, log1p
from typing import Literal

from slurm_energy.errors import ValueRangeError

SCHEMA_VERSION = 1
LARGEST = 4.0

Form = Literal["linear", "log", "flag"]
SATURATION_SIZES = (200, 400, 800, 1600)
"""Square matrix products at which a GPU type's saturation curve is read."""
CURVE_SHARES = (0.4, 0.6, 0.8)
"""Shares of the highest clock at which a GPU type's power and time curves are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One column."""

    name: str
    unit: str
    """Unit of the value that goes in; `1` for ratios and flags."""
    form: Form
    scale: float
    source: str
    """Where the value comes from."""

    def scaled(self, value: float | None) -> float:
        """Return the column's entry for a value; 0 for None and for what is not finite."""
        if value is None or not isfinite(value):
            return 0.0
        if self.form == "flag":
            return 1.0 if value else 0.0
        scaled = value / self.scale if self.form == "linear" else log1p(max(0.0, value) / self.scale) / 4.0
        return min(LARGEST, max(-LARGEST, scaled))


def _linear(name: str, unit: str, scale: float, source: str) -> Feature:
    return Feature(name=name, unit=unit, form="linear", scale=scale, source=source)


def _log(name: str, unit: str, scale: float, source: str) -> Feature:
    return Feature(name=name, unit=unit, form="log", scale=scale, source=source)


def _flag(name: str, source: str) -> Feature:
    return Feature(name=name, unit="1", form="flag", scale=1.0, source=source)


_CATALOGUE = "energy_model: catalogue"
_CURVES = "energy_model: mean of the type's measured workloads, over the highest clock"
_READING = "node's report: GPU reading"
_NODE = "Slurm: node"
_JOB = "Slurm: job"
_REQUEST = "Slurm: job at submission, or in the queue"
_PARTITION = "Slurm: partition"
_SITE = "site: constraints of the cluster"
_DERIVED = "worked out from the snapshot"
_MODEL = "energy_model and estimates of the job"

TASK = (
    _flag("is_pending", _JOB),
    _flag("is_running", _JOB),
    _flag("is_submitted", "the job that a decision is asked for"),
    _log("estimated_seconds", "s", 60.0, "history of the user's jobs of that name, else a share of the time limit"),
    _flag("estimate_known", _DERIVED),
    _log("upper_seconds", "s", 60.0, "bound that 19 of 20 jobs keep"),
    _log("time_limit_seconds", "s", 60.0, _REQUEST),
    _flag("time_limit_known", _REQUEST),
    _log("gpus_least", "GPUs", 1.0, _REQUEST),
    _log("gpus_most", "GPUs", 1.0, _REQUEST),
    _log("cpus", "CPUs", 4.0, _REQUEST),
    _log("memory_gib", "GiB", 16.0, _REQUEST),
    _flag("memory_known", _REQUEST),
    _log("nodes", "nodes", 1.0, _REQUEST),
    _flag("is_exclusive", _REQUEST),
    _flag("is_array", _REQUEST),
    _linear("priority", "1", 1.0, "Slurm: priority over the queue's highest"),
    _flag("has_qos", _REQUEST),
    _flag("has_deadline", _REQUEST),
    _linear("deadline_slack", "1", 1.0, "(time to the deadline - estimate) / (time to the deadline + estimate)"),
    _log("waited_seconds", "s", 60.0, "since submission, until the start if there was one"),
    _log("ran_seconds", "s", 60.0, "since the start"),
    _linear("progress", "1", 1.0, "time run over the estimate"),
    _linear("user_share", "1", 1.0, "share of all held and asked GPUs that the job's user has"),
    _log("critical_path_seconds", "s", 60.0, "longest chain of estimates from this job to the last that needs it"),
    _log("dependents", "jobs", 1.0, "jobs that wait for this one"),
    _flag("is_blocked", "waits for other jobs"),
    _linear("max_slowdown", "1", 1.0, "the job's slowdown bound"),
    _linear("time_weight", "1", 1.0, "w_time of the job's mode: what a second is worth beside a joule"),
    _linear("energy_weight", "1", 1.0, "w_energy of the job's mode"),
    _linear("compute_share", "1", 1.0, "share of the run time that scales with the clock, by the job's curves"),
    _log("matrix_size", "1", 200.0, "size of its matrix products where the job's kind tells it"),
)
"""A job: pending, running, or the one being submitted."""

GPU = (
    _flag("is_known_type", _CATALOGUE),
    _flag("is_cpu", "a CPU socket of a partition without GPUs"),
    _log("peak_tflops", "TFLOP/s", 10.0, "energy_model: data sheets, half precision or the type's best"),
    _log("memory_gib", "GiB", 16.0, _CATALOGUE),
    _log("power_limit_watts", "W", 100.0, "site's limit, else the catalogue's"),
    _log("idle_watts", "W", 10.0, _CATALOGUE),
    _log("max_clock_mhz", "MHz", 500.0, _CATALOGUE),
    _linear("saturation_200", "1", 1.0, "energy_model/saturation: share of the peak rate at matrix size 200"),
    _linear("saturation_400", "1", 1.0, "the same at 400"),
    _linear("saturation_800", "1", 1.0, "the same at 800"),
    _linear("saturation_1600", "1", 1.0, "the same at 1600"),
    _linear("power_at_40", "1", 1.0, f"{_CURVES}: power at 0.4 of it"),
    _linear("power_at_60", "1", 1.0, f"{_CURVES}: power at 0.6 of it"),
    _linear("power_at_80", "1", 1.0, f"{_CURVES}: power at 0.8 of it"),
    _linear("slowdown_at_40", "1", 1.0, f"{_CURVES}: time at 0.4 of it, less 1"),
    _linear("slowdown_at_60", "1", 1.0, f"{_CURVES}: time at 0.6 of it, less 1"),
    _linear("slowdown_at_80", "1", 1.0, f"{_CURVES}: time at 0.8 of it, less 1"),
    _flag("is_allocated", _NODE),
    _flag("has_reading", _READING),
    _linear("utilisation", "1", 1.0, _READING),
    _linear("memory_left", "1", 1.0, f"{_READING}: share of the memory that is free"),
    _linear("relative_clock", "1", 1.0, f"{_READING}: present clock over the highest"),
    _linear("relative_power", "1", 1.0, f"{_READING}: present power over the limit"),
    _linear("temperature", "degrees C", 100.0, _READING),
    _linear("efficiency", "1", 1.0, "history: measured joules of jobs here over the model's, less 1"),
    _flag("is_slowed", "a clock below the default is set"),
)
"""A device: a GPU, or a CPU socket where a partition has none."""

NODE = (
    _flag("is_available", _NODE),
    _flag("is_suspended", _NODE),
    _flag("is_waking", _NODE),
    _log("cpus", "CPUs", 16.0, _NODE),
    _linear("cpus_free", "1", 1.0, f"{_NODE}: share"),
    _log("memory_gib", "GiB", 64.0, _NODE),
    _linear("memory_free", "1", 1.0, f"{_NODE}: share"),
    _log("gpus", "GPUs", 1.0, _NODE),
    _linear("gpus_free", "1", 1.0, f"{_NODE}: share"),
    _flag("has_power_reading", _NODE),
    _log("power_watts", "W", 500.0, _NODE),
    _linear("load_imbalance", "1", 1.0, "spread of the utilisation of its devices"),
    _linear("hottest", "degrees C", 100.0, "highest temperature of its devices"),
    _log("wake_seconds", "s", 60.0, "site: time to resume a suspended node"),
)
"""A compute node."""

SWITCH = (
    _log("nodes", "nodes", 8.0, "Slurm: topology, else groups of like nodes"),
    _log("capacity_gb_per_second", "GB/s", 10.0, "topology: all its downward links"),
    _linear("congestion", "1", 1.0, "share of its capacity in use"),
    _linear("nodes_available", "1", 1.0, _DERIVED),
    _flag("is_leaf", "topology"),
    _flag("is_known", "a real switch, not a group made for the lack of one"),
)
"""A switch, or a group of like nodes where the topology is not known."""

PARTITION = (
    _flag("is_up", _PARTITION),
    _flag("is_default", _PARTITION),
    _flag("is_cpu", "none of its nodes has a GPU"),
    _log("max_time_seconds", "s", 3600.0, _PARTITION),
    _flag("has_max_time", _PARTITION),
    _log("priority_tier", "1", 1.0, _PARTITION),
    _log("nodes", "nodes", 8.0, _DERIVED),
    _log("gpus", "GPUs", 8.0, _DERIVED),
    _linear("gpus_free", "1", 1.0, f"{_DERIVED}: share"),
    _log("waiting_gpus", "GPUs", 8.0, "asked for by pending jobs"),
    _log(
        "claimed_gpus",
        "GPUs",
        8.0,
        "always 0: what is promised since the snapshot is an option's; kept for the width of checkpoints",
    ),
    _log("waiting_jobs", "jobs", 4.0, _DERIVED),
    _linear("nodes_suspended", "1", 1.0, f"{_DERIVED}: share"),
    _log("carbon_grams_per_kwh", "g/kWh", 100.0, _SITE),
    _log("price_per_kwh", "1/kWh", 0.1, _SITE),
)
"""A partition; in a world of several sites, one place of a site."""

CLUSTER = (
    _log("nodes", "nodes", 64.0, _DERIVED),
    _log("gpus", "GPUs", 64.0, _DERIVED),
    _linear("gpus_free", "1", 1.0, f"{_DERIVED}: share"),
    _log("pending_jobs", "jobs", 16.0, _DERIVED),
    _log("running_jobs", "jobs", 16.0, _DERIVED),
    _flag("has_power_reading", _SITE),
    _log("power_watts", "W", 10_000.0, _SITE),
)
"""A cluster; several where jobs are routed between them."""

CONSTRAINT = (
    _flag("is_power", "total power against the budget"),
    _flag("is_cooling", "heat against the capacity of the cooling"),
    _flag("is_carbon", "carbon intensity and price of energy"),
    _flag("is_quality", "aggregate quality of service: deadlines and waiting"),
    _flag("is_set", _SITE),
    _linear("usage", "1", 1.0, "present value over the limit"),
    _linear("slack", "1", 1.0, "(limit - value) / (limit + value)"),
    _log("value", "W, g/kWh or jobs", 100.0, _SITE),
)
"""A global constraint of a cluster, a vertex of its own: one each of power, cooling, carbon, quality."""

LINK = (
    _flag("is_nvlink", "topology of the node"),
    _flag("is_pcie", "topology of the node"),
    _log("bandwidth_gb_per_second", "GB/s", 10.0, "topology of the node, else the kind's data sheet"),
    _linear("latency_microseconds", "us", 10.0, "the same"),
)
"""GPU to GPU inside a node."""

UPLINK = (
    _log("capacity_gb_per_second", "GB/s", 10.0, "topology"),
    _linear("congestion", "1", 1.0, "share of the capacity in use"),
    _linear("latency_microseconds", "us", 10.0, "topology"),
    _flag("is_known", "topology"),
)
"""Node to switch, and switch to switch."""

DEPENDS = (
    _log("data_gib", "GiB", 1.0, "volume handed over, where it is known"),
    _flag("data_known", _JOB),
    _flag("needs_success", "afterok; else afterany and its like"),
)
"""Job to the job that waits for it."""

RUNS = (
    _linear("share_of_job", "1", 1.0, "1 / devices of the job"),
    _linear("progress", "1", 1.0, "time run over the estimate"),
    _log("left_seconds", "s", 60.0, "estimate less the time run"),
    _flag("position_known", "Slurm reported which devices; else they are taken in their order"),
)
"""Running job to a device that it holds."""

OPTION = (
    _flag("has_room", "the job could start now"),
    _flag("is_where_submitted", "the job goes there anyway"),
    _log("gpus", "GPUs", 1.0, "devices of this option"),
    _linear("count_position", "1", 1.0, "0 for the fewest devices the job may have, 1 for the most"),
    _flag("cost_known", _MODEL),
    _linear("relative_seconds", "1", 1.0, f"{_MODEL}: ln(run time over the fastest option's)"),
    _linear("relative_joules", "1", 1.0, f"{_MODEL}: ln(energy over the cheapest option's), at the oracle's clock"),
    _linear("relative_seconds_full", "1", 1.0, "the same run time at the highest clock"),
    _linear("relative_joules_full", "1", 1.0, "the same energy at the highest clock"),
    _log("seconds", "s", 60.0, _MODEL),
    _log("joules", "J", 10_000.0, _MODEL),
    _log("wait_seconds", "s", 60.0, "GPU-seconds asked for before it over the partition's GPUs"),
    _linear("gpus_free_after", "1", 1.0, "share of the partition's GPUs that would stay free"),
    _log("wake_joules", "J", 10_000.0, "energy of waking the nodes that it needs"),
    _linear("communication", "1", 1.0, "share of the run time lost to more devices"),
    _flag("is_cpu", "no GPU"),
)
"""Job to partition, one for each device count: a way of running the job. Predicted time and energy are on this edge."""

CLOCK = (
    _linear("relative_clock", "1", 1.0, "over the type's highest"),
    _linear("slowdown", "1", 1.0, "energy_model: worst of the type's workloads, or the job's own curve"),
    _linear("energy_change", "1", 1.0, "energy_model"),
    _flag("is_default", "the highest clock"),
    _flag("is_oracle", "the exact oracle's choice inside the job's bound"),
    _linear("bound_left", "1", 1.0, "slowdown bound less this clock's slowdown"),
    _linear("power_change", "1", 1.0, "power over that at the highest clock, less 1"),
)
"""One clock of one device type, as a choice."""

DEVICE_OPTION = (
    _linear("relative_seconds", "1", 1.0, "ln(run time over the fastest option's)"),
    _linear("relative_joules", "1", 1.0, "ln(energy over the cheapest option's)"),
    _flag("cost_known", _MODEL),
    _flag("is_free", _NODE),
)
"""Job to a device that it could be given."""

VERTICES = {
    "task": TASK,
    "gpu": GPU,
    "node": NODE,
    "switch": SWITCH,
    "partition": PARTITION,
    "cluster": CLUSTER,
    "constraint": CONSTRAINT,
}
EDGES = {
    ("gpu", "link", "gpu"): LINK,
    ("node", "uplink", "switch"): UPLINK,
    ("switch", "trunk", "switch"): UPLINK,
    ("task", "depends", "task"): DEPENDS,
    ("task", "runs", "gpu"): RUNS,
    ("task", "option", "partition"): OPTION,
    ("task", "device_option", "gpu"): DEVICE_OPTION,
    ("gpu", "in", "node"): (),
    ("node", "in", "partition"): (),
    ("switch", "in", "cluster"): (),
    ("partition", "in", "cluster"): (),
    ("constraint", "bounds", "cluster"): (),
}
"""Edge types; those without features are containment, and each is there backwards as well, as `rev_…`."""


def width(features: tuple[Feature, ...]) -> int:
    """Return the number of columns."""
    return len(features)


def column(features: tuple[Feature, ...], name: str) -> int:
    """Return the index of a feature.

    Raises:
        ValueRangeError: there is none of that name.
    """
    for index, feature in enumerate(features):
        if feature.name == name:
            return index
    raise ValueRangeError(f"feature {name!r} is not among {', '.join(feature.name for feature in features)}")
