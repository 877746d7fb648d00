"""World files: what they say becomes the world, and what cannot be is refused by name."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import ConfigError
from slurm_energy.twin.world import FailureRates, Outage, Series, SuspendSettings, World
from slurm_energy.twin.world.device_model import PairSpeed, Scaling, Thermal
from slurm_energy.twin.world.file import find_world, load_world, shipped_world, world_names
from slurm_energy.twin.world.writer import world_to_toml

DEVICE = """
[devices.gpu]
relative_clocks = [0.5, 1.0]
free_watts = 20
[devices.gpu.kinds.training]
power = [100, 50, 40]
runtime = [0.5, 1, 0.25]
"""
POOL = """
[pools.p]
device = "gpu"
nodes = 2
gpus_per_node = 4
"""
PARTITION = """
[partitions.main]
pools = ["p"]
"""
SMALL = DEVICE + POOL + PARTITION


def made(folder: Path, text: str = SMALL) -> World:
    """The world of a file with this text."""
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return load_world(path)


def refused(folder: Path, text: str) -> str:
    """The message with which a text is refused."""
    with pytest.raises(ConfigError) as caught:
        made(folder, text)
    message = str(caught.value)
    assert "small.toml" in message or str(folder) in message
    return message


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


HUGE = "9" * 400
DEEP = "x = " + "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("x = [", ["is no TOML"], id="no TOML"),
        pytest.param(DEEP, ["small.toml"], id="deep nesting"),
        pytest.param(SMALL + POOL, ["is no TOML"], id="duplicate table"),
        pytest.param("", ["no [devices.NAME]"], id="empty file"),
        pytest.param(DEVICE + PARTITION, ["pools"], id="no pool"),
        pytest.param(DEVICE + POOL, ["no partition"], id="no partition"),
        pytest.param("partitons = 1\n" + SMALL, ["'partitons'", "did you mean partitions"], id="unknown top key"),
        pytest.param(SMALL.replace("nodes", "nods"), ["[pools.p]", "nodes is missing"], id="missing key"),
        pytest.param(
            SMALL + "max_gpus = 1", ["[partitions.main]", "'max_gpus'", "did you mean max_gpus_per_job?"], id="near key"
        ),
        pytest.param(SMALL.replace("nodes = 2", "nodes = 0"), ["[pools.p]", "nodes=0", "from 1 to"], id="no nodes"),
        pytest.param(SMALL.replace("nodes = 2", "nodes = 2.5"), ["nodes=2.5", "whole number"], id="half a node"),
        pytest.param(SMALL.replace("nodes = 2", "nodes = true"), ["nodes=True"], id="boolean count"),
        pytest.param(SMALL.replace("nodes = 2", "nodes = 9000000"), ["36000000 devices", "10000000"], id="too many"),
        pytest.param(
            SMALL.replace("nodes = 2", f"nodes = {HUGE}"),
            ["pools.p.nodes is a whole number of ", "bits"],
            id="huge count",
        ),
        pytest.param(
            SMALL.replace("= 20", "= nan"), ["[devices.gpu]", "free_watts=nan", "between 0 and 100000"], id="nan"
        ),
        pytest.param(SMALL.replace("= 20", "= inf"), ["free_watts=inf", "finite"], id="inf"),
        pytest.param(SMALL.replace("= 20", "= -1"), ["free_watts=-1"], id="negative"),
        pytest.param(
            SMALL.replace("= 20", f"= {HUGE}"),
            ["devices.gpu.free_watts is a whole number of ", "bits"],
            id="huge number",
        ),
        pytest.param(SMALL.replace("= 20", '= "20"'), ["free_watts='20'"], id="text for a number"),
        pytest.param(SMALL.replace("= 20", "= false"), ["free_watts=False"], id="boolean for a number"),
        pytest.param(SMALL.replace("[100, 50, 40]", "[100, 50]"), ["power has 2 values", "3"], id="short power"),
        pytest.param(SMALL.replace("[100, 50, 40]", "[100, 50, -1]"), ["power[2]=-1"], id="negative power"),
        pytest.param(SMALL.replace("[100, 50, 40]", '"hot"'), ["power='hot' is not a list"], id="power a text"),
        pytest.param(SMALL.replace("[0.5, 1, 0.25]", "[0, 0, 0]"), ["kinds.training", "all 0"], id="no time"),
        pytest.param(SMALL.replace("runtime", "runtme"), ["runtime is missing"], id="no runtime"),
        pytest.param(
            SMALL.replace("power =", "curve = 'x'\npower ="), ["exactly one of", "power, curve"], id="two forms"
        ),
        pytest.param(SMALL.replace("power = [100, 50, 40]", ""), ["exactly one of", "none given"], id="no form"),
        pytest.param(
            SMALL.replace("[0.5, 1.0]", "[1.0, 0.5]"), ["relative_clocks are not ascending"], id="clock order"
        ),
        pytest.param(SMALL.replace("[0.5, 1.0]", "[]"), ["relative_clocks is empty"], id="no clocks"),
        pytest.param(SMALL.replace("[0.5, 1.0]", "[0.0, 1.0]"), ["relative_clocks[0]=0.0", "above 0"], id="clock 0"),
        pytest.param(
            SMALL.replace("[0.5, 1.0]", "[0.5, 1.0]\nclocks_mhz = [1]"), ["1 clocks in MHz for 2"], id="MHz count"
        ),
        pytest.param(
            SMALL.replace("[0.5, 1.0]", "[0.5, 1.0]\nreference_clock_mhz = 1"), ["exclude each other"], id="two scales"
        ),
        pytest.param(SMALL.replace("relative_clocks = [0.5, 1.0]", ""), ["clocks_mhz is missing"], id="no scale"),
        pytest.param(
            SMALL.replace("relative_clocks = [0.5, 1.0]", "clocks_mhz = {low=1, high=100000, step=1}"),
            ["100000 clocks", "1 to 1000"],
            id="many clocks",
        ),
        pytest.param(
            SMALL.replace("relative_clocks = [0.5, 1.0]", "clocks_mhz = {low=500, high=1000, step=300}"),
            ["high=1000", "step"],
            id="uneven step",
        ),
        pytest.param(
            SMALL.replace("relative_clocks = [0.5, 1.0]", "clocks_mhz = [500.5]"), ["whole numbers"], id="half MHz"
        ),
        pytest.param(
            SMALL.replace("free_watts", "power_limit_watts = 39\nfree_watts"), ["training", "39"], id="limit below idle"
        ),
        pytest.param(
            SMALL.replace("free_watts", "power_limit_watts = 39\nlimit_on_grid = true\nfree_watts"),
            ["training", "=39"],
            id="limit below the grid",
        ),
        pytest.param(
            SMALL.replace("free_watts", 'curves = "a100-sxm4-80g"\nfree_watts'), ["did you mean a100-sxm4"], id="type"
        ),
        pytest.param(
            SMALL.replace("power = [100, 50, 40]", "curve = 'x'").replace("runtime = [0.5, 1, 0.25]", ""),
            ["curve='x'", "curve_of"],
            id="curve of nothing",
        ),
        pytest.param(
            SMALL.replace("power = [100, 50, 40]", "curve_of='a40'\ncurve = 'bloom'").replace(
                "runtime = [0.5, 1, 0.25]", ""
            ),
            ["curve='bloom'", "did you mean bloom-"],
            id="unknown curve",
        ),
        pytest.param(
            '[devices.gpu]\ncurves = "a40"\nclocks_mhz = [300, 900]\nfree_watts = 1\n' + POOL + PARTITION,
            ["300 to 900", "855 to 1740"],
            id="clock never measured",
        ),
        pytest.param(
            '[devices.gpu]\ncurves = "v100-sxm2-16gb"\npoints = "readings"\nfree_watts = 1\n' + POOL + PARTITION,
            ["no readings"],
            id="curve without readings",
        ),
        pytest.param("unit_device = 'cpu'\n" + SMALL, ["unit_device='cpu'", "gpu"], id="unknown unit device"),
        pytest.param(SMALL.replace('"gpu"', '"gpx"'), ["'gpu' is in no pool"], id="unknown device"),
        pytest.param(SMALL.replace('["p"]', '["q"]'), ["'p' is in no partition"], id="unknown pool"),
        pytest.param(SMALL.replace('["p"]', '["p", "q"]'), ["unknown pools ['q']"], id="second pool unknown"),
        pytest.param(SMALL.replace('["p"]', '["p", "p"]'), ["names 'p' twice"], id="pool twice"),
        pytest.param(SMALL.replace('["p"]', "[]"), ["pools is empty"], id="partition without pool"),
        pytest.param(SMALL.replace('["p"]', "[1]"), ["pools=1 is not a name"], id="pool name a number"),
        pytest.param(SMALL.replace("pools.p", 'pools."a\\u0007"'), ["printable"], id="control character"),
        pytest.param(SMALL.replace("pools.p", f'pools."{"x" * 121}"'), ["printable"], id="long name"),
        pytest.param(SMALL.replace("pools.p", 'pools." p"'), ["blank at an end"], id="blank"),
        pytest.param(SMALL.replace("[pools.p]", "[pools]\nq = 1\n[pools.p]"), ["[pools] q=1"], id="pool no table"),
        pytest.param("pools = 3\n" + DEVICE + PARTITION, ["pools=3 is not a table"], id="pools no table"),
        pytest.param(
            SMALL.replace("pools = ", "is_default = true\npools = ") + '[partitions.b]\npools=["p"]\nis_default = true',
            ["more than one partition"],
            id="two defaults",
        ),
        pytest.param(
            SMALL.replace("device =", "host_idle_watts = 5\nhost_busy_watts = 4\ndevice ="), ["[pools.p]"], id="host"
        ),
        pytest.param(SMALL.replace("device =", "jobs_per_gpu = 3\ndevice ="), ["jobs_per_gpu=3", "1 to 2"], id="share"),
        pytest.param(
            SMALL.replace("device =", "suspend = {idle_seconds = 1}\ndevice ="),
            ["[pools.p.suspend]", "resume_seconds is missing"],
            id="half a suspend",
        ),
        pytest.param(SMALL + "[scheduling]\norder = 'lifo'", ["order='lifo'", "fifo, sjf"], id="order"),
        pytest.param(SMALL + "[scheduling]\nrequeue = 1", ["requeue=1", "true or false"], id="requeue a number"),
        pytest.param(SMALL + "[workload.settings]\nx = [1]", ["[workload.settings]", "x=[1]"], id="setting a list"),
        pytest.param(SMALL + "[workload.settings]\nx = nan", ["x=nan"], id="setting nan"),
        pytest.param(SMALL + "[failures]\nnode_mtbf_seconds = 0", ["node_mtbf_seconds=0", "above 0"], id="mtbf"),
        pytest.param(SMALL + "[[outages]]\npool='z'\nat_seconds=1\nnodes=1", ["unknown pool 'z'"], id="outage pool"),
        pytest.param(SMALL + "[[outages]]\npool='p'\nat_seconds=1", ["outages[0]", "nothing goes down"], id="outage 0"),
        pytest.param(
            SMALL + "[[outages]]\npool='p'\nat_seconds=9\nuntil_seconds=9\ngpus=1", ["until_seconds=9"], id="outage end"
        ),
        pytest.param(
            SMALL + "[congestion]\nvalue = 0", ["[congestion] value=0", "above 0, at most 1"], id="congestion 0"
        ),
        pytest.param(SMALL + "[congestion]\nvalue = 1\nvalues = [1]", ["exactly one of value"], id="two series forms"),
        pytest.param(SMALL + "[congestion]\nvalues = [1]", ["times_seconds or every_seconds"], id="series times"),
        pytest.param(
            SMALL + "[congestion]\nvalues = [1, 1]\ntimes_seconds = [5, 5]", ["not ascending"], id="series order"
        ),
        pytest.param(
            SMALL + "[congestion]\nvalues = [1, 1]\ntimes_seconds = [5]",
            ["times_seconds has 1 values"],
            id="series count",
        ),
        pytest.param(
            SMALL + "[congestion]\nvalues = [1, 1]\nevery_seconds = 1\nrepeats = 1000000", ["1000000"], id="series long"
        ),
        pytest.param(SMALL + "[carbon_grams_per_kwh.mars]\nvalue = 1", ["'mars'", "no pool has"], id="region"),
        pytest.param(SMALL + "[ingresses.a.latency_seconds]\nmars = 1", ["'mars'", "region of no pool"], id="latency"),
        pytest.param(
            SMALL.replace("device =", "region = 'r'\ndevice =")
            + POOL.replace(".p", ".q")
            + "[partitions.b]\npools = ['q']\n[ingresses.a.latency_seconds]\nr = 1",
            ["'a' has no latency to region ''"],
            id="latency missing",
        ),
        pytest.param(SMALL + "[ingresses.a.latency_seconds]\nr = -1", ["r=-1"], id="negative latency"),
        pytest.param(
            SMALL.replace("free_watts", "scaling = {efficiency = {0 = 1}}\nfree_watts"), ["'0'"], id="efficiency at 0"
        ),
        pytest.param(
            SMALL.replace("free_watts", "scaling = {efficiency = {2 = 2}}\nfree_watts"), ["2=2", "1.5"], id="efficiency"
        ),
        pytest.param(
            SMALL.replace(
                "free_watts",
                "thermal = {resistance_kelvin_per_watt = 1, time_constant_seconds = 1, "
                "ambient_celsius = 80, limit_celsius = 70}\nfree_watts",
            ),
            ["[devices.gpu.thermal]", "80"],
            id="ambient above limit",
        ),
        pytest.param(
            SMALL + "[[devices.gpu.pairs]]\nkinds = ['training', 'x']\nspeeds = [1, 1]\nwatts = 1", ["'x'"], id="pair"
        ),
        pytest.param(
            SMALL + "[[devices.gpu.pairs]]\nkinds = ['training']\nspeeds = [1, 1]\nwatts = 1",
            ["2 are"],
            id="half a pair",
        ),
        pytest.param(
            SMALL + 2 * "[[devices.gpu.pairs]]\nkinds = ['training', 'training']\nspeeds = [1, 1]\nwatts = 1\n",
            ["pairs[1]", "twice"],
            id="pair twice",
        ),
        pytest.param(
            SMALL + "[[devices.gpu.pairs]]\nkinds = ['training', 'training']\nspeeds = [0, 1]\nwatts = 1",
            ["speeds[0]=0"],
            id="pair speed",
        ),
        pytest.param("name = ''\n" + SMALL, ["name=''"], id="empty name"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    message = refused(tmp_path, text)

    assert [word for word in words if word not in message] == []
    assert len(message) < 700


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["no column 'seconds'"]),
        (b"seconds,value\n", ["no rows"]),
        (b"seconds,value\n0,nan\n", ["s.csv line 2 value=nan"]),
        (b"seconds,value\n0,0\n", ["line 2 value=0.0", "above 0"]),
        (b"seconds,value\n0,much\n", ["line 2 value='much'"]),
        (b"seconds,value\n0\n", ["line 2 value=None"]),
        (b"seconds,value\n-1,1\n", ["line 2 seconds=-1.0"]),
        (b"seconds,value\n5,1\n4,1\n", ["not ascending"]),
        (b"seconds,value\n0,\xff\n", ["cannot be read as CSV"]),
    ],
)
def test_a_series_file_that_cannot_be_is_refused_by_line(tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "s.csv").write_bytes(content)

    message = refused(tmp_path, SMALL + "[power_budget_watts]\nfile = 's.csv'")

    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize("name", ["../secret.csv", "/etc/hostname", "link.csv", ".", "none.csv", "a\\u0000b"])
def test_a_series_file_must_be_an_ordinary_file_inside_the_worlds_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "world"
    folder.mkdir()
    (tmp_path / "secret.csv").write_text("seconds,value\n0,1\n", encoding="utf-8")
    (folder / "link.csv").symlink_to(tmp_path / "secret.csv")

    message = refused(folder, SMALL + f'[power_budget_watts]\nfile = "{name}"')

    assert "[power_budget_watts] file=" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ["cannot be read as JSON"]),
        ("[]", ["not an object"]),
        ('{"devices": {}}', ["no device 'gpu'"]),
        ('{"devices": {"gpu": {"kind": {}}}}', ["k.json", "'kind'", "did you mean kinds"]),
        ('{"devices": {"gpu": {"kinds": {"training": {}}}}}', ["both in kinds and in kinds_file"]),
        ('{"devices": {"gpu": {"kinds": {"a": {"watts": [1, 2], "seconds_per_unit": [1, NaN]}}}}}', ["k.json", "nan"]),
        ('{"devices": {"gpu": {"kinds": {"a": {"watts": [1], "seconds_per_unit": [1]}}}}}', ["watts has 1", "2 are"]),
        ('{"devices": {}, "more": 1}', ["'more'"]),
    ],
)
def test_a_kinds_file_that_cannot_be_is_refused(tmp_path: Path, content: str, words: list[str]) -> None:
    (tmp_path / "k.json").write_text(content, encoding="utf-8")

    message = refused(tmp_path, SMALL.replace("free_watts", "kinds_file = 'k.json'\nfree_watts"))

    assert [word for word in words if word not in message] == []


def test_a_device_without_any_kind_is_refused(tmp_path: Path) -> None:
    text = "[devices.gpu]\nrelative_clocks = [1]\nfree_watts = 1\n" + POOL + PARTITION

    assert "no kind of work can run on it" in refused(tmp_path, text)
