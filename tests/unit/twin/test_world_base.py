"""A world file that is laid over a world of the package."""

from pathlib import Path

import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.twin.world import EstimateErrors
from slurm_energy.twin.world.file import load_world, shipped_world
from slurm_energy.twin.world.writer import world_to_toml


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_tables_add_to_those_of_the_base_and_replace_what_both_have(tmp_path: Path) -> None:
    text = """
base = "chsac"
[pools.us-west]
nodes = 2
gpus_per_node = 8
[estimate_errors]
watts_sigma = 0.25
[workload]
name = "daily"
[workload.settings]
amplitude = 0.6
"""
    world, base = load_world(written(tmp_path, text)), shipped_world("chsac")
    pool = world.pools[0]
    assert (world.name, pool.name, pool.nodes, pool.gpus_per_node, pool.device) == (
        "mine",
        "us-west",
        2,
        8,
        "h100-pcie",
    )
    assert world.pools[1:] == base.pools[1:] and world.devices == base.devices
    assert (world.workload, dict(world.workload_settings)) == ("daily", {"amplitude": 0.6})
    assert (world.horizon_seconds, world.latency_seconds) == (base.horizon_seconds, base.latency_seconds)
    assert world.estimate_errors == EstimateErrors(watts_sigma=0.25)
    assert load_world(written(tmp_path, world_to_toml(world))) == world


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "nowhere"', "is not a world of the package"),
        ("base = 3", "is not a world of the package"),
        ('base = "chsac-misled"', "has a base itself"),
        ('base = "tum128"', "which is not beside this file"),
        ('base = "chsac"\n[estimate_errors]\nwatts_sigma = 9', "watts_sigma=9"),
        ('base = "chsac"\n[estimate_errors]\nsigma = 1', "sigma"),
    ],
)
def test_a_base_that_cannot_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_world(written(tmp_path, text))


def test_the_shipped_worlds_with_a_base_differ_from_it_where_they_say(tmp_path: Path) -> None:
    wakeup, base = shipped_world("chsac-wakeup"), shipped_world("chsac")
    assert [pool.nodes * pool.gpus_per_node for pool in wakeup.pools] == [
        pool.nodes * pool.gpus_per_node for pool in base.pools
    ]
    for pool in wakeup.pools:
        free = pool.gpus_per_node * wakeup.devices[pool.device].free_watts
        assert pool.suspend is not None
        assert pool.suspend.resume_watts == pytest.approx(pool.host_idle_watts + free), pool.name
    failing = shipped_world("tum128-failures")
    lost = {pool.name: pool.gpus_per_node for pool in failing.pools}
    gpus = sum(outage.nodes * lost[outage.pool] for outage in failing.outages)
    total = sum(pool.nodes * pool.gpus_per_node for pool in failing.pools if not failing.devices[pool.device].is_cpu)
    assert gpus / total == pytest.approx(0.1, abs=0.002)
