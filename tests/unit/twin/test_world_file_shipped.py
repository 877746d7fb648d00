"""The worlds of the package: published tables, agreement with the laboratory, and work for every kind."""

from itertools import product

import pytest
from operating_points import best_operating_point

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.lab.simgpu.specs import SimulatedGpuSpec, standard_gpus
from slurm_energy.lab.slurm_files import CPUS_PER_NODE, MEMORY_MIB_PER_NODE
from slurm_energy.lab.spec import DEFAULT_PARTITIONS
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world import World
from slurm_energy.twin.world.device_model import Load
from slurm_energy.twin.world.file import shipped_world, world_names

CLOCKS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
COUNTS = range(1, 9)
# Joules per unit on one GPU over the clocks, for the training coefficients that were published.
ENERGY_BY_CLOCK = {
    "us-west": (15.121, 12.405, 10.917, 10.075, 9.627, 9.452, 9.480, 9.672),
    "us-east": (14.451, 11.816, 10.378, 9.569, 9.147, 8.992, 9.038, 9.245),
    "eu-west": (13.024, 10.608, 9.300, 8.576, 8.214, 8.102, 8.181, 8.415),
    "eu-central": (15.414, 12.653, 11.155, 10.322, 9.899, 9.761, 9.838, 10.089),
    "ap-southeast": (9.750, 7.963, 7.037, 6.573, 6.403, 6.442, 6.644, 6.982),
    "ap-northeast": (15.560, 12.782, 11.276, 10.442, 10.021, 9.887, 9.970, 10.230),
    "sa-east": (13.285, 10.785, 9.425, 8.667, 8.279, 8.148, 8.210, 8.430),
    "me-central": (11.138, 9.027, 7.884, 7.251, 6.934, 6.836, 6.904, 7.107),
}
# Least joules per unit on 1 to 8 GPUs, the clock of the last, and joules on 8 GPUs at 0.6.
ENERGY_BY_COUNT = {
    "us-west": ((9.452, 9.962, 10.216, 10.471, 10.726, 10.981, 11.236, 11.468), 0.7, 11.747),
    "us-east": ((8.992, 9.472, 9.712, 9.951, 10.191, 10.431, 10.660, 10.876), 0.7, 11.138),
    "eu-west": ((8.102, 8.571, 8.805, 9.040, 9.266, 9.476, 9.686, 9.897), 0.7, 10.101),
    "eu-central": ((9.761, 10.276, 10.534, 10.791, 11.049, 11.288, 11.519, 11.751), 0.7, 11.998),
    "ap-southeast": ((6.403, 6.708, 6.861, 7.014, 7.167, 7.319, 7.472, 7.625), 0.7, 7.659),
    "ap-northeast": ((9.887, 10.378, 10.624, 10.870, 11.115, 11.344, 11.565, 11.786), 0.7, 12.038),
    "sa-east": ((8.148, 8.598, 8.824, 9.049, 9.275, 9.495, 9.698, 9.900), 0.7, 10.138),
    "me-central": ((6.836, 7.252, 7.460, 7.668, 7.868, 8.055, 8.242, 8.428), 0.7, 8.606),
}
# Units per second of a whole site: (GPUs, clock) of (1, 1), (1, best), (8, 0.6), (8, 1).
CAPACITY = {
    "us-west": (438, 360, 237, 347),
    "us-east": (744, 610, 402, 590),
    "eu-west": (5020, 4112, 2683, 3914),
    "eu-central": (468, 384, 254, 372),
    "ap-southeast": (1925, 1388, 1031, 1522),
    "ap-northeast": (485, 398, 265, 390),
    "sa-east": (9110, 7453, 4889, 7171),
    "me-central": (8285, 6777, 4381, 6384),
}


def seconds(load: Load, count: int, clock: float) -> float:
    """Time of a unit on some GPUs at a clock of the published grid."""
    return load.scaling.seconds(load.seconds_per_unit[CLOCKS.index(clock)], count)


def joules(load: Load, count: int, clock: float) -> float:
    """Energy of a unit on some GPUs at a clock of the published grid."""
    return count * load.watts[CLOCKS.index(clock)] * seconds(load, count, clock)


def training(world: World) -> dict[str, Load]:
    """The training load of each site."""
    return {pool.name: world.devices[pool.device].loads["training"] for pool in world.pools}


def test_chsac_has_the_published_energies_on_one_gpu_at_every_clock() -> None:
    loads = training(shipped_world("chsac"))

    found = {site: tuple(round(joules(load, 1, clock), 3) for clock in CLOCKS) for site, load in loads.items()}

    assert found == ENERGY_BY_CLOCK
    assert list(found) == list(ENERGY_BY_CLOCK)


def test_chsac_has_the_published_energies_on_up_to_8_gpus() -> None:
    loads = training(shipped_world("chsac"))

    found = {}
    for site, load in loads.items():
        best = tuple(round(min(joules(load, count, clock) for clock in CLOCKS), 3) for count in COUNTS)
        last = min(CLOCKS, key=lambda clock: joules(load, 8, clock))
        found[site] = (best, last, round(joules(load, 8, 0.6), 3))

    assert found == ENERGY_BY_COUNT


def test_chsac_has_the_published_capacities() -> None:
    world = shipped_world("chsac")
    loads = training(world)

    found = {}
    for pool in world.pools:
        load = loads[pool.name]
        best = min(CLOCKS, key=lambda clock: joules(load, 1, clock))
        choices = ((1, 1.0), (1, best), (8, 0.6), (8, 1.0))
        found[pool.name] = tuple(
            round(pool.nodes * pool.gpus_per_node / count / seconds(load, count, clock)) for count, clock in choices
        )

    assert found == CAPACITY
    assert [sum(column) for column in zip(*found.values(), strict=True)] == pytest.approx(
        [26_475, 21_480, 14_143, 20_691], abs=4
    )


# Published links [ms] from each ingress; paths may pass through sites and other ingresses.
LINKS = {
    "gw-us-west": {"us-west": 12, "us-east": 70, "eu-central": 110, "ap-southeast": 150},
    "gw-us-east": {"us-east": 10, "us-west": 70, "eu-west": 90, "sa-east": 110},
    "gw-eu-west": {"eu-west": 10, "eu-central": 20, "us-east": 90, "ap-northeast": 190},
    "gw-eu-central": {"eu-central": 10, "me-central": 60, "ap-southeast": 170},
    "gw-ap-southeast": {"ap-southeast": 8, "ap-northeast": 60, "eu-central": 170},
    "gw-ap-northeast": {"ap-northeast": 8, "us-west": 130, "eu-west": 190},
    "gw-sa-east": {"sa-east": 12, "us-east": 110, "eu-west": 150},
    "gw-me-central": {"me-central": 10, "eu-central": 60, "ap-southeast": 120},
}


def test_chsac_has_the_shortest_paths_over_the_published_links() -> None:
    distance = {(gateway, site): ms for gateway, row in LINKS.items() for site, ms in row.items()}
    distance |= {(site, gateway): ms for (gateway, site), ms in distance.items()}
    vertices = sorted({vertex for link in distance for vertex in link})
    for middle, start, end in product(vertices, vertices, vertices):
        if (start, middle) in distance and (middle, end) in distance:
            through = distance[start, middle] + distance[middle, end]
            distance[start, end] = min(through, distance.get((start, end), through))

    found = {link: round(seconds * 1000, 9) for link, seconds in shipped_world("chsac").latency_seconds.items()}

    assert found == {(gateway, site): distance[gateway, site] for gateway in LINKS for site in ENERGY_BY_CLOCK}


def test_chsac_sleeps_and_waits_as_published() -> None:
    world = shipped_world("chsac")

    assert sum(pool.gpus_per_node * world.devices[pool.device].free_watts for pool in world.pools) == 21_152.0
    assert sum(pool.nodes * pool.gpus_per_node for pool in world.pools) == 1_488
    assert (world.horizon_seconds, world.published_log_seconds) == (604_800.0, 20.0)
    assert (world.discipline.order, world.discipline.backfill) == ("fifo", "none")
    assert [partition.pools for partition in world.partitions] == [(pool.name,) for pool in world.pools]
    assert [f"gw-{pool.name}" for pool in world.pools] == list(world.ingresses)
    assert {partition.max_gpus_per_job for partition in world.partitions} == {8}


@pytest.mark.parametrize("name", world_names())
def test_every_kind_of_a_worlds_own_workload_can_run_somewhere(name: str) -> None:
    world = shipped_world(name)
    settings = {**world.workload_settings, "hours": 2.0}

    workload = create_workload(world.workload, settings, 1)

    assert len(workload.jobs) > 5
    for job in workload.jobs:
        assert any(job.kind in world.devices[pool.device].loads for pool in world.pools), job.kind


@pytest.mark.parametrize("name", world_names())
def test_a_lower_clock_of_a_shipped_world_never_draws_more_and_is_never_faster(name: str) -> None:
    for device in shipped_world(name).devices.values():
        for kind, load in device.loads.items():
            assert list(load.watts) == sorted(load.watts), (device.name, kind)
            assert list(load.seconds_per_unit) == sorted(load.seconds_per_unit, reverse=True), (device.name, kind)
            assert min(load.watts) >= 0.0
            assert max(load.watts) <= device.power_limit_watts + 1e-9, (device.name, kind)
            assert device.free_watts <= device.context_watts


@pytest.mark.parametrize("name", world_names())
def test_a_shipped_world_says_where_it_comes_from(name: str) -> None:
    assert len(shipped_world(name).source) > 40


def test_the_lab_world_has_the_laboratorys_nodes() -> None:
    world = shipped_world("lab")

    assert [partition.name for partition in world.partitions if partition.is_default] == [DEFAULT_PARTITIONS[0].name]
    for pool, partition, spec in zip(world.pools, world.partitions, DEFAULT_PARTITIONS, strict=True):
        assert (pool.name, pool.nodes, pool.gpus_per_node) == (spec.name, spec.nodes, spec.gpus_per_node)
        assert (pool.device, partition.name) == (spec.gres_type, spec.name)
        assert (pool.cpus_per_node, pool.memory_gib_per_node) == (CPUS_PER_NODE, MEMORY_MIB_PER_NODE / 1024)
        assert partition.max_time_seconds == spec.max_time_minutes * 60 * 60


def simulated_point(gpu: SimulatedGpuSpec, kind: str, clock: int) -> tuple[float, float]:
    """Power and time of a unit as the laboratory's library has them at a set clock (lab/simgpu/native/physics.c)."""
    profile = next(profile for profile in gpu.profiles if profile.name == kind)
    limit = max(gpu.holding_share * gpu.power_limit_watts, gpu.capping_floor_watts)

    def watts(real: int) -> float:
        f = real / profile.reference_clock_mhz
        curve = profile.cubic_watts * f**3 + profile.linear_watts * f + profile.constant_watts
        return max(gpu.idle_context_watts, curve)

    def time(real: int) -> float:
        share = profile.compute_share * profile.reference_clock_mhz / real
        return max(profile.memory_share, share) + profile.fixed_share

    inside = [step for step in gpu.sm_clocks_mhz if watts(step) <= limit]
    real = max(step for step in inside if step <= clock)
    return watts(real), time(real) / time(inside[-1]) / profile.units_per_second


@pytest.mark.parametrize(
    ("device", "kind"), list(product(("a100", "a40", "v100"), ("training", "compute", "memory", "host")))
)
def test_the_lab_world_has_the_laboratorys_power_and_time_at_every_clock(device: str, kind: str) -> None:
    model = shipped_world("lab").devices[device]
    gpu = standard_gpus(device, 1, "node")[0]

    points = [simulated_point(gpu, kind, clock) for clock in model.clocks_mhz]

    assert model.loads[kind].watts == pytest.approx([watts for watts, _ in points], rel=1e-9)
    assert model.loads[kind].seconds_per_unit == pytest.approx([time for _, time in points], rel=1e-9)
    assert (model.free_watts, model.context_watts) == (gpu.idle_watts, gpu.idle_context_watts)


def test_philly_runs_every_kind_on_every_device_at_73_percent_of_its_capacity() -> None:
    world = shipped_world("philly-a100")
    kinds = {name: set(device.loads) for name, device in world.devices.items()}
    trace_gpus = 578_604 / (106.154 * 24)

    capacity = [
        sum(
            pool.nodes * pool.gpus_per_node / world.devices[pool.device].loads[kind].seconds_per_unit[-1]
            for pool in world.pools
        )
        for kind in kinds["a100"]
    ]

    assert len({frozenset(names) for names in kinds.values()}) == 1
    assert trace_gpus / (sum(capacity) / len(capacity)) == pytest.approx(0.73, abs=0.01)
    assert world.devices["a100"].loads["bloom-backward"].seconds_per_unit[-1] == pytest.approx(1.0)
    assert max(pool.nodes * pool.gpus_per_node for pool in world.pools) >= 128


@pytest.mark.parametrize(
    ("device", "gpu_type", "kind", "workload"),
    [
        ("a100", "a100-sxm4-80gb", "bloom-backward", "bloom-backward-stages-0-6"),
        ("a100", "a100-sxm4-80gb", "gpt3-forward", "gpt3-175b-forward-stages-0-6"),
        ("a40", "a40", "bloom-backward", "bloom-backward-stages-0-6"),
        ("v100", "v100-pcie-16gb", "dgemm", "dgemm"),
        ("v100", "v100-pcie-16gb", "stream", "stream"),
    ],
)
def test_the_least_energy_in_philly_is_at_the_measured_clock(
    device: str, gpu_type: str, kind: str, workload: str
) -> None:
    model = shipped_world("philly-a100").devices[device]
    load = model.loads[kind]
    energy = [watts * time for watts, time in zip(load.watts, load.seconds_per_unit, strict=True)]
    best = best_operating_point(GpuTypeName(gpu_type), 10.0, workload)
    assert best is not None

    saving = 1.0 - min(energy) / energy[-1]

    assert saving == pytest.approx(-best.energy_change, abs=0.02)


def test_gavel_leaves_out_what_was_not_measured() -> None:
    world = shipped_world("gavel-shared")
    kinds = {name: set(device.loads) for name, device in world.devices.items()}

    assert kinds["v100"] < kinds["k80"] == kinds["p100"]
    assert "CycleGAN" in kinds["k80"] - kinds["v100"]
    assert world.devices["v100"].pair("CycleGAN", "A3C") is None
    assert {pool.jobs_per_gpu for pool in world.pools} == {2}
    pair = world.devices["k80"].pair("CycleGAN", "A3C")
    assert pair is not None
    assert (pair.speed, pair.partner_speed) == (0.5803, 0.4262)


def test_small_matrices_cost_less_on_a_socket_and_large_ones_on_a_gpu_at_its_highest_clock() -> None:
    world = shipped_world("tum128")
    gpu, socket, old = (world.devices[name] for name in ("k40c", "xeon", "c2070"))

    def energies(load: Load) -> list[float]:
        return [watts * time for watts, time in zip(load.watts, load.seconds_per_unit, strict=True)]

    best = {}
    for size in range(200, 2000, 200):
        kind = f"matrix-{size}"
        on_gpu, on_socket = energies(gpu.loads[kind]), energies(socket.loads[kind])
        best[size] = on_gpu.index(min(on_gpu))
        assert (min(on_socket) < min(on_gpu)) == (size <= 200)
        assert min(energies(old.loads[kind])) > min(on_gpu)

    highest = len(gpu.relative_clocks) - 1
    assert [best[size] for size in (200, 400, 600, 800)] == [0, 0, 0, 0]
    assert 0 < best[1000] < highest
    assert [best[size] for size in (1200, 1400, 1600, 1800)] == [highest] * 4


def test_tum128_has_128_gpu_nodes_and_a_cpu_partition() -> None:
    world = shipped_world("tum128")
    gpu_pools = [pool for pool in world.pools if not world.devices[pool.device].is_cpu]

    assert sum(pool.nodes for pool in gpu_pools) == 128
    assert {pool.gpus_per_node for pool in gpu_pools} == {4, 6, 8}
    assert [partition.pools for partition in world.partitions if partition.name == "cpu"] == [("cpu",)]
