"""World files: what they say becomes the world, and a world that is written reads back the same."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world_texts import DEVICE, PARTITION, POOL, SMALL, made

from slurm_energy.errors import ConfigError
from slurm_energy.twin.world import FailureRates, Outage, Series, SuspendSettings
from slurm_energy.twin.world.device_model import PairSpeed, Scaling, Thermal
from slurm_energy.twin.world.file import find_world, shipped_world, world_names
from slurm_energy.twin.world.writer import world_to_toml


def test_a_small_world_takes_its_name_from_the_file_and_defaults_for_the_rest(tmp_path: Path) -> None:
    world = made(tmp_path)

    load = world.devices["gpu"].loads["training"]
    assert world.name == "small"
    assert load.watts == (77.5, 190.0)
    assert load.seconds_per_unit == (2.25, 1.25)
    assert load.scaling == Scaling()
    assert world.devices["gpu"].context_watts == 20.0
    assert (world.pools[0].memory_gib_per_node, world.horizon_seconds, world.discipline.backfill) == (inf, None, "easy")


def test_every_key_reaches_its_field(tmp_path: Path) -> None:
    (tmp_path / "carbon.csv").write_text("hour,grams\n0,100\n3600,200.5\n", encoding="utf-8")
    world = made(
        tmp_path,
        """
name = "full"
source = "made up"
horizon_seconds = 100
published_log_seconds = 20
[scheduling]
order = "sjf"
backfill = "none"
backfill_interval_seconds = 30
backfill_depth = 7
requeue = false
launch_seconds = 1.5
[workload]
name = "poisson"
[workload.settings]
rate_per_second = 0.5
kind = "x"
[devices.gpu]
clocks_mhz = { low = 500, high = 1000, step = 250 }
reference_clock_mhz = 2000
power_limit_watts = 150
limit_on_grid = true
free_watts = 20
context_watts = 60
floor_watts = 50
memory_gib = 16
is_cpu = true
scaling = { seconds_per_device = 0.1, efficiency = { 2 = 0.9, 8 = 0.5 }, traffic_gigabytes_per_unit = 3 }
thermal = { resistance_kelvin_per_watt = 0.2, time_constant_seconds = 30, ambient_celsius = 20, limit_celsius = 90 }
[devices.gpu.kinds]
a = { watts = [10, 100, 200], seconds_per_unit = [4, 2, 1], memory_gib = 8 }
b = { power = [0, 400, 0], runtime = [0, 1, 0], watts_factor = 0.5, relative_speed = 4, scaling = {} }
[[devices.gpu.pairs]]
kinds = ["a", "b"]
speeds = [0.5, 0.75]
watts = 180
[pools.p]
device = "gpu"
nodes = 3
gpus_per_node = 4
cpus_per_node = 64
memory_gib_per_node = 256
host_idle_watts = 300
host_busy_watts = 500
link_gigabytes_per_second = 10
link_joules_per_gigabyte = 5
jobs_per_gpu = 2
region = "here"
suspend = { idle_seconds = 600, resume_seconds = 60, suspended_watts = 10, resume_watts = 400 }
[partitions.short]
pools = ["p"]
max_time_seconds = 3600
max_gpus_per_job = 4
is_default = true
[ingresses.door]
latency_seconds = { here = 0.25 }
[failures]
node_mtbf_seconds = 1e6
gpu_mtbf_seconds = 2e6
mean_repair_seconds = 10
[[outages]]
pool = "p"
at_seconds = 5
until_seconds = 50
nodes = 1
gpus = 2
[congestion]
times_seconds = [0, 10]
values = [1, 0.5]
[ambient_celsius]
value = 30
[power_budget_watts]
values = [1000, 2000]
every_seconds = 10
repeats = 2
[carbon_grams_per_kwh.here]
file = "carbon.csv"
time_column = "hour"
value_column = "grams"
[price_per_kwh.here]
value = -0.01
""",
    )

    device, pool = world.devices["gpu"], world.pools[0]
    assert device.clocks_mhz == (500, 750, 1000)
    assert device.relative_clocks == (0.25, 0.375, 0.5)
    assert device.loads["a"].watts == (50.0, 100.0, 200.0)
    assert device.loads["a"].scaling.efficiency_by_count == {2: 0.9, 8: 0.5}
    assert device.loads["a"].memory_gib == 8.0
    assert device.loads["b"].watts == (50.0, 75.0, 100.0)
    assert device.loads["b"].seconds_per_unit == pytest.approx((0.5, 1 / 3, 0.25))
    assert device.loads["b"].scaling == Scaling()
    assert device.pair("b", "a") == PairSpeed(speed=0.75, partner_speed=0.5, watts=180.0)
    assert device.thermal == Thermal(
        resistance_kelvin_per_watt=0.2, time_constant_seconds=30.0, ambient_celsius=20.0, limit_celsius=90.0
    )
    assert (device.power_limit_watts, device.memory_gib, device.is_cpu) == (150.0, 16.0, True)
    assert (pool.jobs_per_gpu, pool.host_busy_watts, pool.link_gigabytes_per_second) == (2, 500.0, 10.0)
    assert pool.suspend == SuspendSettings(
        idle_seconds=600.0, resume_seconds=60.0, suspended_watts=10.0, resume_watts=400.0
    )
    assert (world.partitions[0].max_time_seconds, world.partitions[0].max_gpus_per_job) == (3600.0, 4)
    assert world.partitions[0].is_default
    assert (world.discipline.order, world.discipline.backfill, world.requeue) == ("sjf", "none", False)
    assert (world.backfill_interval_seconds, world.backfill_depth, world.launch_seconds) == (30.0, 7, 1.5)
    assert (world.workload, world.workload_settings) == ("poisson", {"rate_per_second": 0.5, "kind": "x"})
    assert (world.ingresses, world.latency_seconds) == (("door",), {("door", "here"): 0.25})
    assert world.failures == FailureRates(node_mtbf_seconds=1e6, gpu_mtbf_seconds=2e6, mean_repair_seconds=10.0)
    assert world.outages == (Outage(pool="p", at_seconds=5.0, until_seconds=50.0, nodes=1, gpus=2),)
    assert world.congestion == Series(times_seconds=(0.0, 10.0), values=(1.0, 0.5))
    assert world.ambient_celsius == Series(times_seconds=(0.0,), values=(30.0,))
    assert world.power_budget_watts == Series(
        times_seconds=(0.0, 10.0, 20.0, 30.0), values=(1000.0, 2000.0, 1000.0, 2000.0)
    )
    assert world.carbon_grams_per_kwh == {"here": Series(times_seconds=(0.0, 3600.0), values=(100.0, 200.5))}
    assert world.price_per_kwh == {"here": Series(times_seconds=(0.0,), values=(-0.01,))}
    assert (world.horizon_seconds, world.published_log_seconds, world.source) == (100.0, 20.0, "made up")


def test_a_limit_between_two_clocks_holds_in_between_or_on_the_grid(tmp_path: Path) -> None:
    between = made(tmp_path, SMALL.replace("free_watts", "power_limit_watts = 120\nfree_watts"))
    on_grid = made(tmp_path, SMALL.replace("free_watts", "power_limit_watts = 120\nlimit_on_grid = true\nfree_watts"))

    assert between.devices["gpu"].loads["training"].watts == pytest.approx((77.5, 120.0))
    assert on_grid.devices["gpu"].loads["training"].watts == (77.5, 77.5)


def test_curves_give_every_kind_of_a_type_at_its_own_clocks(tmp_path: Path) -> None:
    text = '[devices.gpu]\ncurves = "a100-sxm4-80gb"\nfree_watts = 60\n' + POOL + PARTITION

    device = made(tmp_path, text).devices["gpu"]

    assert (len(device.clocks_mhz), device.clocks_mhz[0], device.clocks_mhz[-1]) == (38, 855, 1410)
    assert "bloom-forward-stage-7" in device.loads
    assert device.relative_clocks[-1] == 1.0


def test_units_are_seconds_of_the_unit_device_where_there_is_one(tmp_path: Path) -> None:
    second = DEVICE.replace("devices.gpu", "devices.slow").replace("[0.5, 1, 0.25]", "[0, 10, 0]")
    third = DEVICE.replace("devices.gpu", "devices.fast") + "relative_speed = 4\n"
    pools = (
        POOL + POOL.replace('"gpu"', '"slow"').replace(".p", ".q") + POOL.replace('"gpu"', '"fast"').replace(".p", ".r")
    )
    text = 'unit_device = "gpu"\n' + DEVICE + second + third + pools + '[partitions.m]\npools = ["p", "q", "r"]\n'

    devices = made(tmp_path, text).devices

    assert devices["gpu"].loads["training"].seconds_per_unit == (1.8, 1.0)
    assert devices["slow"].loads["training"].seconds_per_unit == (16.0, 8.0)
    assert devices["fast"].loads["training"].seconds_per_unit == pytest.approx((0.45, 0.25))


@pytest.mark.parametrize("name", world_names())
def test_a_written_world_reads_back_the_same(name: str, tmp_path: Path) -> None:
    world = shipped_world(name)

    assert made(tmp_path, world_to_toml(world)) == world


@given(
    name=st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cn", "Co", "Cf", "Zs")), min_size=1),
    source=st.text(),
    watts=st.floats(0.0, 1e5),
    clocks=st.lists(st.floats(0.01, 10.0), min_size=2, max_size=2, unique=True).map(sorted),
)
def test_whatever_is_in_a_world_reads_back_the_same(
    tmp_path: Path, name: str, source: str, watts: float, clocks: list[float]
) -> None:
    name = name[:100]
    small = made(tmp_path)
    device = replace(small.devices["gpu"], free_watts=watts, relative_clocks=tuple(clocks), clocks_mhz=(3, 7))
    device = replace(
        device,
        loads={name: device.loads["training"]},
        pairs={(name, name): PairSpeed(speed=1, partner_speed=0.5, watts=watts)},
    )
    world = replace(small, devices={"gpu": device}, source=source, ingresses=(name,))

    assert made(tmp_path, world_to_toml(world)) == world


def test_a_name_means_the_packages_world_and_a_path_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL, encoding="utf-8")

    assert find_world("chsac").name == "chsac"
    assert find_world(str(path)).name == "mine"
    with pytest.raises(ConfigError, match="'chsca' is not in the package; did you mean chsac"):
        find_world("chsca")
    with pytest.raises(ConfigError, match="does not exist"):
        find_world(str(tmp_path / "none.toml"))
    for odd in (f"{tmp_path}/", "/dev/zero"):
        with pytest.raises(ConfigError, match=f"{odd.rstrip('/')} is no regular file"):
            find_world(odd)
