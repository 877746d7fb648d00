"""What `install` plans, shows and writes, below a root of its own."""

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from install_root import SLURM_CONF, files, planned, run, site_root

from slurm_energy.cli.config import section_tables
from slurm_energy.cli.installing.plan import Installation
from slurm_energy.cli.installing.roles import InstallOptions, with_site_facts
from slurm_energy.cli.main import cli
from slurm_energy.cli.site import read_slurm_conf
from slurm_energy.config import Config, NodeConfig, load_config, parse_config


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return site_root(tmp_path)


def test_a_dry_run_shows_everything_and_writes_nothing(root: Path) -> None:
    before = files(root)
    code, stdout, stderr = run(root, "--role", "all", "--dry-run", "--diff")
    assert code == 0
    assert "+++ /etc/slurm-energy/slurm-energy.toml" in stdout
    assert "Nothing was written." in stderr
    assert files(root) == before


def test_without_diff_each_new_file_has_one_line_and_the_sites_own_files_show_their_changes(root: Path) -> None:
    code, stdout, stderr = run(root, "--role", "all", "--edit-slurm-conf", "--dry-run")
    lines = stdout.splitlines()
    assert code == 0
    assert len(lines) < 60
    assert sum(line.startswith("  new     /etc/slurm-energy/slurm-energy.toml  +") for line in lines) == 1
    assert "      +JobSubmitPlugins=lua,energy # slurm-energy" in lines
    assert any(line.endswith("manual pages and shell completions below /usr/local/share") for line in lines)
    assert "--diff shows every line" in stderr


def test_a_no_writes_nothing(root: Path) -> None:
    before = files(root)
    code, _, _ = run(root, "--role", "login", stdin="n\n")
    assert code == 1
    assert files(root) == before


def test_everything_is_written_once_and_a_second_run_finds_nothing_to_do(root: Path) -> None:
    assert run(root, "--role", "all", "--yes")[0] == 0
    first = files(root)
    assert {
        "etc/slurm-energy/slurm-energy.toml",
        "etc/slurm-energy/energy-plugin.conf",
        "bin/tru_",
        "etc/slurm/plugstack.conf",
        "etc/systemd/system/slurm-energyd.service",
        "etc/systemd/system/slurm-energy-flush.timer",
        "etc/systemd/system/slurm-energy-repair.service",
        "etc/systemd/system/slurm-energy-repair.timer",
        "etc/slurm-energy/example.sh",
        "etc/slurm-energy/train.sbatch",
        "etc/slurm-energy/retrain.sbatch",
        "etc/systemd/system/slurm-energy-retrain.service",
        "etc/systemd/system/slurm-energy-retrain.timer",
    } <= set(first)
    code, stdout, stderr = run(root, "--role", "all", "--yes")
    assert (code, stdout) == (0, "")
    assert re.search(r"^0 of \d+ files differ", stderr, re.MULTILINE)
    assert files(root) == first


def test_slurm_conf_stays_as_it_is_unless_that_is_wanted(root: Path) -> None:
    _, _, stderr = run(root, "--role", "controller", "--yes")
    assert (root / "etc/slurm/slurm.conf").read_text() == SLURM_CONF
    assert "slurm.conf: remove  JobSubmitPlugins=lua\n" in stderr
    assert "slurm.conf: add     JobSubmitPlugins=lua,energy\n" in stderr
    for _ in range(2):
        run(root, "--role", "controller", "--yes", "--edit-slurm-conf")
        lines = (root / "etc/slurm/slurm.conf").read_text().splitlines()
        assert [line for line in lines if not line.startswith("#")] == [
            *SLURM_CONF.splitlines()[:3],
            "JobSubmitPlugins=lua,energy # slurm-energy",
            "PrologFlags=X11,Alloc # slurm-energy",
            "AccountingStorageType=accounting_storage/slurmdbd",
            "Prolog=/bin/tru[e_] # slurm-energy",
            "Epilog=/bin/tru[e_] # slurm-energy",
        ]


def test_a_changed_file_is_copied_aside_with_its_mode(root: Path) -> None:
    plugstack = root / "etc/slurm/plugstack.conf"
    plugstack.write_text("required /site/own.so arg\n")
    plugstack.chmod(0o640)
    run(root, "--role", "login", "--yes")
    copies = list(plugstack.parent.glob("plugstack.conf.before-*"))
    assert [copy.read_text() for copy in copies] == ["required /site/own.so arg\n"]
    assert copies[0].stat().st_mode & 0o777 == 0o640
    lines = plugstack.read_text().splitlines()
    assert lines[0] == "required /site/own.so arg"
    assert lines[-1] == "include /etc/slurm-energy/plugstack.conf"
    ours = (root / "etc/slurm-energy/plugstack.conf").read_text().splitlines()
    assert ours[-1] == "optional /usr/lib/x86_64-linux-gnu/slurm-wlm/spank_energy.so"


def test_settings_that_the_site_made_are_kept(root: Path) -> None:
    path = root / "etc/slurm-energy/slurm-energy.toml"
    path.parent.mkdir()
    path.write_text(
        '[policy]\nname = "fixed-clock"\n[policy.fixed_clocks_mhz]\n"a100" = 1200\n[gpu_types]\n"my.gpu" = "a40"\n'
    )
    run(root, "--role", "login", "--yes")
    config = load_config(path, environment={})
    assert (config.policy.name, config.policy.fixed_clocks_mhz, config.gpu_types) == (
        "fixed-clock",
        {"a100": 1200},
        {"my.gpu": "a40"},
    )


def test_what_slurm_conf_tells_is_filled_in(root: Path) -> None:
    run(root, "--role", "node", "--yes")
    config = load_config(root / "etc/slurm-energy/slurm-energy.toml", environment={})
    assert config.cluster.name == "north"
    assert config.cluster.slurm_user == "slurmadm"
    assert config.cluster.accounting is True
    assert config.node.daemon_address == "10.0.0.1:8470"
    kept = with_site_facts(config, {"clustername": "other", "slurmctldhost": "x"})
    assert (kept.cluster.name, kept.node.daemon_address) == ("north", "10.0.0.1:8470")


def test_the_written_settings_are_the_settings_in_force_for_every_key(root: Path) -> None:
    text = planned(root, roles=("login",))["/etc/slurm-energy/slurm-energy.toml"]
    assert tomllib.loads(text) == {table.name: {} for table in section_tables(Config())}
    everything = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    config = parse_config(tomllib.loads(everything), source="all", environment={})
    assert config == Config()
    for table in section_tables(Config()):
        for row in table.settings:
            assert f"# {row.key} = {row.toml}\n" in text


def test_the_sites_own_hooks_stay_and_ours_join_them(root: Path) -> None:
    conf = root / "etc/slurm/slurm.conf"
    own = SLURM_CONF + "Prolog=/site/prolog.d/*\nEpilog=/site/epilog.sh\n"
    conf.write_text(own)
    (root / "site/prolog.d").mkdir(parents=True)
    code, _, stderr = run(root, "--role", "all", "--yes", "--edit-slurm-conf")
    assert code == 0
    assert re.findall(r"^(?:Prolog|Epilog)=.*", conf.read_text(), re.MULTILINE) == own.splitlines()[-2:]
    assert (root / "site/prolog.d/00-slurm-energy.sh").read_text() == (root / "bin/tru_").read_text()
    assert "Put at its start:  [ ! -x /bin/tru_ ] || /bin/tru_" in stderr


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_link_of_an_earlier_version_in_a_folder_of_the_site_goes(root: Path, command: str) -> None:
    folder = root / "site/prolog.d"
    folder.mkdir(parents=True)
    (folder / "50-slurm-energy.sh").symlink_to("/etc/slurm-energy/prolog.d/50-slurm-energy.sh")
    (folder / "own").symlink_to("/site/own.sh")
    (root / "etc/slurm/slurm.conf").write_text(SLURM_CONF + "Prolog=/site/prolog.d/*\n")
    words = [command, "--root", str(root), "--role", "node", "--yes"]
    assert CliRunner().invoke(cli, words, standalone_mode=False).return_value == 0
    ours = ["00-slurm-energy.sh"] if command == "install" else []
    assert sorted(path.name for path in folder.iterdir()) == [*ours, "own"]


@pytest.mark.parametrize("calls_ours", [False, True])
def test_beside_one_script_of_the_site_ours_has_a_line_where_slurm_takes_several(root: Path, calls_ours: bool) -> None:
    (root / "site").mkdir()
    (root / "site/p.sh").write_text("#!/bin/sh\n" + ("[ ! -x /bin/tru_ ] || /bin/tru_\n" if calls_ours else ""))
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text(SLURM_CONF + "Prolog=/site/p.sh\nEpilog=/site/epilog-*\n")
    plan = planned(root, roles=("controller", "node"), edit_slurm_conf=True, several_hooks=True)
    hooks = re.findall(r"^(?:Prolog|Epilog)=[^ \n]*", plan["/etc/slurm/slurm.conf"], re.MULTILINE)
    ours = [] if calls_ours else ["Prolog=/bin/tru[e_]"]
    assert hooks == ["Prolog=/site/p.sh", *ours, "Epilog=/site/epilog-*"]
    assert plan["/site/epilog-slurm-energy"] == plan["/bin/tru_"]


def test_no_copy_of_a_changed_hook_is_left_for_the_pattern_that_runs_hooks(root: Path) -> None:
    folder = root / "site/prolog.d"
    folder.mkdir(parents=True)
    (root / "etc/slurm/slurm.conf").write_text(SLURM_CONF + "Prolog=/site/prolog.d/*\n")
    for python in ("/old/python", "/new/python"):
        run(root, "--role", "node", "--yes", "--python", python)
    assert "/new/python" in (folder / "00-slurm-energy.sh").read_text()
    assert [path.name for path in folder.iterdir()] == ["00-slurm-energy.sh"]


def test_the_hook_runs_under_the_chosen_interpreter(root: Path) -> None:
    hook = planned(root, roles=("node",))["/bin/tru_"]
    assert "@PYTHON@" not in hook
    assert "'/opt/venv/bin/python' -I" in hook


def test_the_hook_looks_at_jobs_without_gpus_only_where_the_site_wants_it(root: Path) -> None:
    config = Config(node=NodeConfig(cpu_jobs=True))
    first, second, *_ = planned(root, config, roles=("node",))["/bin/tru_"].splitlines()
    assert (first, second) == ("#!/bin/sh", "export SLURM_ENERGY_NODE_CPU_JOBS=true")
    assert "CPU_JOBS" not in planned(root, roles=("node",))["/bin/tru_"]


def test_cron_takes_the_place_of_the_timers(root: Path) -> None:
    plan = planned(root, roles=("node",), scheduler="cron")
    assert not [path for path in plan if "systemd" in path]
    lines = plan["/etc/cron.d/slurm-energy"]
    for when, verb in (("* * * * *", "flush"), ("*/5 * * * *", "repair"), ("@reboot", "repair")):
        assert f"\n{when} root /opt/venv/bin/python -I -m slurm_energy.node.main {verb} " in lines


def test_repair_runs_every_five_minutes_and_at_boot(root: Path) -> None:
    plan = planned(root, roles=("node",))
    timer = plan["/etc/systemd/system/slurm-energy-repair.timer"].splitlines()
    assert {"OnBootSec=1min", "OnUnitInactiveSec=5min", "WantedBy=timers.target"} <= set(timer)
    service = plan["/etc/systemd/system/slurm-energy-repair.service"].splitlines()
    assert {"Before=slurmd.service", "WantedBy=multi-user.target"} <= set(service)
    assert next(line for line in service if line.startswith("ExecStart=")).endswith(" repair")  # without --all
    _, _, said = run(root, "--role", "node", "--yes")
    assert "enable --now slurm-energy-flush.timer slurm-energy-repair.timer slurm-energy-repair.service" in said


def test_folders_outside_the_usual_places_are_opened_to_the_daemon(root: Path) -> None:
    document = {
        "daemon": {"state_directory": "/data/my energy", "socket_path": "/srv/e/d.sock"},
        "store": {"url": "sqlite:////db/100%/e.sqlite"},
    }
    config = parse_config(document, source="test", environment={})
    unit = planned(root, config, roles=("controller",))["/etc/systemd/system/slurm-energyd.service"]
    assert [line for line in unit.splitlines() if line.startswith("ReadWritePaths")] == [
        'ReadWritePaths="/data/my energy"',
        "ReadWritePaths=/srv/e",
        "ReadWritePaths=/db/100%%",
    ]
    assert "StateDirectory=" not in unit


def test_plugin_settings_follow_the_configuration(root: Path) -> None:
    document = {"plugin": {"deadline_milliseconds": 80, "message": False, "breaker_seconds": 2.5}}
    config = parse_config(document, source="test", environment={})
    text = planned(root, config, roles=("controller",))["/etc/slurm-energy/energy-plugin.conf"]
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "socket=/run/slurm-energy/energyd.sock.ctl",
        "deadline_milliseconds=80",
        "message=no",
        "breaker_failures=3",
        "breaker_seconds=2.5",
    ]


def test_each_host_says_for_itself_where_its_spank_plugin_is(root: Path) -> None:
    files = planned(root, roles=("login",), plugin_directory=Path("/opt/slurm/24.11.5/lib/slurm"))
    assert files["/etc/slurm/plugstack.conf"].splitlines()[-1] == "include /etc/slurm-energy/plugstack.conf"
    own = files["/etc/slurm-energy/plugstack.conf"].splitlines()
    assert own[-1] == "optional /opt/slurm/24.11.5/lib/slurm/spank_energy.so"


@pytest.mark.parametrize("place", ["/run/slurm/conf", "/var/spool/slurmd/conf-cache"])
def test_what_slurmd_fetched_from_slurmctld_is_left_alone(root: Path, place: str) -> None:
    (root / "etc/slurm/slurm.conf").unlink()
    cache = root / place.lstrip("/")
    cache.mkdir(parents=True)
    (cache / "slurm.conf").write_text(SLURM_CONF)
    config = parse_config({"cluster": {"slurm_conf": f"{place}/slurm.conf"}}, source="test", environment={})
    options = InstallOptions(root=root, roles=("node", "login"))
    installation = Installation(config, options, environment={})
    paths = [item.path for item in (*installation.files(), *installation.removals(with_sbatch_options=True))]
    assert not [path for path in paths if path.is_relative_to(place)]
    assert any("configless" in remark for remark in installation.remarks)


def test_reports_go_to_every_controller_in_slurms_order(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("SlurmctldHost=one(10.0.0.1)\nClusterName=lab\nslurmctldhost = two.example(10.0.0.2)\n")
    conf = read_slurm_conf(path)
    assert conf["slurmctldhost"] == "one(10.0.0.1),two.example(10.0.0.2)"
    assert with_site_facts(Config(), conf).node.daemon_address == "10.0.0.1:8470,10.0.0.2:8470"
    path.write_text("SlurmctldHost=one\nSlurmctldHost=two.example (fd00::2)\n")
    address = with_site_facts(Config(), read_slurm_conf(path)).node.daemon_address
    assert address == "one:8470,[fd00::2]:8470"


def test_settings_that_hold_a_password_stay_closed(tmp_path: Path) -> None:
    settings = tmp_path / "etc/slurm-energy/slurm-energy.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[store]\nurl = "postgresql://energy:secret@db/energy"\n')
    settings.chmod(0o640)
    options = InstallOptions(roles=("login",), root=tmp_path, plugin_directory=Path("/usr/lib/slurm"))
    (planned, *_) = Installation(load_config(settings), options, {}).files()
    assert (planned.path, planned.mode) == (Path("/etc/slurm-energy/slurm-energy.toml"), 0o640)
