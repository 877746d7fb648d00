"""A host's root as `install` finds it, and what it would write there."""

from pathlib import Path

from click.testing import CliRunner

from slurm_energy.cli.installing.plan import Installation
from slurm_energy.cli.installing.roles import InstallOptions
from slurm_energy.cli.main import cli
from slurm_energy.config import Config

SLURM_CONF = """ClusterName=north
SlurmctldHost=ctl1(10.0.0.1)
SlurmUser=slurmadm
JobSubmitPlugins=lua
PrologFlags=X11
AccountingStorageType=accounting_storage/slurmdbd
"""


def site_root(tmp_path: Path) -> Path:
    """Return a root with a slurm.conf and a plugin folder."""
    root = tmp_path / "root"
    (root / "etc/slurm").mkdir(parents=True)
    (root / "usr/lib/x86_64-linux-gnu/slurm-wlm").mkdir(parents=True)
    (root / "etc/slurm/slurm.conf").write_text(SLURM_CONF, encoding="utf-8")
    return root


def run(root: Path, *words: str, stdin: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["install", "--root", str(root), *words], input=stdin, standalone_mode=False)
    assert result.exception is None or result.exit_code == 1, result.exception
    code = result.return_value if isinstance(result.return_value, int) else 1
    return code, result.stdout, result.stderr


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def planned(root: Path, config: Config | None = None, **options: object) -> dict[str, str]:
    chosen = InstallOptions(root=root, python=Path("/opt/venv/bin/python"), **options)  # type: ignore[arg-type]  # a test's shorthand
    installation = Installation(config or Config(), chosen, environment={})
    return {str(item.path): item.content.decode() for item in installation.files() if item.link_to is None}
