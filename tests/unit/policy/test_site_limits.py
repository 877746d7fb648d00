import pytest
from policy_factory import A40, A100, V100, make_config

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.errors import ConfigError
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.registry import create_policy
from slurm_energy.policy.site.settings import site_board_limits


def test_type_that_the_site_does_not_name_has_the_catalogues_limit() -> None:
    limits = site_board_limits(make_config(gpu_power_limits_watts={}))
    assert [limits.watts(name) for name in (A100, A40, V100)] == [400.0, 300.0, 300.0]


def test_limit_of_a_type_that_nobody_knows_is_infinite() -> None:
    assert site_board_limits(make_config()).watts(GpuTypeName("mi300x")) == float("inf")


@pytest.mark.parametrize("key", ["a100", "A100-SXM4-80GB", "a100-sxm4-80gb", "big"])
def test_key_is_a_gres_type_or_a_catalogue_name(key: str) -> None:
    config = make_config(gpu_types={"big": "a100-sxm4-80gb"}, gpu_power_limits_watts={key: 500.0})
    assert site_board_limits(config).watts(A100) == 500.0


def test_sites_own_meaning_of_a_gres_type_comes_first() -> None:
    config = make_config(gpu_types={"a100": "a100-sxm4-40gb"}, gpu_power_limits_watts={"a100": 350.0})
    limits = site_board_limits(config)
    assert (limits.watts(GpuTypeName("a100-sxm4-40gb")), limits.watts(A100)) == (350.0, 400.0)


@pytest.mark.parametrize(
    ("gpu_types", "key"), [({}, "a1oo"), ({}, "mi300x"), ({}, "gpu"), ({"x": "no-such-type"}, "x")], ids=str
)
def test_key_that_names_no_gpu_type_is_refused_by_daemon_and_policy(gpu_types: dict[str, str], key: str) -> None:
    config = make_config(gpu_types=gpu_types, gpu_power_limits_watts={key: 500.0})
    for start in (site_board_limits, Guard, create_policy):
        with pytest.raises(ConfigError, match=f"gpu_power_limits_watts.{key} names no GPU type"):
            start(config)


def test_two_limits_for_one_type_are_refused_and_twice_the_same_is_not() -> None:
    twice = make_config(gpu_power_limits_watts={"a100": 500.0, "a100-sxm4-80gb": 500.0})
    assert site_board_limits(twice).watts(A100) == 500.0
    with pytest.raises(ConfigError, match="a100 and a100-80gb are both a100-sxm4-80gb and cannot have 500 and 400 W"):
        site_board_limits(make_config(gpu_power_limits_watts={"a100": 500.0, "a100-80gb": 400.0}))
