from dataclasses import replace
from typing import Any

import pytest
from policy_factory import A40, A100, make_config

from slurm_energy.config import Config, DaemonConfig, NodeConfig, PolicyConfig, StoreConfig
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.errors import ConfigError
from slurm_energy.node.clock_plan import site_clock_mhz
from slurm_energy.policy.registry import create_policy, known_policy_names
from slurm_energy.policy.site.check import check_site, site_faults, site_notes


def with_node(config: Config | None = None, **changes: Any) -> Config:
    return replace(config or make_config(), node=NodeConfig(**changes))


def only_fault(config: Config) -> str:
    (fault,) = site_faults(config)
    return fault


def test_defaults_and_an_ordinary_site_have_no_fault() -> None:
    check_site(Config())
    site = make_config(
        name="fixed-clock",
        fixed_clocks_mhz={"a100": 1200, "big": 1500, "v100-sxm2-16gb": 1290},
        gpu_types={"big": "a40"},
        gpu_power_limits_watts={"a100": 500.0},
        routing_partitions=("gpu", "a100_long", "gpu-2.x"),
    )
    check_site(with_node(site, daemon_address="ctl:8470", site_locked_clocks_mhz={"a100": 1350, "a40": 1740}))
    assert list(site_notes(site)) == []


def test_unknown_policy_is_named_with_the_known_ones() -> None:
    assert only_fault(make_config(name="magic")) == (
        f"policy.name: policy 'magic' does not exist; known: auto, {', '.join(known_policy_names())}"
    )


def test_every_fault_is_a_line_of_its_own() -> None:
    config = make_config(name="magic", gpu_types={"x": "a1oo"}, routing_partitions=("a b",))
    with pytest.raises(ConfigError) as raised:
        check_site(config)
    assert [line.split()[0] for line in str(raised.value).splitlines()] == [
        "policy.name:",
        "gpu_types.x",
        "routing.partitions",
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"socket_path": f"/run/{'x' * 98}"}, None),
        ({"socket_path": f"/run/{'x' * 99}"}, "daemon.socket_path has 104 bytes"),
        ({"socket_path": f"/run/{'é' * 50}"}, "daemon.socket_path has 105 bytes"),
        ({"socket_path": "energyd.sock"}, "daemon.socket_path is 'energyd.sock'"),
        ({"state_directory": "state"}, "daemon.state_directory is 'state'"),
    ],
)
def test_a_path_at_which_the_daemon_could_not_listen_or_write_is_a_fault(
    changes: dict[str, Any], named: str | None
) -> None:
    faults = list(site_faults(replace(Config(), daemon=DaemonConfig(**changes))))
    assert [named is not None and fault.startswith(named) for fault in faults] == ([] if named is None else [True])


def test_gpu_types_value_that_is_no_catalogue_name_is_named_with_the_known_ones() -> None:
    fault = only_fault(make_config(gpu_types={"x": "a100"}))
    assert fault.startswith("gpu_types.x is 'a100', which is not in the catalogue; known: a100-pcie-40gb, ")
    assert all(name in fault for name in CATALOG)


@pytest.mark.parametrize(
    ("key", "clock", "fault"),
    [
        ("a1oo", 1200, "policy.fixed_clocks_mhz.a1oo names no GPU type"),
        ("a100", 1234, "1234, which is not in the clock table of a100-sxm4-80gb: 855 to 1410 MHz; the nearest is 1230"),
        ("a100", 300, "policy.fixed_clocks_mhz.a100 is 300, .* 855 to 1410 MHz; the nearest is 855 MHz"),
        ("a40", 2000, "policy.fixed_clocks_mhz.a40 is 2000, .* to 1740 MHz; the nearest is 1740 MHz"),
        ("t4", 900, "policy.fixed_clocks_mhz.t4 is 900, but t4 has no clock table: .*measured: .*a40"),
    ],
)
def test_fixed_clock_that_can_never_be_set_is_a_fault(key: str, clock: int, fault: str) -> None:
    for policy in ("oracle", "fixed-clock"):
        with pytest.raises(ConfigError, match=fault):
            check_site(make_config(name=policy, fixed_clocks_mhz={key: clock}))


def test_fixed_clocks_follow_the_sites_own_gres_types() -> None:
    config = make_config(name="fixed-clock", fixed_clocks_mhz={"a100": 1500}, gpu_types={"a100": "a40"})
    check_site(config)
    assert create_policy(config)._clocks_mhz == {A40: 1500}  # type: ignore[attr-defined]  # what the policy will use


def test_fixed_clock_policy_does_not_start_with_a_type_that_nobody_knows() -> None:
    with pytest.raises(ConfigError, match=r"fixed_clocks_mhz\.a1oo names no GPU type"):
        create_policy(make_config(name="fixed-clock", fixed_clocks_mhz={"a1oo": 1200}))


def test_two_clocks_for_one_type_are_a_fault_and_twice_the_same_is_none() -> None:
    twice = {"a100": 1200, "a100-sxm4-80gb": 1200}
    check_site(with_node(make_config(fixed_clocks_mhz=twice), site_locked_clocks_mhz=twice))
    different = {"a100": 1200, "a100-sxm4-80gb": 1215}
    faults = list(site_faults(with_node(make_config(fixed_clocks_mhz=different), site_locked_clocks_mhz=different)))
    told = "a100 and a100-sxm4-80gb are both a100-sxm4-80gb and cannot have 1200 and 1215 MHz"
    assert faults == [f"policy.fixed_clocks_mhz: {told}", f"node.site_locked_clocks_mhz: {told}"]


@pytest.mark.parametrize(
    ("key", "clock", "fault"),
    [
        ("a1oo", 1200, "node.site_locked_clocks_mhz.a1oo names no GPU type that hooks know.*a100-sxm4-80gb"),
        ("big", 1200, "node.site_locked_clocks_mhz.big names no GPU type that hooks know; they do not read"),
        ("a100", 1201, "node.site_locked_clocks_mhz.a100 is 1201, .* 210 to 1410 MHz; the nearest is 1200 MHz"),
        ("t4", 1600, "node.site_locked_clocks_mhz.t4 is 1600, but t4 runs at 1590 MHz at most"),
        ("v100", 1290, "v100 means v100-sxm2-16gb to hooks and v100-sxm2-32gb by"),
    ],
)
def test_site_lock_that_cannot_be_is_a_fault(key: str, clock: int, fault: str) -> None:
    site = make_config(gpu_types={"big": "a40", "v100": "v100-sxm2-32gb"})
    with pytest.raises(ConfigError, match=fault):
        check_site(with_node(site, site_locked_clocks_mhz={key: clock}))


def test_site_lock_of_a_type_without_a_clock_table_is_taken_and_said_to_be_unchecked() -> None:
    config = with_node(site_locked_clocks_mhz={"t4": 900})
    check_site(config)
    (note,) = site_notes(config)
    assert "site_locked_clocks_mhz.t4: the catalogue has no clock table of t4" in note


@pytest.mark.parametrize("key", ["a100", "A100", "a100-sxm4-80gb", "nvidia_a100-sxm4-80gb"])
def test_every_key_that_the_check_takes_is_found_by_the_prolog(key: str) -> None:
    check_site(with_node(site_locked_clocks_mhz={key: 1350}))
    assert site_clock_mhz({"v100": 900, key: 1350}, A100) == 1350
    assert site_clock_mhz({key: 1350}, A40) is None
    assert site_clock_mhz({key: 1350, "nonsense": 1}, None) is None


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@h/d", "oracle://u:secret@h/d", "u:secret@h", "postgresql+pg8000://h"]
)
def test_unsupported_database_is_a_fault_that_shows_no_password(url: str) -> None:
    fault = only_fault(replace(make_config(), store=StoreConfig(url=url)))
    assert fault.startswith("store.url") and "sqlite" in fault and "secret" not in fault


@pytest.mark.parametrize("address", ["ctl", "ctl:0", "http://ctl:8470", "ctl:99999", "a b:1"])
def test_daemon_address_that_is_not_host_and_port_is_a_fault(address: str) -> None:
    assert only_fault(with_node(daemon_address=address)).startswith(f"node.daemon_address is {address!r}, HOST:PORT")


@pytest.mark.parametrize("name", ["", "a b", "a,b", "gpu*", "a=b", "ü", "a" * 65, "a\n"])
def test_partition_that_slurm_could_not_have_is_a_fault(name: str) -> None:
    fault = only_fault(make_config(routing_partitions=("gpu", name)))
    assert fault.startswith(f"routing.partitions has {name[:64]!r}, which no partition can be called")


def test_a_fixed_clock_that_no_job_gets_is_noted_with_the_way_to_set_it() -> None:
    def notes(**changes: Any) -> list[str]:
        policy = replace(PolicyConfig(), name="fixed-clock", fixed_clocks_mhz={"a100": 1140}, **changes)
        return list(site_notes(Config(policy=policy)))

    (note,) = notes()
    assert note.startswith("policy.fixed_clocks_mhz.a100: jobs get a faster clock than 1140 MHz")
    assert note.endswith("min_saving_per_slowdown = 0")
    assert notes(min_saving_per_slowdown=0.0) == []
