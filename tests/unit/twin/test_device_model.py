"""Devices of a world: what cannot be is refused by name."""

from math import inf, nan
from typing import Any

import pytest
from small_worlds import make_device, make_load, make_pool, make_world

from slurm_energy.errors import ValueRangeError
from slurm_energy.twin.world import Partition
from slurm_energy.twin.world.device_model import Load, PairSpeed, Scaling


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"relative_clocks": ()}, "clocks"),
        ({"relative_clocks": (1.0, 0.5, 0.25)}, "clocks"),
        ({"relative_clocks": (0.5, 0.5, 1.0)}, "clocks"),
        ({"relative_clocks": (0.0, 0.5, 1.0)}, "clocks"),
        ({"relative_clocks": (0.25, 0.5, inf)}, "clocks"),
        ({"clocks_mhz": (210, 1410)}, "2 clocks in MHz for 3"),
        ({"loads": {"training": make_load(watts=(1.0,), seconds_per_unit=(1.0,))}}, "load training has 1 points"),
        ({"free_watts": -1.0}, "free_watts=-1.0"),
        ({"context_watts": nan}, "context_watts=nan"),
    ],
)
def test_a_device_that_cannot_be_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueRangeError, match=f"device gpu.*{named}"):
        make_device(**changes)


@pytest.mark.parametrize(
    ("watts", "seconds"),
    [
        ((), ()),
        ((1.0,), (1.0, 2.0)),
        ((-1.0,), (1.0,)),
        ((inf,), (1.0,)),
        ((1.0,), (0.0,)),
        ((1.0,), (inf,)),
        ((nan,), (1.0,)),
    ],
)
def test_a_load_that_cannot_be_is_refused(watts: tuple[float, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueRangeError):
        Load(watts=watts, seconds_per_unit=seconds)


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds_per_device": -0.1},
        {"seconds_per_device": inf},
        {"traffic_gigabytes_per_unit": -1.0},
        {"efficiency_by_count": {2: 0.0}},
        {"efficiency_by_count": {2: 1.6}},
        {"efficiency_by_count": {0: 1.0}},
    ],
)
def test_a_scaling_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueRangeError):
        Scaling(**changes)


def test_efficiency_lies_between_its_measurements() -> None:
    scaling = Scaling(efficiency_by_count={4: 0.8, 16: 0.6})
    assert [scaling.efficiency(count) for count in (1, 2, 4, 8, 16, 99)] == pytest.approx(
        [1.0, 0.9, 0.8, 0.7, 0.6, 0.6]
    )


def test_a_pair_is_the_same_from_either_side() -> None:
    device = make_device(pairs={("a", "b"): PairSpeed(speed=0.9, partner_speed=0.5, watts=210.0)})
    assert device.pair("b", "a") == PairSpeed(speed=0.5, partner_speed=0.9, watts=210.0)
    assert device.pair("a", "c") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 0},
        {"gpus_per_node": 0},
        {"host_idle_watts": 10.0, "host_busy_watts": 5.0},
        {"host_idle_watts": -1.0},
        {"jobs_per_gpu": 3},
        {"link_gigabytes_per_second": 0.0},
        {"link_joules_per_gigabyte": -1.0},
    ],
)
def test_a_pool_that_cannot_be_is_named(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueRangeError, match="pool pool"):
        make_pool(**changes)


def test_a_world_names_what_it_does_not_know() -> None:
    with pytest.raises(ValueRangeError, match="unknown device 'h100'"):
        make_world(make_pool(device="h100"))
    with pytest.raises(ValueRangeError, match="unknown pools"):
        make_world(make_pool(), partitions=(Partition(name="all", pools=("other",)),))
    with pytest.raises(ValueRangeError, match="not unique"):
        make_world(make_pool(), make_pool())
