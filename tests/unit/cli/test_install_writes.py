"""How `install` writes: links, folders in a file's place, failed writes, words quoted for each file."""

import os
import tomllib
from pathlib import Path

import pytest
from install_root import planned, site_root

from slurm_energy.cli.installing.files import PlannedFile, file_change, write
from slurm_energy.cli.site import read_slurm_conf
from slurm_energy.errors import ConfigError
from slurm_energy.reporting.templates import cron_word, render, unit_word
from slurm_energy.settings import toml_value


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return site_root(tmp_path)


def test_no_plugin_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--plugin-dir"):
        planned(tmp_path, roles=("login",))


def test_a_link_out_of_the_root_is_refused(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (root / "etc/slurm/x.conf").symlink_to(outside)
    with pytest.raises(ConfigError, match="outside of it"):
        file_change(root, PlannedFile(path=Path("/etc/slurm/x.conf"), content=b"new"))


def test_a_link_inside_the_root_is_followed(root: Path) -> None:
    (root / "shared").mkdir()
    (root / "shared/x.conf").write_text("old")
    (root / "etc/slurm/x.conf").symlink_to("../../shared/x.conf")
    write(file_change(root, PlannedFile(path=Path("/etc/slurm/x.conf"), content=b"new")), 0.0)
    assert (root / "etc/slurm/x.conf").is_symlink()
    assert (root / "shared/x.conf").read_text() == "new"


def test_a_folder_in_a_files_place_is_refused(root: Path) -> None:
    (root / "etc/slurm/x.conf").mkdir()
    with pytest.raises(ConfigError, match=r"x\.conf"):
        file_change(root, PlannedFile(path=Path("/etc/slurm/x.conf"), content=b"new"))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "etc/x.conf"
    path.write_text("old")
    change = file_change(root, PlannedFile(path=Path("/etc/x.conf"), content=b"new"))

    def full_disk(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(ConfigError, match="No space left on device"):
        write(change, 0.0)
    assert path.read_text() == "old"
    assert [item.name for item in path.parent.iterdir() if item.name.startswith(".x")] == []


def test_includes_of_slurm_conf_are_read_in_place_and_a_circle_ends(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("A=1\nInclude more.conf\nB=2 # two\nNodeName=n A=9\n")
    (tmp_path / "more.conf").write_text('a = 3\nC="x \\\ny"\ninclude slurm.conf\n')
    assert read_slurm_conf(tmp_path / "slurm.conf") == {"a": "3", "b": "2", "c": "x  y"}


@pytest.mark.parametrize(
    ("text", "unit", "cron"),
    [
        ("/opt/venv/bin/python3", "/opt/venv/bin/python3", "/opt/venv/bin/python3"),
        ("/a b/100%", '"/a b/100%%"', "'/a b/100\\%'"),
        ("/a'$(id)", '"/a\'$$(id)"', "'/a'\\''$(id)'"),
    ],
)
def test_words_are_quoted_for_the_file_they_stand_in(text: str, unit: str, cron: str) -> None:
    assert (unit_word(text), cron_word(text)) == (unit, cron)


def test_control_characters_never_reach_a_file() -> None:
    with pytest.raises(ConfigError, match="control characters"):
        unit_word("/a\nExecStart=/bin/sh")


def test_a_template_that_names_a_missing_value_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"cron/slurm-energy\.j2"):
        render("cron/slurm-energy.j2", {})


@pytest.mark.parametrize("value", ['a"b\\c\n', True, 0.05, 5, ("a", 'b"'), {"a100": 1275}, {}, "é\u2028"])
def test_values_survive_toml(value: object) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == (list(value) if isinstance(value, tuple) else value)
