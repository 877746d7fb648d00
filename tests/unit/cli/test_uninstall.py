"""What `uninstall` takes away below a root of its own: what `install` wrote, and nothing else."""

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from node_bench import Bench, entry

from slurm_energy.cli import uninstall
from slurm_energy.cli.installing.roles import ROLES
from slurm_energy.cli.main import cli
from slurm_energy.errors import ConfigError
from slurm_energy.node.hooks import run_prolog

SLURM_CONF = "ClusterName=north\nSlurmctldHost=ctl1\nJobSubmitPlugins=lua\nNodeName=n1\n"
PLUGINS = "usr/lib/x86_64-linux-gnu/slurm-wlm"
KEPT = {
    "etc/slurm-energy/slurm-energy.toml",
    "etc/slurm-energy/plugstack.conf",
    "etc/slurm/plugstack.conf",
    f"{PLUGINS}/spank_energy.so",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "etc/slurm").mkdir(parents=True)
    (root / PLUGINS).mkdir(parents=True)
    (root / "etc/slurm/slurm.conf").write_text(SLURM_CONF, encoding="utf-8")
    return root


def run(root: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [words[0], "--root", str(root), *words[1:]], standalone_mode=False)
    code = result.return_value if isinstance(result.return_value, int) else 1
    return code, result.stderr + str(result.exception or "")


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def installed(root: Path, *words: str) -> None:
    for name in ("job_submit_energy.so", "spank_energy.so"):
        (root / PLUGINS / name).write_bytes(b"\x7fELF\0")
    code, said = run(root, "install", "--yes", *words)
    assert code == 0, said


@pytest.mark.parametrize("scheduler", ["systemd", "cron"])
@pytest.mark.parametrize("role", [*ROLES, "all"])
def test_what_install_wrote_is_gone_but_settings_and_options_without_effect(
    root: Path, role: str, scheduler: str
) -> None:
    (root / PLUGINS / "job_submit_energy.so").write_bytes(b"")
    before = files(root)
    installed(root, "--role", role, "--scheduler", scheduler, "--edit-slurm-conf")
    assert len(files(root)) > len(before) + 10
    code, said = run(root, "uninstall", "--yes", "--role", role, "--edit-slurm-conf")
    assert code == 0, said
    after = files(root)
    copies = {name for name in after if ".before-" in name}
    assert set(after) - copies == (set(before) | KEPT) - (
        {f"{PLUGINS}/job_submit_energy.so"} if role in {"controller", "all"} else set()
    )
    assert not (root / "usr/local/lib/slurm-energy").exists()
    assert not (root / "etc/systemd/system/slurmctld.service.d").exists()
    conf = after["etc/slurm/slurm.conf"].decode()
    if role in {"controller", "all"}:
        assert "Alloc in PrologFlags" in said
        assert conf == f"{SLURM_CONF}PrologFlags=Alloc # slurm-energy\n"
    else:
        assert conf == SLURM_CONF


def test_with_the_options_of_sbatch_also_these_are_gone(root: Path) -> None:
    plugstack = root / "etc/slurm/plugstack.conf"
    plugstack.write_text("optional /site/own.so\n")
    installed(root, "--role", "login")
    run(root, "uninstall", "--yes", "--role", "login")
    assert plugstack.read_text().splitlines()[-1] == "include /etc/slurm-energy/plugstack.conf"
    assert "have no effect" in plugstack.read_text()
    run(root, "uninstall", "--yes", "--role", "login", "--sbatch-options")
    assert plugstack.read_text() == "optional /site/own.so\n"
    assert not (root / PLUGINS / "spank_energy.so").exists()
    assert not (root / "etc/slurm-energy/plugstack.conf").exists()


def test_an_install_after_an_uninstall_leaves_one_line_with_the_usual_words(root: Path) -> None:
    installed(root, "--role", "login")
    first = (root / "etc/slurm/plugstack.conf").read_text()
    run(root, "uninstall", "--yes", "--role", "login")
    installed(root, "--role", "login")
    assert (root / "etc/slurm/plugstack.conf").read_text() == first


def test_the_controller_refuses_while_slurmctld_would_not_start_without_the_plugin(root: Path) -> None:
    installed(root, "--role", "controller", "--edit-slurm-conf")
    before = files(root)
    code, said = run(root, "uninstall", "--yes", "--role", "controller")
    assert code == 1
    assert "slurm.conf still names job_submit_energy.so" in said
    assert "slurm.conf: add     JobSubmitPlugins=lua" in said
    assert files(root) == before
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text(conf.read_text().replace("lua,energy", "lua"))
    assert run(root, "uninstall", "--yes", "--role", "controller")[0] == 0
    assert not (root / PLUGINS / "job_submit_energy.so").exists()


@pytest.mark.parametrize("name", ["Prolog", "Epilog"])
def test_a_node_refuses_while_a_setting_of_an_earlier_version_would_drain_it(root: Path, name: str) -> None:
    installed(root, "--role", "node")
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text(SLURM_CONF + f"{name}=/etc/slurm-energy/{name.lower()}.d/*\n")
    before = files(root)
    code, said = run(root, "uninstall", "--yes", "--role", "node")
    assert (code, files(root)) == (1, before)
    assert "drain a node without our files" in said


def test_what_another_role_of_the_host_needs_stays(root: Path) -> None:
    installed(root, "--role", "controller", "--role", "node", "--edit-slurm-conf")
    run(root, "uninstall", "--yes", "--role", "node")
    after = files(root)
    assert "bin/tru_" not in after
    assert {"usr/local/bin/slurm-energy", "usr/local/share/man/man1/slurm-energy.1"} <= set(after)
    assert "etc/systemd/system/slurm-energyd.service" in after
    assert "have no effect" not in after["etc/slurm/plugstack.conf"].decode()


def test_an_ordinary_user_is_told_who_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    result = CliRunner().invoke(cli, ["uninstall", "--role", "node", "--yes"], standalone_mode=False)
    assert isinstance(result.exception, ConfigError)
    assert "only root may uninstall" in str(result.exception)


def test_a_dry_run_shows_what_goes_and_changes_nothing(root: Path) -> None:
    installed(root, "--role", "all", "--edit-slurm-conf")
    before = files(root)
    result = CliRunner().invoke(
        cli, ["uninstall", "--root", str(root), "--role", "all", "--edit-slurm-conf", "--dry-run", "--diff"]
    )
    assert "-JobSubmitPlugins=lua,energy" in result.stdout
    assert "+JobSubmitPlugins=lua" in result.stdout
    assert re.search(r"^link /usr/local/bin/slurm-energy: \S+ becomes not there$", result.stdout, re.MULTILINE)
    assert files(root) == before


def test_a_file_that_somebody_changed_is_copied_before_it_goes(root: Path) -> None:
    installed(root, "--role", "node")
    unit = root / "etc/systemd/system/slurm-energy-flush.timer"
    unit.write_text(unit.read_text() + "# ours\n")
    run(root, "uninstall", "--yes", "--role", "node")
    (copy,) = unit.parent.glob("*.before-*")
    assert copy.read_text().endswith("# ours\n")
    assert not list((root / "bin").glob(".tru_*"))


def test_a_clock_is_put_back_though_the_spool_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second record of a lock outlives the spool."""
    bench = Bench(tmp_path)
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    shutil.rmtree(bench.spool.root)
    monkeypatch.setattr(uninstall, "load_settings", lambda *_: None)
    monkeypatch.setattr(uninstall, "make_context", lambda *_: bench.context())
    monkeypatch.setattr(uninstall, "run_flush", lambda _context: True)
    assert uninstall._leave_node(None)
    assert bench.locks() == [None] * 4
    assert not bench.spool.root.exists()
