"""Slices of a GPU as devices of a world."""

from pathlib import Path

import pytest

from slurm_energy.errors import ConfigError, ValueRangeError
from slurm_energy.twin.world.device_model import DeviceModel, Load
from slurm_energy.twin.world.devices import MEMORY_EIGHTHS, mig_slice, slice_speed
from slurm_energy.twin.world.file import load_world

WHOLE = DeviceModel(
    name="a100",
    relative_clocks=(0.6, 1.0),
    loads={
        "job": Load(watts=(150.0, 300.0), seconds_per_unit=(1.4, 1.0)),
        "lazy": Load(watts=(50.0, 55.0), seconds_per_unit=(1.0, 1.0)),
    },
    free_watts=56.0,
    context_watts=70.0,
    memory_gib=40.0,
)


def test_seven_idle_slices_draw_what_the_idle_gpu_draws() -> None:
    assert 7 * mig_slice(WHOLE, 1).free_watts == pytest.approx(WHOLE.free_watts)
    assert 7 * mig_slice(WHOLE, 1).context_watts == pytest.approx(WHOLE.context_watts)


@pytest.mark.parametrize("slices", MEMORY_EIGHTHS)
def test_a_slice_is_slower_and_draws_less_at_every_clock(slices: int) -> None:
    part = mig_slice(WHOLE, slices)
    speed = slice_speed(slices)
    assert slices / 7 * 0.9 <= speed <= 1.0
    assert part.loads["job"].seconds_per_unit == pytest.approx((1.4 / speed, 1.0 / speed))
    for kind, load in part.loads.items():
        assert all(watts <= whole for watts, whole in zip(load.watts, WHOLE.loads[kind].watts, strict=True))
    assert part.loads["job"].watts[1] == pytest.approx(56.0 * slices / 7 + 244.0 * speed)
    assert part.memory_gib == 40.0 * MEMORY_EIGHTHS[slices] / 8


def test_speed_grows_with_the_slice_and_the_whole_is_the_whole() -> None:
    speeds = [slice_speed(slices) for slices in MEMORY_EIGHTHS]
    assert speeds == sorted(speeds)
    assert speeds[-1] == pytest.approx(1.0)


def test_a_slice_that_no_profile_has_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="5 MIG compute slices are not one of 1, 2, 3, 4, 7"):
        mig_slice(WHOLE, 5)


def test_a_world_file_gives_a_pool_of_slices(tmp_path: Path) -> None:
    text = """
name = "sliced"
[devices.third]
relative_clocks = [1.0]
free_watts = 56
memory_gib = 40
mig_slices = SLICES
[devices.third.kinds.job]
watts = [300.0]
seconds_per_unit = [1.0]
[pools.nodes]
device = "third"
nodes = 2
gpus_per_node = 16
[partitions.gpu]
pools = ["nodes"]
"""
    path = tmp_path / "sliced.toml"
    path.write_text(text.replace("SLICES", "3"))
    device = load_world(path).devices["third"]
    assert (device.free_watts, device.memory_gib) == (24.0, 20.0)
    assert device.loads["job"].seconds_per_unit == pytest.approx((1.0 / slice_speed(3),))
    path.write_text(text.replace("SLICES", "6"))
    with pytest.raises(ConfigError, match="6 MIG compute slices"):
        load_world(path)
