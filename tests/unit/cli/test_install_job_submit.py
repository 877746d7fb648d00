"""What `install` writes for slurmctld: the look at the plugin before each start, and the Lua script."""

import re
from pathlib import Path

import pytest
from install_root import SLURM_CONF, planned, run, site_root

from slurm_energy.cli.installing.plan import Installation
from slurm_energy.cli.installing.roles import InstallOptions
from slurm_energy.cli.site import read_slurm_conf
from slurm_energy.config import Config, parse_config


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return site_root(tmp_path)


def test_slurmctlds_unit_looks_at_the_plugin_before_each_start_and_cannot_fail_by_it(root: Path) -> None:
    text = planned(root, roles=("controller",))["/etc/systemd/system/slurmctld.service.d/slurm-energy.conf"]
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStartPre=")]
    assert re.fullmatch(
        r"ExecStartPre=-\+/usr/bin/timeout --kill-after=5 \d\d /opt/venv/bin/python .*--before-start", line
    )
    assert "slurmctld.service.d" not in " ".join(planned(root, roles=("node", "login")))


def test_a_site_without_a_script_gets_one_that_loads_ours(root: Path) -> None:
    config = parse_config({"daemon": {"socket_path": "/run/e/s.sock"}}, source="test", environment={})
    files = planned(root, config, roles=("controller",), job_submit="lua")
    assert 'pcall(dofile, "/etc/slurm-energy/job_submit.lua")' in files["/etc/slurm/job_submit.lua"]
    assert '\nlocal SOCKET = "/run/e/s.sock.ctl"\n' in files["/etc/slurm-energy/job_submit.lua"]
    assert "\nlocal DEADLINE_SECONDS = 0.05\n" in files["/etc/slurm-energy/job_submit.lua"]


RULES = ("ENFORCES_ALL_LIMITS", "HAS_JOB_DEFAULTS", "VALIDATES_PREFERENCES")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", (False, False, True)),
        ("EnforcePartLimits=ANY\nSchedulerParameters=defer,ignore_prefer_validation,bf_interval=5\n", (False,) * 3),
        ("enforcepartlimits = all\nPartitionName=a Nodes=n1 JobDefaults=DefCpuPerGPU=4\n", (True, True, True)),
        ("# JobDefaults=DefCpuPerGPU=4\nEnforcePartLimits=NO # was ALL\n", (False, False, True)),
        (None, (True, True, True)),
    ],
    ids=["nothing", "lenient", "strict", "comments", "unreadable"],
)
def test_the_lua_script_has_what_slurm_conf_says_and_the_strict_case_where_it_cannot_be_read(
    root: Path, lines: str | None, expected: tuple[bool, ...]
) -> None:
    conf = root / "etc/slurm/slurm.conf"
    if lines is None:
        conf.unlink()
    else:
        conf.write_text(conf.read_text() + lines)
    script = planned(root, roles=("controller",), job_submit="lua")["/etc/slurm-energy/job_submit.lua"]
    found = tuple(re.findall(rf"^local {name} = (\w+)", script, re.MULTILINE) == ["true"] for name in RULES)
    assert found == expected


def test_a_sites_own_script_is_never_touched(root: Path) -> None:
    (root / "etc/slurm/job_submit.lua").write_text("-- ours\n")
    options = InstallOptions(root=root, roles=("controller",), job_submit="lua")
    installation = Installation(Config(), options, environment={})
    assert "/etc/slurm/job_submit.lua" not in {str(item.path) for item in installation.files()}
    assert any("is this site's own and stays" in remark for remark in installation.remarks)


@pytest.mark.parametrize(
    ("before", "after"), [("lua", "lua"), ("", "lua"), ("require_timelimit", "require_timelimit,lua")]
)
def test_lua_is_put_into_the_list_once(root: Path, before: str, after: str) -> None:
    conf = root / "etc/slurm/slurm.conf"
    line = f"JobSubmitPlugins={before}\n" if before else ""
    conf.write_text(SLURM_CONF.replace("JobSubmitPlugins=lua\n", line))
    run(root, "--role", "controller", "--job-submit", "lua", "--edit-slurm-conf", "--yes")
    assert read_slurm_conf(Path("/etc/slurm/slurm.conf"), root)["jobsubmitplugins"].split(" ")[0] == after
