"""Settings: order, bounds and clear refusals."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from slurm_energy.config import Config, load_config
from slurm_energy.errors import ConfigError
from slurm_energy.settings import default_of


def write(folder: Path, text: str) -> Path:
    path = folder / "slurm-energy.toml"
    path.write_text(text)
    return path


def test_the_environment_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    path = write(tmp_path, "[daemon]\nreport_port = 9000\nsnapshot_interval_seconds = 2\n")
    config = load_config(path, environment={"SLURM_ENERGY_DAEMON_REPORT_PORT": "9001"})
    assert config.daemon.report_port == 9001
    assert config.daemon.snapshot_interval_seconds == 2.0
    assert config.daemon.log_level == "INFO"
    assert config.origins == {
        "daemon.report_port": "$SLURM_ENERGY_DAEMON_REPORT_PORT",
        "daemon.snapshot_interval_seconds": str(path),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[deamon]\n", r"has no 'deamon'; did you mean daemon\?"),
        ("[daemon]\nport = 1\n", r"\[daemon\] has no 'port'; there are socket_path, "),
        ("[daemon]\nreport_port = 70000\n", "daemon.report_port is 70000, it must be between 1 and 65535"),
        ("[daemon]\nreport_port = true\n", "daemon.report_port is True, it must be a whole number"),
        ("[daemon]\nreport_port = '1'\n", "daemon.report_port is '1', it must be a whole number"),
        ("[plugin]\ndeadline_milliseconds = 501\n", "must be between 1 and 500"),
        ("[policy]\nmax_slowdown = nan\n", "policy.max_slowdown is nan, it must be between 0 and 2"),
        ("[policy]\nmax_slowdown = -0.1\n", "must be between 0 and 2"),
        ("[policy]\ndefault_mode = 'turbo'\n", "'turbo', allowed: off, observe, balanced, saver"),
        ("[policy.fixed_clocks_mhz]\na100 = 25000\n", "fixed_clocks_mhz.a100 is 25000, it must be between 1 and 10000"),
        ("[routing]\npartitions = 'a100'\n", r"routing.partitions is 'a100', it must be a list"),
        (
            "[gpu_power_limits_watts]\na100 = 9.9\n",
            "gpu_power_limits_watts.a100 is 9.9, it must be between 10 and 3000",
        ),
        ("[gpu_power_limits_watts]\na100 = 3001\n", "gpu_power_limits_watts.a100 is 3001.0, it must be between 10 and"),
        ("[gpu_power_limits_watts]\na100 = inf\n", "must be between 10 and 3000"),
        ("[gpu_power_limits_watts]\na100 = '500'\n", "gpu_power_limits_watts.a100 is '500', it must be a number"),
        ("[gpu_power_limits_watts]\na100 = true\n", "gpu_power_limits_watts.a100 is True, it must be a number"),
        ("gpu_power_limits_watts = 500\n", "gpu_power_limits_watts is 500, it must be a table"),
        ('[node]\nspool_directory = "a\\nb"\n', "line breaks and NUL are not allowed"),
        ("daemon = 3\n", r"\[daemon\] is 3, it must be a table"),
        ("[daemon\n", "is no TOML"),
        pytest.param(
            f"[policy]\nmax_slowdown = 1{'0' * 400}\n",
            "policy.max_slowdown is a whole number of 1329 bits, TOML has 63 and a sign",
            id="401 digits",
        ),
        pytest.param(
            f"[daemon]\nreport_port = 0x{'f' * 5000}\n",
            "daemon.report_port is a whole number of 20000",
            id="20000 bits",
        ),
        pytest.param(f"[policy]\nmax_slowdown = 1{'0' * 5000}\n", "is no TOML: .*digits", id="5001 digits"),
        pytest.param(f"[policy]\nmax_slowdown = {'[' * 5000}\n", "is no TOML: .*recursion", id="5000 lists"),
        pytest.param(
            f"[policy]\nname = [0x{'f' * 5000}]\n",
            r"policy.name\[0\] is a whole number of 20000 bits",
            id="a list of it",
        ),
        pytest.param(
            f"[policy]\nname{'.a' * 5000} = 1\n", "policy.name.a.a.* is nested deeper than 32", id="5000 tables"
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name_value_and_bound(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text), environment={})


def test_power_limits_of_boards_are_watts_by_gpu_type(tmp_path: Path) -> None:
    path = write(tmp_path, "[gpu_power_limits_watts]\na100 = 500\n'a40' = 250.5\n")
    config = load_config(path, environment={})
    assert config.gpu_power_limits_watts == {"a100": 500.0, "a40": 250.5}
    assert config.origins == {"gpu_power_limits_watts": str(path)}
    assert Config().gpu_power_limits_watts == {}


def test_a_wrong_environment_value_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="SLURM_ENERGY_PLUGIN_MESSAGE is 'maybe', it must be true or false"):
        load_config(environment={"SLURM_ENERGY_PLUGIN_MESSAGE": "maybe"})


@pytest.mark.parametrize("text", [f"1{'0' * 400}", f"1{'0' * 5000}", "[" * 5000], ids=["401", "5001", "lists"])
def test_a_huge_environment_value_names_the_variable(text: str) -> None:
    with pytest.raises(ConfigError, match="SLURM_ENERGY_POLICY_MAX_SLOWDOWN is "):
        load_config(environment={"SLURM_ENERGY_POLICY_MAX_SLOWDOWN": text})


def test_a_named_file_must_exist_but_the_default_may_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "none.toml", environment={})
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(environment={"SLURM_ENERGY_CONFIG": str(tmp_path / "none.toml")})


def test_every_setting_has_a_sentence_and_a_default_inside_its_bound() -> None:
    for section in fields(Config):
        if section.name in {"origins", "gpu_types", "gpu_power_limits_watts"}:
            continue
        kind = default_of(section)
        assert is_dataclass(kind)
        for item in fields(kind):
            assert item.metadata["help"].rstrip().endswith("."), item.name
            bound = item.metadata["bound"]
            if bound is not None:
                default = default_of(item)
                numbers = default.values() if isinstance(default, dict) else [default]
                assert all(map(bound.holds, numbers)), item.name
