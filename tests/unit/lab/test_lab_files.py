import tomllib
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.config import parse_config
from slurm_energy.energy_model.catalog import gpu_type_from_device_name
from slurm_energy.lab import products, slurm_files
from slurm_energy.lab.host import Host
from slurm_energy.lab.layout import Layout
from slurm_energy.lab.simgpu.specs import standard_gpus
from slurm_energy.lab.spec import LabSpec, PartitionSpec
from slurm_energy.policy.site.candidates import catalogue_name
from slurm_energy.policy.site.settings import site_board_limits

LAYOUT = Layout(Path("/tmp/lab-of-test"))
SPEC = LabSpec(partitions=(PartitionSpec(name="a100", nodes=2, gpus_per_node=4),))
PORTS = slurm_files.private_ports(SPEC.node_names)


def make_host(**values: Any) -> Host:
    defaults: dict[str, Any] = {
        "slurm_version": (22, 5),
        "plugin_directory": Path("/usr/lib/x/slurm-wlm"),
        "network": "veth",
        "devices": "mknod",
    }
    return Host(**defaults | values)


def settings_of(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if not line.startswith(("NodeName", "PartitionName"))]
    pairs = [(line.split("=", 1)[0], line.split("=", 1)[1]) for line in lines]
    assert len({key.lower() for key, _ in pairs}) == len(pairs), "a key is there twice"
    return dict(pairs)


def test_lab_with_the_product_loads_plugin_and_hooks_from_its_own_folder() -> None:
    conf = settings_of(slurm_files.slurm_conf(SPEC, LAYOUT, make_host(), PORTS, "localhost"))

    assert conf["JobSubmitPlugins"] == "energy"
    assert conf["PluginDir"] == "/usr/lib/x/slurm-wlm:/tmp/lab-of-test/plugins"
    assert conf["Prolog"] == "/tmp/lab-of-test/hooks/prolog.d/*"
    assert conf["Epilog"] == "/tmp/lab-of-test/hooks/epilog.d/*"


def test_plain_lab_names_nothing_of_the_product() -> None:
    spec = LabSpec(partitions=SPEC.partitions, energy=False)

    conf = settings_of(slurm_files.slurm_conf(spec, LAYOUT, make_host(), PORTS, "localhost"))

    assert not {"JobSubmitPlugins", "PlugStackConfig", "Prolog", "Epilog"} & set(conf)


def test_slurm_conf_line_of_the_specification_replaces_the_labs_own() -> None:
    spec = LabSpec(partitions=SPEC.partitions, slurm_conf_lines=("killwait=30", "PriorityType=priority/multifactor"))

    conf = settings_of(slurm_files.slurm_conf(spec, LAYOUT, make_host(), PORTS, "localhost"))

    assert (conf["killwait"], conf["PriorityType"]) == ("30", "priority/multifactor")
    assert "KillWait" not in conf


def test_nodes_of_one_host_differ_in_their_ports() -> None:
    text = slurm_files.slurm_conf(SPEC, LAYOUT, make_host(), PORTS, "localhost")

    nodes = [line.split() for line in text.splitlines() if line.startswith("NodeName")]
    assert [(words[0], words[3]) for words in nodes] == [
        ("NodeName=a100-1", "Port=17001"),
        ("NodeName=a100-2", "Port=17002"),
    ]


def test_ports_on_the_hosts_network_are_the_free_ones_each_once() -> None:
    ports = slurm_files.chosen_ports(["n1", "n2"], [5, 6, 7, 8, 9])

    assert (ports.slurmctld, ports.slurmdbd, ports.report, ports.slurmd) == (5, 6, 7, {"n1": 8, "n2": 9})


@pytest.mark.parametrize(("devices", "stem"), [("mknod", "/tmp/lab-of-test/dev/nvidia[0-3]"), ("tty", "/dev/tty[0-3]")])
def test_gres_conf_names_the_device_files_in_order(devices: str, stem: str) -> None:
    assert slurm_files.gres_conf(SPEC, LAYOUT, make_host(devices=devices)).splitlines() == [
        f"NodeName=a100-1 Name=gpu Type=a100 File={stem}",
        f"NodeName=a100-2 Name=gpu Type=a100 File={stem}",
    ]


@pytest.mark.parametrize(
    ("version", "expected"),
    [((22, 5), None), ((23, 11), None), ((24, 5), "CgroupPlugin=disabled\n"), ((26, 5), "CgroupPlugin=disabled\n")],
)
def test_cgroups_are_switched_off_only_where_slurm_knows_how(version: tuple[int, int], expected: str | None) -> None:
    assert slurm_files.cgroup_conf(version) == expected


def test_users_of_the_lab_get_free_numbers_and_homes_in_the_lab() -> None:
    passwd, group = slurm_files.accounts(
        "root:x:0:0::/root:/bin/sh\nmax:x:20001:5::/:/bin/sh\n", "root:x:0:\n", LAYOUT, ("alice", "bob")
    )

    assert passwd.splitlines()[2:] == [
        "alice:x:20002:20002:alice of the lab:/tmp/lab-of-test/home/alice:/bin/bash",
        "bob:x:20003:20003:bob of the lab:/tmp/lab-of-test/home/bob:/bin/bash",
    ]
    assert group.splitlines() == ["root:x:0:", "alice:x:20002:", "bob:x:20003:"]


def test_every_account_of_the_lab_may_log_in_without_a_password_that_fits() -> None:
    assert slurm_files.shadow("root:x:0:0::/root:/bin/sh\nalice:x:1:1::/:/bin/sh\n").splitlines() == [
        "root:*:19000:0:99999:7:::",
        "alice:*:19000:0:99999:7:::",
    ]


def test_user_whom_the_host_has_keeps_his_numbers_and_is_there_once() -> None:
    passwd, _ = slurm_files.accounts("alice:x:1000:100::/home/alice:/bin/sh\n", "users:x:100:\n", LAYOUT, ("alice",))

    assert passwd == "alice:x:1000:100:alice of the lab:/tmp/lab-of-test/home/alice:/bin/bash\n"


def test_energy_settings_are_toml_that_the_product_reads_back() -> None:
    spec = LabSpec(
        partitions=SPEC.partitions,
        time_scale=30.0,
        settings={
            "policy": {"name": "fixed-clock", "fixed_clocks_mhz": {"a100": 900}},
            "routing": {"open": True, "partitions": ["a100"]},
            "daemon": {"snapshot_interval_seconds": 3},
        },
    )

    text = products.toml(products.energy_settings(spec, LAYOUT, PORTS))
    config = parse_config(tomllib.loads(text), source="test", environment={})

    assert config.daemon.socket_path == "/tmp/lab-of-test/run/energyd.sock"
    assert config.node.spool_directory == "/tmp/lab-of-test/hooks-spool/%n"
    assert (config.node.time_scale, config.node.daemon_address) == (30.0, "127.0.0.1:8470")
    assert (config.policy.name, config.policy.fixed_clocks_mhz) == ("fixed-clock", {"a100": 900})
    assert (config.routing.open, config.routing.partitions) == (True, ("a100",))
    assert config.daemon.snapshot_interval_seconds == 3.0
    assert config.store.url == "sqlite:////tmp/lab-of-test/state/energyd/energy.sqlite"


@pytest.mark.parametrize("gres_type", ["a100", "a40", "v100", "h100"])
def test_daemon_of_the_lab_takes_its_gpus_for_what_they_are(gres_type: str) -> None:
    config = parse_config(
        tomllib.loads(products.toml(products.energy_settings(SPEC, LAYOUT, PORTS))), source="x", environment={}
    )
    gpu = standard_gpus(gres_type, 1, "n1")[0]

    name = catalogue_name(gres_type, config.gpu_types)
    assert name is not None and name == gpu_type_from_device_name(gpu.name)
    assert site_board_limits(config).watts(name) == gpu.power_limit_watts


def test_plugin_settings_of_the_specification_win() -> None:
    spec = LabSpec(plugin_settings={"deadline_milliseconds": "200", "message": "no"})

    assert products.plugin_conf(spec, LAYOUT).splitlines() == [
        "socket=/tmp/lab-of-test/run/energyd.sock.ctl",
        "deadline_milliseconds=200",
        "message=no",
    ]
