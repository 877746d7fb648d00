"""Small outcomes, worlds and results for the arena's tests."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import load_world

WORLD = """
name = "pair"
horizon_seconds = 3600

[workload]
name = "poisson"

[workload.settings]
ingresses = 1
rate_per_second = 0.02
median_units = 2000
max_gpus = 2
hours = 1

[devices.thrifty]
relative_clocks = [0.4, 0.6, 0.8, 1.0]
free_watts = 10
context_watts = 20

[devices.thrifty.kinds.training]
power = [100, 20, 30]
runtime = [0, 0.1, 0.01]

[devices.hungry]
relative_clocks = [0.5, 0.75, 1.0]
free_watts = 20
context_watts = 40

[devices.hungry.kinds.training]
power = [250, 30, 40]
runtime = [0, 0.06, 0.01]

[pools.one]
device = "thrifty"
nodes = 2
gpus_per_node = 4

[pools.two]
device = "hungry"
nodes = 1
gpus_per_node = 4

[partitions.one]
pools = ["one"]

[partitions.two]
pools = ["two"]
"""


def world_file(folder: Path, text: str = WORLD) -> Path:
    path = folder / "pair.toml"
    path.write_text(text)
    return path


def small_world(folder: Path, **changes: Any) -> World:
    return replace(load_world(world_file(folder)), **changes)


def make_outcome(**changes: Any) -> Outcome:
    """Return a run of 100 s: job 1 ran 10..40, job 2 waited from 0 to 60 and runs, job 3 waits since 80."""
    columns: dict[str, Any] = {
        "world": "pair",
        "rule": "some",
        "end_seconds": 100.0,
        "job_id": np.array([1, 2, 3]),
        "state": ["COMPLETED", "RUNNING", "PENDING"],
        "submitted_seconds": np.array([10.0, 0.0, 80.0]),
        "eligible_seconds": np.array([10.0, 0.0, 80.0]),
        "started_seconds": np.array([10.0, 60.0, inf]),
        "last_started_seconds": np.array([10.0, 60.0, inf]),
        "ended_seconds": np.array([40.0, inf, inf]),
        "run_seconds": np.array([30.0, 40.0, 0.0]),
        "place": np.array([0, 1, -1]),
        "gpus": np.array([2, 1, 0]),
        "clock": np.array([3, 2, -1]),
        "restarts": np.array([0, 1, 0]),
        "energy_joules": np.array([600.0, 400.0, 0.0]),
        "units": np.array([100.0, 50.0, 0.0]),
        "units_lost": np.array([0.0, 5.0, 0.0]),
        "true_units": np.array([100.0, 200.0, 10.0]),
        "units_per_second": np.array([0.0, 1.25, 0.0]),
        "deadline_seconds": np.array([inf, inf, inf]),
        "gpu_seconds": np.array([60.0, 40.0, 0.0]),
        "cpu_seconds": np.zeros(3),
        "joules_by_component": {"idle": 500.0, "host": 0.0, "suspended": 0.0, "waking": 0.0},
        "total_joules": 1500.0,
        "total_gpus": 12,
        "total_cpu_sockets": 0,
        "sample_seconds": np.array([0.0, 50.0, 100.0]),
        "sample_watts": np.array([20.0, 10.0]),
        "sample_waiting": np.array([0, 1, 1]),
        "waiting_at_day_end": (),
        "suspended_node_hours": 0.0,
        "clamped": 0,
        "declined": 0,
        "disruptions": 0,
        "decisions": 4,
        "decision_seconds": 0.001,
        "places": ("one", "two"),
        "place_is_cpu": (False, False),
        "place_gpus": (8, 4),
    }
    return Outcome(**{**columns, **changes})
