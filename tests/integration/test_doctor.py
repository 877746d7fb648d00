"""The doctor on hosts that are well and on hosts that are not; Slurm's commands are stand-ins."""

import json
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_site import Site, found, verdicts
from fake_daemon import FakeDaemon

from slurm_energy import __version__
from slurm_energy.cli.doctor import daemon_checks as doctor_of_the_daemon
from slurm_energy.cli.doctor.command import examine
from slurm_energy.cli.doctor.daemon_checks import daemon_checks
from slurm_energy.cli.doctor.finding import Verdict
from slurm_energy.cli.doctor.node_checks import node_checks
from slurm_energy.cli.doctor.slurm_checks import slurm_checks
from slurm_energy.cli.main import main
from slurm_energy.cli.site import detected_roles
from slurm_energy.errors import SlurmError
from slurm_energy.node.processes import SlurmdProcess
from slurm_energy.policy import automatic
from slurm_energy.policy.automatic import shipped_folder
from slurm_energy.policy.checkpoint_files import WEIGHTS_FILE
from slurm_energy.slurm.plugin_file import Release, read_plugin_file
from slurm_energy.wire.codec import Message


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two plugins that claim to be built for Slurm 22.05.8."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler on this machine")
    folder = tmp_path_factory.mktemp("plugins")
    source = folder / "plugin.c"
    source.write_text("extern int missing(void); const unsigned int plugin_version = 22 << 16 | 5 << 8 | 8;\n"
                      "int other = 7; int init(void) { return missing(); }\n"
                      "#ifdef FOLLOWS\nconst unsigned int slurm_energy_follows_release = 1;\n#endif\n")  # fmt: skip
    (folder / "earlier").mkdir()
    for name in ("job_submit_energy.so", "spank_energy.so"):
        subprocess.run(["cc", "-shared", "-fPIC", "-DFOLLOWS", "-o", folder / name, source], check=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "earlier" / name, source], check=True)
    return folder


def test_the_release_a_plugin_was_built_for_is_read_without_loading_it(plugins: Path) -> None:
    assert read_plugin_file(plugins / "spank_energy.so").release == Release(22, 5, 8)
    assert read_plugin_file(plugins / "spank_energy.so").follows
    assert not read_plugin_file(plugins / "earlier/spank_energy.so").follows


@pytest.mark.parametrize(
    "content",
    [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + b"\xff" * 200, b"\x7fELF\x02\x01" + b"\0" * 64],
)
def test_a_file_that_is_no_plugin_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(SlurmError, match="is no Slurm plugin"):
        read_plugin_file(path)


def test_a_plugin_cut_short_is_an_error(plugins: Path, tmp_path: Path) -> None:
    whole = (plugins / "spank_energy.so").read_bytes()
    path = tmp_path / "x.so"
    for size in range(0, len(whole) - 1, 997):
        path.write_bytes(whole[:size])
        with pytest.raises(SlurmError):
            read_plugin_file(path)


def test_a_site_in_order_has_no_fault_on_slurms_side(site: Site, plugins: Path) -> None:
    shutil.copytree(plugins, site.root / "plugins")
    findings = verdicts(slurm_checks(site.situation("controller", "node")))
    assert set(findings.values()) == {Verdict.OK}
    assert len(findings) == 13


@pytest.mark.parametrize(
    ("change", "subject", "verdict"),
    [
        (("JobSubmitPlugins        = lua,energy", "JobSubmitPlugins        = lua"), "JobSubmitPlugins", Verdict.FAIL),
        (("ClusterName             = north", "ClusterName             = south"), "cluster name", Verdict.FAIL),
        (("Alloc,X11", "X11"), "PrologFlags", Verdict.FAIL),
        (("Epilog", "Nothing"), "Epilog", Verdict.FAIL),
        (("prolog.d/*", "elsewhere/*"), "Prolog", Verdict.FAIL),
    ],
)
def test_a_wrong_line_in_slurms_settings_is_named_with_its_mending(
    site: Site, change: tuple[str, str], subject: str, verdict: Verdict
) -> None:
    site.live = site.live.replace(*change)
    site.write_scontrol()
    finding = found(slurm_checks(site.situation("controller", "node")), subject)
    assert finding.verdict is verdict
    assert finding.fix


@pytest.mark.parametrize(
    ("parameters", "verdict"),
    [("", Verdict.WARN), ("bf_interval=30,ignore_prefer_validation", Verdict.OK)],
)
def test_hints_that_slurm_may_refuse_a_job_for_are_a_warning(site: Site, parameters: str, verdict: Verdict) -> None:
    site.live += f"SchedulerParameters     = {parameters}\n"
    site.write_scontrol()
    situation = site.situation("controller", routing={"node_hints": True})
    assert found(slurm_checks(situation), "node hints").verdict is verdict


@pytest.mark.parametrize(
    ("built_by", "release", "expected", "words"),
    [
        ("this", "22.05.8", (Verdict.OK, Verdict.OK), "built for Slurm 22.05.8"),
        ("this", "22.05.9", (Verdict.OK, Verdict.OK), "built for Slurm 22.05.8, fits slurmctld 22.05.9"),
        ("this", "24.11.5", (Verdict.FAIL, Verdict.OK), "jobs go through slurmctld 24.11.5 unchanged"),
        ("an earlier", "22.05.8", (Verdict.WARN, Verdict.WARN), "the next update of Slurm will stop slurmctld"),
        ("an earlier", "22.05.9", (Verdict.FAIL, Verdict.WARN), "slurmctld 22.05.9 will not start"),
        ("an earlier", "24.11.5", (Verdict.FAIL, Verdict.FAIL), "slurmctld 24.11.5 will not start"),
    ],
)
def test_plugins_are_compared_with_slurms_release_to_the_last_digit(
    site: Site, plugins: Path, built_by: str, release: str, expected: tuple[Verdict, Verdict], words: str
) -> None:
    job_submit, spank = expected
    shutil.copytree(plugins if built_by == "this" else plugins / "earlier", site.root / "plugins")
    for name in ("scontrol", "slurmctld"):
        script = site.fake.bin / name
        script.write_text(script.read_text().replace("22.05.8", release))
    findings = {finding.subject: finding for finding in slurm_checks(site.situation("controller"))}
    assert findings["job_submit plugin"].verdict is job_submit
    assert words in findings["job_submit plugin"].found
    assert findings["SPANK plugin"].verdict is spank
    for subject in ("job_submit plugin", "SPANK plugin"):
        assert ("--build-plugin" in findings[subject].fix) == (findings[subject].verdict is not Verdict.OK)


def test_a_controller_without_the_plugins_file_is_a_fault(site: Site) -> None:
    finding = found(slurm_checks(site.situation("controller")), "job_submit plugin")
    assert finding.verdict is Verdict.FAIL
    assert "will not start: job_submit_energy.so is not in" in finding.found


def test_a_slurm_conf_that_is_closed_to_this_user_is_said_and_nothing_is_called_missing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    situation = replace(site.situation("controller"), conf={})
    situation.slurm_conf.touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    (finding,) = slurm_checks(situation)
    assert (finding.subject, finding.verdict) == ("slurm.conf", Verdict.SKIP)
    assert "closed to this user" in finding.found and "as root" in finding.fix


def test_a_required_plugin_is_a_warning_and_an_included_line_counts(site: Site) -> None:
    (site.root / "stack.d").mkdir()
    (site.root / "stack.d/energy.conf").write_text("required /x/spank_energy.so\n")
    (site.root / "plugstack.conf").write_text("include stack.d/*.conf\n")
    finding = found(slurm_checks(site.situation("login")), "plugstack.conf")
    assert (finding.verdict, finding.found) == (Verdict.WARN, "required /x/spank_energy.so")


@pytest.mark.parametrize("closed", ["plugstack.conf", "stack.d/energy.conf"])
def test_a_list_of_plugins_that_users_cannot_read_is_a_fault(site: Site, closed: str) -> None:
    (site.root / "stack.d").mkdir()
    (site.root / "stack.d/energy.conf").write_text("optional /x/spank_energy.so\n")
    (site.root / "plugstack.conf").write_text("include stack.d/*.conf\n")
    assert found(slurm_checks(site.situation("login")), "plugstack.conf").verdict is Verdict.OK
    (site.root / closed).chmod(0o600)
    finding = found(slurm_checks(site.situation("login")), "plugstack.conf")
    assert finding.verdict is Verdict.FAIL
    assert finding.fix == f"chmod 644 {site.root / closed}"


@pytest.mark.parametrize("open_to_all", ["", "slurm-energy.toml"])
def test_settings_that_every_user_can_change_are_a_fault(tmp_path: Path, open_to_all: str) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    file = folder / "slurm-energy.toml"
    file.write_text('[cluster]\nname = "north"\n')
    assert "every user" not in "".join(finding.found for finding in examine(file, ("login",), {}))
    (folder / open_to_all).chmod(0o777)
    faults = [finding for finding in examine(file, ("login",), {}) if "every user" in finding.found]
    assert [(finding.verdict, finding.fix.endswith(str(folder / open_to_all))) for finding in faults] == [
        (Verdict.FAIL, True)
    ]


@pytest.mark.parametrize(
    ("live", "in_file", "limit", "verdict", "words"),
    [
        ("65534", "", 5.0, Verdict.OK, "5 s"),
        ("30 sec", "PrologEpilogTimeout=30", 5.0, Verdict.OK, "5 s"),
        ("3", "PrologEpilogTimeout = 3", 5.0, Verdict.OK, "1.8 s"),
        ("3", "", 5.0, Verdict.FAIL, "drains the node"),  # in an included file, which no hook reads
        ("3", "", 1.5, Verdict.OK, "1.5 s"),
    ],
)
def test_hooks_that_slurmd_would_kill_are_a_fault(
    site: Site, live: str, in_file: str, limit: float, verdict: Verdict, words: str
) -> None:
    site.live += f"PrologEpilogTimeout     = {live}\n"
    site.write_scontrol()
    (site.root / "slurm.conf").write_text(f"ClusterName=north\n{in_file}\n")
    finding = found(slurm_checks(site.situation("node", node={"time_limit_seconds": limit})), "time of hooks")
    assert (finding.verdict, words in finding.found) == (verdict, True)


def test_a_hook_that_is_not_executable_would_drain_the_node(site: Site) -> None:
    (site.root / "epilog.d/50-energy.sh").chmod(0o644)
    finding = found(slurm_checks(site.situation("node")), "Epilog")
    assert finding.verdict is Verdict.FAIL
    assert "not executable" in finding.found


def test_a_plugin_that_asks_at_another_socket_is_a_fault(site: Site) -> None:
    (site.root / "energy-plugin.conf").write_text("socket=/other.sock\n")
    finding = found(slurm_checks(site.situation("controller")), "plugin settings")
    assert finding.verdict is Verdict.FAIL
    assert "/other.sock" in finding.found


@pytest.mark.parametrize(
    ("reply", "subject", "verdict"),
    [
        ({"version": __version__, "policy": "oracle", "snapshot_age_seconds": "1.5"}, "daemon", Verdict.OK),
        ({"version": __version__, "policy": "oracle", "snapshot_age_seconds": "1.5"}, "cluster snapshot", Verdict.OK),
        ({"version": "0.0.1", "snapshot_age_seconds": "1.5"}, "daemon", Verdict.WARN),
        ({"version": __version__, "snapshot_age_seconds": "61"}, "cluster snapshot", Verdict.FAIL),
        ({"version": __version__}, "cluster snapshot", Verdict.FAIL),
    ],
)
def test_the_daemons_answer_is_judged(site: Site, reply: dict[str, str], subject: str, verdict: Verdict) -> None:
    daemon = FakeDaemon(site.root / "d.sock", Message("ok", reply))
    (site.root / "d.sock").chmod(0o666)
    finding = found(daemon_checks(site.situation("controller")), subject)
    daemon.close()
    assert finding.verdict is verdict


@pytest.mark.parametrize(
    ("policy", "missing", "verdict"),
    [
        ({}, (), Verdict.OK),
        ({}, ("torch",), Verdict.WARN),
        ({"name": "gnn"}, ("torch",), Verdict.FAIL),
        ({"name": "oracle"}, ("torch",), Verdict.OK),
        ({"checkpoint": "/none"}, (), Verdict.WARN),
        ({"checkpoint": "{damaged}"}, (), Verdict.WARN),
        ({"name": "gnn"}, (), Verdict.OK),
        ({"name": "gnn", "checkpoint": "{damaged}"}, (), Verdict.FAIL),
    ],
)
def test_what_the_learned_policy_needs_is_missed_where_it_is_wanted(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    policy: dict[str, object],
    missing: tuple[str, ...],
    verdict: Verdict,
) -> None:
    for module in (automatic, doctor_of_the_daemon):
        monkeypatch.setattr(module, "missing_modules", lambda: missing)
    damaged = site.root / "damaged"
    shutil.copytree(shipped_folder(), damaged)
    os.truncate(damaged / WEIGHTS_FILE, 1000)
    policy = {key: str(value).format(damaged=damaged) for key, value in policy.items()}
    finding = found(daemon_checks(site.situation("controller", policy=policy)), "learned policy")
    assert finding.verdict is verdict
    assert ("pip install './slurm-energy[daemon]'" in finding.fix) == (
        verdict in (Verdict.WARN, Verdict.FAIL) and bool(missing)
    )


def test_a_daemon_that_is_away_is_a_fault_with_the_command_that_starts_it(site: Site) -> None:
    findings = {finding.subject: finding for finding in daemon_checks(site.situation("controller"))}
    assert findings["socket"].verdict is Verdict.FAIL
    assert "systemctl start slurm-energyd" in findings["socket"].fix
    assert findings["database"].verdict is Verdict.FAIL
    assert not (site.root / "e.sqlite").exists()


@pytest.mark.parametrize(
    ("condition", "verdict"),
    [("ready", Verdict.OK), ("refused: CheckpointError: bad weights", Verdict.WARN), ("behind", Verdict.WARN)],
)
def test_the_process_of_a_learned_policy_is_told_as_the_daemon_says_it_is(
    site: Site, condition: str, verdict: Verdict
) -> None:
    daemon = FakeDaemon(site.root / "d.sock", Message("ok", {"version": __version__, "policy_process": condition}))
    finding = found(daemon_checks(site.situation("controller")), "policy process")
    daemon.close()
    assert (finding.verdict, finding.found) == (verdict, condition)


def test_a_socket_closed_to_users_is_a_warning(site: Site) -> None:
    daemon = FakeDaemon(site.root / "d.sock", Message("ok", {"version": __version__}))
    (site.root / "d.sock").chmod(0o600)
    finding = found(daemon_checks(site.situation("controller")), "socket")
    daemon.close()
    assert finding.verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("size", "mode", "verdict"), [(64, 0o600, Verdict.OK), (64, 0o644, Verdict.FAIL), (16, 0o600, Verdict.FAIL)]
)
def test_a_report_key_is_long_and_secret(site: Site, size: int, mode: int, verdict: Verdict) -> None:
    key = site.root / "key"
    key.write_bytes(b"k" * size)
    key.chmod(mode)
    situation = site.situation("node", node={"authentication": "hmac", "hmac_key_path": str(key)})
    assert found(daemon_checks(situation), "report key").verdict is verdict


@pytest.mark.parametrize("address", ["", "nohost", "127.0.0.1:1"])
def test_reports_that_would_not_arrive_are_a_fault(site: Site, address: str) -> None:
    finding = found(daemon_checks(site.situation("node", node={"daemon_address": address})), "daemon's address")
    assert finding.verdict is Verdict.FAIL
    assert finding.fix


def spool(site: Site, *names: str) -> Path:
    root = site.root / "spool"
    for folder in ("active", "pending", "done", "reports", "rejected", "locks"):
        (root / folder).mkdir(parents=True)
    for name in names:
        (root / name).write_text("{}")
    return root


def test_a_clean_spool_is_in_order(site: Site) -> None:
    spool(site, "active/5.json")
    findings = verdicts(node_checks(site.situation("node")))
    for subject in ("spool", "waiting reports", "rejected reports", "GPU settings not restored", "active jobs"):
        assert findings[subject] is Verdict.OK, subject


def test_what_was_left_in_the_spool_is_told(site: Site) -> None:
    root = spool(site, "active/5.json", "active/6.json", "pending/4-1.json", "rejected/3.json", "reports/2.json")
    old = time.time() - 7200
    os.utime(root / "reports/2.json", (old, old))
    findings = {finding.subject: finding for finding in node_checks(site.situation("node"))}
    assert findings["waiting reports"].verdict is Verdict.FAIL
    assert findings["waiting reports"].found == "1, the oldest 2.0 h"
    assert findings["rejected reports"].verdict is Verdict.WARN
    assert findings["GPU settings not restored"].verdict is Verdict.WARN
    assert findings["active jobs"].found == "6 ended without an epilog"


def test_a_node_without_a_driver_says_what_to_install(site: Site) -> None:
    situation = site.situation("node", node={"nvml_library": "/nonexistent/libnvidia-ml.so.1"})
    finding = found(node_checks(situation), "GPUs")
    assert finding.verdict is Verdict.FAIL
    assert "node.nvml_library" in finding.fix


def test_only_what_belongs_to_a_role_is_checked(site: Site) -> None:
    login = site.situation("login")
    assert list(node_checks(login)) == []
    assert "database" not in verdicts(daemon_checks(login))
    assert "JobSubmitPlugins" not in verdicts(slurm_checks(login))


def test_a_broken_configuration_is_the_first_finding_and_the_others_still_come(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[nonsense]\n")
    first, *others = examine(file, ("login",), {})
    assert (first.subject, first.verdict) == ("configuration", Verdict.FAIL)
    assert "nonsense" in first.found
    assert others


def test_settings_that_the_daemon_would_refuse_are_findings(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[policy]\nname = "magic"\n[gpu_types]\nx = "y"\n')
    told = [finding for finding in examine(file, ("login",), {}) if finding.subject == "configuration"]
    assert [finding.verdict for finding in told] == [Verdict.OK, Verdict.FAIL, Verdict.FAIL]
    assert "'magic' does not exist" in told[1].found and "gpu_types.x is 'y'" in told[2].found


def test_every_finding_that_does_not_hold_says_how_to_mend_it(site: Site) -> None:
    empty = Site(site.root / "second")
    empty.live = "ClusterName = other\n"
    empty.write_scontrol()
    situation = empty.situation("controller", "node")
    for checks in (slurm_checks, daemon_checks, node_checks):
        for finding in checks(situation):
            if finding.verdict in {Verdict.FAIL, Verdict.WARN}:
                assert finding.fix, finding


def test_the_command_exits_1_when_something_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_ENERGY_CLUSTER_SLURM_BIN_DIRECTORY", str(site.fake.bin))
    monkeypatch.setenv("SLURM_ENERGY_CLUSTER_SLURM_CONF", f"{site.root}/slurm.conf")
    assert main(["doctor", "--role", "login"]) == 1
    said = capfd.readouterr()
    assert "fail cluster name" in said.out
    assert "checks: " in said.err


def test_a_site_whose_lua_script_asks_is_in_order(site: Site, plugins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(plugins, site.root / "plugins")
    ours = site.root / "ours/job_submit.lua"
    monkeypatch.setattr("slurm_energy.cli.installing.plugin_check.LUA_SCRIPT", ours)
    ours.parent.mkdir()
    ours.write_text("-- ours\n")
    library = site.root / "lib/lua/5.3/socket/core.so"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr("slurm_energy.cli.installing.plugin_check._LUA_FOLDERS", (site.root / "lib",))
    (site.root / "job_submit.lua").write_text(f'dofile("{ours}")\n')
    site.live = site.live.replace("= lua,energy", "= lua")
    site.write_scontrol()
    findings = verdicts(slurm_checks(site.situation("controller")))
    assert set(findings.values()) == {Verdict.OK}
    ours.unlink()
    assert verdicts(slurm_checks(site.situation("controller")))["JobSubmitPlugins"] is Verdict.FAIL


def test_a_file_that_slurm_passes_over_in_a_folder_of_hooks_is_no_fault(site: Site) -> None:
    (site.root / "epilog.d/.gitignore").write_text("*.orig\n")
    assert found(slurm_checks(site.situation("node")), "Epilog").verdict is Verdict.OK


@pytest.mark.parametrize(
    ("skipped", "verdict"),
    [
        (None, Verdict.OK),
        ({"job: no submit time": 2}, Verdict.WARN),
        ({"node: GRES gpu:?:1": 1, "job: no submit time": 2}, Verdict.FAIL),
    ],
)
def test_rows_that_could_not_be_read_are_named(site: Site, skipped: dict[str, int] | None, verdict: Verdict) -> None:
    document = {"store": {}, "daemon": {"snapshot_rows_skipped": skipped, "journal_waiting_bytes_on_disk": 0}}
    daemon = FakeDaemon(site.root / "d.sock", Message("ok", {"version": __version__, "json": json.dumps(document)}))
    finding = found(daemon_checks(site.situation("controller")), "rows of Slurm")
    daemon.close()
    assert finding.verdict is verdict
    assert all(f"{count} x {reason}" in finding.found for reason, count in (skipped or {}).items())


@pytest.mark.parametrize(
    "named", ["{host}", "{host}(10.0.0.1)", "{host}.example.org", "other,{host}.example.org(10.0.0.1)"]
)
def test_a_controller_is_known_by_its_short_or_long_name(site: Site, named: str) -> None:
    host = os.uname().nodename.partition(".")[0]
    (site.root / "slurm.conf").write_text(f"SlurmctldHost={named.format(host=host)}\n")
    assert "controller" in detected_roles(site.config(), {"PATH": ""})
    (site.root / "slurm.conf").write_text("SlurmctldHost=elsewhere\n")
    assert "controller" not in detected_roles(site.config(), {"PATH": ""})


@pytest.mark.parametrize(
    ("nodes", "roles"),
    [
        ("NodeName=n[1-9] CPUs=1\n", ("controller",)),
        ("NodeName=n[1-9],{host} CPUs=1\n", ("controller", "node")),
        ("NodeName=x[1-2] NodeHostname={host},n2\n", ("controller", "node")),
        ("include nodes.conf\n", ("controller", "node")),
        ("", ("controller",)),
    ],
)
def test_a_controller_that_has_slurmd_installed_is_a_node_only_if_slurm_conf_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch, nodes: str, roles: tuple[str, ...]
) -> None:
    host = os.uname().nodename.partition(".")[0]
    monkeypatch.setattr("shutil.which", lambda name, path=None: f"/usr/sbin/{name}")
    (site.root / "slurm.conf").write_text(f"SlurmctldHost={host}\n{nodes.format(host=host)}")
    (site.root / "nodes.conf").write_text(f"NodeName={host} CPUs=1\n")
    assert detected_roles(site.config(), {"PATH": ""}) == roles


@pytest.mark.parametrize(
    ("nodes", "running", "roles"),
    [
        ("NodeName={host}.example.org CPUs=1", False, ("node",)),
        ("MaxNodeCount=9", False, ("node",)),
        ("NodeName=n[1-9] CPUs=1", True, ("node",)),
        ("NodeName=n[1-9] CPUs=1", False, ("login",)),
    ],
)
def test_a_host_that_is_no_controller_and_has_slurmd_is_a_node_where_it_runs_or_may_be_one(
    site: Site, monkeypatch: pytest.MonkeyPatch, nodes: str, running: bool, roles: tuple[str, ...]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: f"/usr/sbin/{name}")
    slurmd = SlurmdProcess(pid=7, start_ticks=7, executable="/usr/sbin/slurmd") if running else None
    monkeypatch.setattr("slurm_energy.cli.site.read_slurmd", lambda _node: slurmd)
    text = f"SlurmctldHost=elsewhere\n{nodes.format(host=os.uname().nodename.partition('.')[0])}\n"
    (site.root / "slurm.conf").write_text(text)
    assert detected_roles(site.config(), {"PATH": ""}) == roles
