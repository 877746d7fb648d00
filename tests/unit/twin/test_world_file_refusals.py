"""World files that cannot be are refused by name, with the files beside them."""

from pathlib import Path

import pytest
from world_texts import DEVICE, PARTITION, POOL, SMALL, made

from slurm_energy.errors import ConfigError


def refused(folder: Path, text: str) -> str:
    """The message with which a text is refused."""
    with pytest.raises(ConfigError) as caught:
        made(folder, text)
    message = str(caught.value)
    assert "small.toml" in message or str(folder) in message
    return message


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
