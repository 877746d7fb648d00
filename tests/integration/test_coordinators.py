"""Roles of coordinators come from sacctmgr, and where it does not answer nobody sees more."""

import stat
from pathlib import Path

from slurm_energy.slurm.coordinators import KEPT_SECONDS, Coordinators, parse_coordinators
from slurm_energy.slurm.json_client import CommandSettings


def test_the_accounts_of_the_users_own_line_are_taken() -> None:
    text = "ada|physics,chemistry\nadam|history\nbob|\n"
    assert parse_coordinators(text, "ada") == ("chemistry", "physics")
    assert parse_coordinators(text, "bob") == parse_coordinators(text, "cy") == parse_coordinators("", "ada") == ()


def test_without_sacctmgr_a_user_coordinates_nothing(tmp_path: Path) -> None:
    found = Coordinators(CommandSettings(bin_directory=str(tmp_path)), {})
    assert found.coordinated_by("ada") == ()


def test_an_answer_is_kept_for_a_while_and_asked_for_again(tmp_path: Path) -> None:
    program = tmp_path / "sacctmgr"
    program.write_text('#!/bin/sh\necho "ada|physics"\necho x >> "$0.calls"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    now = [100.0]
    found = Coordinators(CommandSettings(bin_directory=str(tmp_path)), {"PATH": "/usr/bin:/bin"}, lambda: now[0])
    assert found.coordinated_by("ada") == found.coordinated_by("ada") == ("physics",)
    now[0] += KEPT_SECONDS + 1.0
    assert found.coordinated_by("ada") == ("physics",)
    assert Path(f"{program}.calls").read_text().count("x") == 2
