"""Which slurmctld starts next, where it looks for the plugin, and what the step before its start does."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_energy.cli.installing.plugin_check import (
    Standing,
    check_plugin,
    headers_of,
    plugin_places,
    slurmctld_program,
)
from slurm_energy.cli.installing.roles import JOB_SUBMIT_PLUGIN
from slurm_energy.cli.plugin import BeforeStart
from slurm_energy.config import Config, parse_config
from slurm_energy.slurm.plugin_file import Release, library_folders, parse_release

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")


def slurmctld(path: Path, release: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho slurm {release}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin for 99.05.8 that follows the release of its Slurm."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "x.c").write_text(
        "const unsigned plugin_version = 0x630508; const unsigned slurm_energy_follows_release = 1;\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / JOB_SUBMIT_PLUGIN, folder / "x.c"], check=True)
    return folder / JOB_SUBMIT_PLUGIN


class Host:
    """A controller whose Slurm lies in a folder of its own, as many sites have it: /opt/slurm/RELEASE."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "etc/slurm.conf"
        self.conf.parent.mkdir(parents=True)
        self.conf.write_text("JobSubmitPlugins=lua,energy\n")
        self.install("99.05.8")

    def install(self, release: str) -> Path:
        """Install a release of Slurm; the one that runs from now on."""
        prefix = self.root / "opt" / release
        self.plugins = prefix / "lib/slurm"
        self.plugins.mkdir(parents=True, exist_ok=True)
        (self.plugins / "auth_munge.so").touch()
        self.program = slurmctld(prefix / "sbin/slurmctld", release)
        return prefix

    def before_start(self, **options: object) -> str:
        step = BeforeStart(config=self.config, program=self.program, kept=self.root / "kept/x.so", **options)  # type: ignore[arg-type]  # a test's shorthand
        return "\n".join(step.run())

    @property
    def config(self) -> Config:
        return parse_config({"cluster": {"slurm_conf": str(self.conf)}}, source="test", environment={})


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return Host(tmp_path)


def test_a_release_in_a_new_folder_gets_the_plugin_from_its_copy(host: Host, library: Path) -> None:
    shutil.copy(library, host.plugins)
    assert "built for Slurm 99.05.8" in host.before_start()
    host.install("99.05.9")
    found = check_plugin(host.config, os.environ, slurmctld=host.program)
    assert found is not None
    assert (found.standing, found.places) == (Standing.FATAL, (host.plugins,))
    assert "restored from its copy" in host.before_start()
    assert (host.plugins / JOB_SUBMIT_PLUGIN).read_bytes() == library.read_bytes()
    assert host.conf.read_text() == "JobSubmitPlugins=lua,energy\n"


def test_a_folder_that_cannot_be_written_has_energy_taken_out_of_the_list(host: Host, library: Path) -> None:
    shutil.rmtree(host.plugins)  # so that nothing can be written there, even by root
    host.plugins.write_text("")
    said = host.before_start()
    assert "energy is removed from JobSubmitPlugins" in said
    assert "JobSubmitPlugins=lua\n" in host.conf.read_text()
    host.plugins.unlink()
    host.plugins.mkdir()
    (host.plugins / "auth_munge.so").touch()
    shutil.copy(library, host.plugins)
    assert "energy is back in JobSubmitPlugins" in host.before_start()
    assert host.conf.read_text() == "JobSubmitPlugins=lua,energy\n"


def test_a_site_that_does_not_list_the_plugin_is_left_alone(host: Host) -> None:
    host.conf.write_text("JobSubmitPlugins=lua\n")
    assert host.before_start() == ""
    assert host.conf.read_text() == "JobSubmitPlugins=lua\n"
    assert not (host.root / "kept").exists()


def test_a_plugin_of_another_release_is_kept_rather_than_taken_out(host: Host, library: Path) -> None:
    host.install("99.11.5")
    shutil.copy(library, host.plugins)
    said = host.before_start()
    assert "no headers" in said
    assert "jobs go through slurmctld 99.11.5 unchanged" in said
    assert host.conf.read_text() == "JobSubmitPlugins=lua,energy\n"


def test_a_slurm_conf_that_cannot_be_written_is_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "slurm_energy.files._create", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
    )
    with pytest.raises(Exception, match=r"slurm\.conf cannot be written: Permission denied"):
        host.before_start()


def test_a_plugin_for_another_kind_of_machine_would_stop_slurmctld(host: Host, library: Path) -> None:
    raw = bytearray(library.read_bytes())
    raw[0x12:0x14] = b"\xf3\x00"  # RISC-V
    (host.plugins / JOB_SUBMIT_PLUGIN).write_bytes(raw)
    host.program.unlink()
    shutil.copy("/bin/true", host.program)
    found = check_plugin(host.config, os.environ, slurmctld=host.program)
    assert found is not None
    assert (found.standing, found.loads) == (Standing.FATAL, False)
    assert "another processor architecture" in found.says


def test_the_second_folder_of_plugin_dir_counts_when_the_first_has_a_bad_file(host: Host, library: Path) -> None:
    other = host.root / "more"
    other.mkdir()
    shutil.copy(library, other)
    (host.plugins / JOB_SUBMIT_PLUGIN).write_bytes(b"\x7fELF")
    host.conf.write_text(f"JobSubmitPlugins=energy\nPluginDir={host.plugins}:{other}\n")
    found = check_plugin(host.config, os.environ, slurmctld=host.program)
    assert found is not None
    assert (found.standing, found.file and found.file.path) == (Standing.RIGHT, other / JOB_SUBMIT_PLUGIN)


def test_slurmctld_is_the_one_that_the_unit_starts(tmp_path: Path) -> None:
    slurmctld(tmp_path / "usr/sbin/slurmctld", "99.05.8")
    slurmctld(tmp_path / "opt/slurm/99.11.5/sbin/slurmctld", "99.11.5")
    unit = tmp_path / "lib/systemd/system/slurmctld.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/usr/sbin/slurmctld -D\n")
    assert slurmctld_program(Config(), {}, tmp_path) == tmp_path / "usr/sbin/slurmctld"
    changed = tmp_path / "etc/systemd/system/slurmctld.service.d/site.conf"
    changed.parent.mkdir(parents=True)
    changed.write_text("[Service]\nExecStart=\nExecStart=-/opt/slurm/99.11.5/sbin/slurmctld --systemd $OPTIONS\n")
    assert slurmctld_program(Config(), {}, tmp_path) == tmp_path / "opt/slurm/99.11.5/sbin/slurmctld"


def test_the_plugin_folder_is_read_from_the_program(tmp_path: Path) -> None:
    folder = tmp_path / "odd place/slurm"
    folder.mkdir(parents=True)
    program = tmp_path / "slurmctld"
    (tmp_path / "x.c").write_text("int main(void) { return 0; }\n")
    argv: list[str | Path] = [
        "cc",
        "-o",
        program,
        tmp_path / "x.c",
        f"-Wl,-rpath,{tmp_path}/none:{folder}",
        "-Wl,--enable-new-dtags",
    ]
    subprocess.run(argv, check=True)
    assert library_folders(program) == (tmp_path / "none", folder)
    assert list(plugin_places({}, program)) == [folder]
    assert list(plugin_places({"plugindir": "/a:/b"}, program)) == [Path("/a"), Path("/b")]


def test_headers_are_those_of_the_series(tmp_path: Path) -> None:
    program = tmp_path / "sbin/slurmctld"
    header = tmp_path / "include/slurm/slurm_version.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define SLURM_VERSION_NUMBER 0x630b03\n")
    assert headers_of(Release(99, 11, 5), program) == tmp_path / "include"
    assert headers_of(Release(99, 5, 3), program) is None


@pytest.mark.parametrize(
    ("said", "release"),
    [
        ("slurm 99.05.8\n", Release(99, 5, 8)),
        ("slurm-wlm 99.11.5", Release(99, 11, 5)),
        ("slurm 25.11.0-0rc1", Release(25, 11, 0)),
        ("slurm 26.05.3-1+b2", Release(26, 5, 3)),
        ("", None),
    ],
)
def test_releases_are_read_as_slurm_prints_them(said: str, release: Release | None) -> None:
    assert parse_release(said) == release


def test_a_site_whose_lua_script_asks_needs_no_plugin(host: Host) -> None:
    host.conf.write_text("JobSubmitPlugins=lua\n")
    ours, sites = host.root / "etc/slurm-energy/job_submit.lua", host.conf.parent / "job_submit.lua"
    ours.parent.mkdir()
    settings = parse_config({"cluster": {"slurm_conf": "/etc/slurm.conf"}}, source="test", environment={})

    def standing() -> Standing:
        found = check_plugin(settings, {}, slurmctld=host.program, root=host.root)
        assert found is not None
        return found.standing

    sites.write_text("return slurm.SUCCESS\n")
    ours.write_text("-- ours\n")
    assert standing() is Standing.NOT_LISTED
    sites.write_text('dofile("/etc/slurm-energy/job_submit.lua")\n')
    assert standing() is Standing.LUA
    ours.unlink()
    assert standing() is Standing.NOT_LISTED


@pytest.mark.parametrize(
    ("slurm_conf", "ours", "fault"),
    [
        ("EnforcePartLimits=ANY\nSchedulerParameters=x,ignore_prefer_validation", "", ""),
        ("EnforcePartLimits=ALL", "local ENFORCES_ALL_LIMITS = false", "EnforcePartLimits=ALL"),
        ("PartitionName=a JobDefaults=DefCpuPerGPU=2", "local HAS_JOB_DEFAULTS = false", "JobDefaults"),
        ("SchedulerParameters=bf_continue", "local VALIDATES_PREFERENCES = false", "ignore_prefer_validation"),
        (
            "SchedulerParameters=ignore_prefer_validation\nSchedulerParameters=bf_continue",
            "local VALIDATES_PREFERENCES = false",
            "ignore_prefer_validation",
        ),
        ("EnforcePartLimits=NO", "local ENFORCES_ALL_LIMITS = true", ""),
        ("", 'local SOCKET = "/old.sock"', "/old.sock"),
        ("", "without lua-socket", "lua-socket"),
    ],
)
def test_a_lua_script_that_is_older_than_the_settings_is_a_fault(
    host: Host, slurm_conf: str, ours: str, fault: str
) -> None:
    host.conf.write_text(f"JobSubmitPlugins=lua\n{slurm_conf}\n")
    (host.conf.parent / "job_submit.lua").write_text('dofile("/etc/slurm-energy/job_submit.lua")\n')
    script = host.root / "etc/slurm-energy/job_submit.lua"
    script.parent.mkdir()
    script.write_text(f'local SOCKET = "/run/slurm-energy/energyd.sock.ctl"\n{ours}\n')
    if "SOCKET" in ours:
        script.write_text(f"{ours}\n")
    if ours != "without lua-socket":
        library = host.root / "usr/lib/x86_64-linux-gnu/lua/5.3/socket/core.so"
        library.parent.mkdir(parents=True)
        library.touch()
    settings = parse_config({"cluster": {"slurm_conf": "/etc/slurm.conf"}}, source="test", environment={})
    found = check_plugin(settings, {}, slurmctld=host.program, root=host.root)
    assert found is not None and found.standing is Standing.LUA
    assert (found.works, bool(found.fix), fault in found.says) == (not fault, bool(fault), True)
