"""Commands on PATH, manual pages and completion."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_energy.cli.installing.commands import COMMANDS, command_files
from slurm_energy.cli.installing.files import PlannedFile
from slurm_energy.cli.main import NOUNS, cli
from slurm_energy.reporting.templates import man_text

PYTHON = Path("/opt/slurm-energy/bin/python")


def planned(root: Path, *roles: str, remarks: list[str] | None = None) -> dict[str, PlannedFile]:
    found = command_files(roles, PYTHON, root, [] if remarks is None else remarks)
    return {str(item.path): item for item in found}


def test_each_role_gets_its_commands(tmp_path: Path) -> None:
    for role, names in (
        ("login", {"slurm-energy", "energy-sbatch"}),
        ("node", {"slurm-energy", "energy-sbatch", "slurm-energy-hook"}),
        ("controller", {"slurm-energy", "energy-sbatch", "slurm-energyd", "slurm-energy-mail"}),
    ):
        links = {item.path.name: item.link_to for item in planned(tmp_path, role).values() if item.link_to}
        assert links == {name: PYTHON.parent / name for name in names}
    assert set(COMMANDS) == {"slurm-energy", "energy-sbatch", "slurm-energy-hook", "slurm-energyd", "slurm-energy-mail"}


@pytest.mark.parametrize("there", ["file", "link elsewhere", "link to another program of that name"])
def test_a_command_of_somebody_else_stays_and_is_told(tmp_path: Path, there: str) -> None:
    path = tmp_path / "usr/local/bin/slurm-energy"
    path.parent.mkdir(parents=True)
    other = tmp_path / "other/slurm-energy"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    if there == "file":
        path.write_text("#!/bin/sh\n")
    else:
        path.symlink_to("/bin/true" if there == "link elsewhere" else other)
    remarks: list[str] = []
    plan = planned(tmp_path, "login", remarks=remarks)
    assert "/usr/local/bin/slurm-energy" not in plan
    assert "/usr/local/bin/energy-sbatch" in plan
    (remark,) = remarks
    assert remark.startswith(
        "/usr/local/bin/slurm-energy is not ours and stays: call /opt/slurm-energy/bin/slurm-energy"
    )


def test_a_link_of_an_earlier_environment_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "usr/local/bin/slurm-energy"
    path.parent.mkdir(parents=True)
    path.symlink_to("/gone/bin/slurm-energy")
    assert planned(tmp_path, "login")["/usr/local/bin/slurm-energy"].link_to == PYTHON.parent / "slurm-energy"


def test_every_noun_has_a_page_with_all_its_options(tmp_path: Path) -> None:
    pages = {
        Path(path).name: item.content.decode() for path, item in planned(tmp_path, "node").items() if "/man" in path
    }
    assert set(pages) == {
        "slurm-energy.1",
        "energy-sbatch.1",
        "slurm-energy-hook.8",
        *(f"slurm-energy-{noun}.1" for noun in NOUNS),
    }
    page = pages["slurm-energy-uninstall.1"]
    assert "slurm\\-energy\\-uninstall \\- Remove what install wrote" in page
    assert "\\-\\-edit\\-slurm\\-conf" in page
    assert "\\-\\-since" in pages["slurm-energy-report.1"]


def test_text_of_a_page_is_never_taken_for_a_request() -> None:
    assert man_text(".TH x\n'quoted'\na-b\\c") == "\\&.TH x\n\\&'quoted'\na\\-b\\ec"


def test_completion_is_installed_and_completes(tmp_path: Path) -> None:
    plan = planned(tmp_path, "login")
    bash = plan["/usr/local/share/bash-completion/completions/slurm-energy"].content.decode()
    assert "_SLURM_ENERGY_COMPLETE=bash_complete" in bash
    assert plan["/usr/local/share/zsh/site-functions/_slurm-energy"].content.startswith(b"#compdef slurm-energy")
    assert b"_SLURM_ENERGY_COMPLETE" in plan["/usr/local/share/fish/vendor_completions.d/slurm-energy.fish"].content
    done = CliRunner().invoke(
        cli,
        [],
        env={"_SLURM_ENERGY_COMPLETE": "bash_complete", "COMP_WORDS": "slurm-energy un", "COMP_CWORD": "1"},
        prog_name="slurm-energy",
        complete_var="_SLURM_ENERGY_COMPLETE",
    )
    assert done.stdout == "plain,uninstall\n"
