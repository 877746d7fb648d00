from math import isnan, nan

import numpy as np
import pytest
from numpy.typing import NDArray
from small_clusters import make_node, make_partition

from slurm_energy.domain.cluster import ClusterState, GpuReading, NodeGpus, SwitchState
from slurm_energy.domain.ids import ClusterName
from slurm_energy.graph.columns import Scaler
from slurm_energy.graph.place_features import (
    CLUSTER_SCALER,
    CONSTRAINT_SCALER,
    NODE_SCALER,
    PARTITION_SCALER,
    SWITCH_SCALER,
    UPLINK_SCALER,
    PlaceCounts,
    Row,
    cluster_row,
    constraint_rows,
    node_row,
    partition_row,
    switch_row,
    uplink_row,
)


def known(scaler: Scaler, row: Row) -> dict[str, float]:
    """The unscaled columns that are neither 0 nor unknown."""
    assert len(row) == scaler.width
    values: NDArray[np.float64] = np.array(row)
    return {
        name: value for name, value in zip(scaler.names, values.tolist(), strict=True) if value and not isnan(value)
    }


def test_a_node_shows_what_is_free_and_how_its_devices_fare() -> None:
    node = make_node(
        states=("IDLE", "POWERING_UP"),
        cpus_allocated=48,
        memory_mib=131072.0,
        memory_allocated_mib=32768.0,
        gpus=(NodeGpus(slurm_type="a100", count=4, allocated=1), NodeGpus(slurm_type="t4", count=4, allocated=1)),
        gpu_readings=(
            GpuReading(index=0, utilisation=0.9, temperature_celsius=71.0),
            GpuReading(index=1, utilisation=0.2, temperature_celsius=nan),
            GpuReading(index=2, utilisation=nan),
        ),
        power_watts=900.0,
        wake_seconds=120.0,
    )
    assert known(NODE_SCALER, node_row(node)) == {
        "is_available": 1.0,
        "is_waking": 1.0,
        "cpus": 64.0,
        "cpus_free": 0.25,
        "memory_gib": 128.0,
        "memory_free": 0.75,
        "gpus": 8.0,
        "gpus_free": 0.75,
        "has_power_reading": 1.0,
        "power_watts": 900.0,
        "load_imbalance": pytest.approx(0.7),
        "hottest": 71.0,
        "wake_seconds": 120.0,
    }


@pytest.mark.parametrize("power", [None, nan, float("inf")])
def test_a_power_that_is_not_finite_is_no_reading(power: float | None) -> None:
    row = NODE_SCALER.scaled([node_row(make_node(count=0, cpus=0, available=False, power_watts=power))])
    assert not row.any()


def test_an_uplink_is_known_by_its_capacity() -> None:
    node = make_node(uplink_gb_per_second=25.0, uplink_congestion=0.5, uplink_latency_microseconds=2.0)
    assert uplink_row(node) == (25.0, 0.5, 2.0, 1.0)
    assert not UPLINK_SCALER.scaled([uplink_row(make_node())]).any()


def test_a_group_without_a_switch_is_not_known() -> None:
    switch = SwitchState(name="s", capacity_gb_per_second=400.0, congestion=0.1)
    assert switch_row(switch, nodes=4, available=3, is_leaf=True) == (4.0, 400.0, 0.1, 0.75, 1.0, 1.0)
    assert known(SWITCH_SCALER, switch_row(None, nodes=4, available=2, is_leaf=True)) == {
        "nodes": 4.0,
        "nodes_available": 0.5,
        "is_leaf": 1.0,
    }


def test_a_partition_takes_carbon_from_its_cluster() -> None:
    site = ClusterState(name=ClusterName("c"), carbon_grams_per_kwh=300.0, price_per_kwh=0.2)
    counts = PlaceCounts(nodes=4, suspended=1, gpus=16, gpus_free=4, waiting_gpus=float("inf"), waiting_jobs=3)
    partition = make_partition(max_time_minutes=60.0, priority_tier=2, price_per_kwh=0.1)
    assert known(PARTITION_SCALER, partition_row(partition, counts, site)) == {
        "is_up": 1.0,
        "is_default": 1.0,
        "max_time_seconds": 3600.0,
        "has_max_time": 1.0,
        "priority_tier": 2.0,
        "nodes": 4.0,
        "gpus": 16.0,
        "gpus_free": 0.25,
        "waiting_gpus": 1e6,
        "waiting_jobs": 3.0,
        "nodes_suspended": 0.25,
        "carbon_grams_per_kwh": 300.0,
        "price_per_kwh": 0.1,
    }


def test_a_partition_is_of_cpus_only_when_it_has_nodes() -> None:
    is_cpu = PARTITION_SCALER.names.index("is_cpu")
    assert partition_row(make_partition(), PlaceCounts(nodes=2))[is_cpu] == 1.0
    assert partition_row(make_partition(), PlaceCounts())[is_cpu] == 0.0


def test_a_cluster_sums_up() -> None:
    counts = PlaceCounts(nodes=2, gpus=8, gpus_free=2, waiting_jobs=5, running_jobs=6)
    state = ClusterState(name=ClusterName("c"), power_watts=5000.0)
    assert cluster_row(state, counts) == (2.0, 8.0, 0.25, 5.0, 6.0, 1.0, 5000.0)
    assert not CLUSTER_SCALER.scaled([cluster_row(None, PlaceCounts())]).any()


def test_each_constraint_is_a_vertex_with_its_slack() -> None:
    state = ClusterState(
        name=ClusterName("c"),
        power_watts=3000.0,
        power_budget_watts=4000.0,
        heat_watts=100.0,
        cooling_watts=50.0,
        carbon_grams_per_kwh=250.0,
        quality_violations=0.03,
        quality_goal=0.0,
    )
    rows = [known(CONSTRAINT_SCALER, row) for row in constraint_rows(state)]
    assert rows == [
        {"is_power": 1.0, "is_set": 1.0, "usage": 0.75, "slack": pytest.approx(1 / 7), "value": 3000.0},
        {"is_cooling": 1.0, "is_set": 1.0, "usage": 2.0, "slack": pytest.approx(-1 / 3), "value": 100.0},
        {"is_carbon": 1.0, "is_set": 1.0, "value": 250.0},
        {"is_quality": 1.0, "is_set": 1.0, "usage": 4.0, "slack": -1.0, "value": 3.0},
    ]


def test_a_constraint_that_nobody_set_says_so() -> None:
    rows = [known(CONSTRAINT_SCALER, row) for row in constraint_rows(None)]
    assert rows == [{"is_power": 1.0}, {"is_cooling": 1.0}, {"is_carbon": 1.0}, {"is_quality": 1.0}]
