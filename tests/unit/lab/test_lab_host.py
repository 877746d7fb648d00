import os
import tempfile
from pathlib import Path

import pytest

from slurm_energy.errors import LabError
from slurm_energy.lab.host import free_ports, missing_packages, slurm_version
from slurm_energy.lab.layout import Layout, closed_ancestor, make_labs_root


@pytest.mark.parametrize(
    ("said", "expected"), [("slurm-wlm 22.05.8\n", (22, 5)), ("slurm 24.11.5", (24, 11)), ("slurm 26.05.5", (26, 5))]
)
def test_release_is_read_from_what_slurmctld_says(said: str, expected: tuple[int, int]) -> None:
    assert slurm_version(said) == expected


def test_answer_without_a_release_is_an_error_that_quotes_it() -> None:
    with pytest.raises(LabError, match="command not found"):
        slurm_version("command not found")


def test_missing_programs_come_with_their_debian_packages() -> None:
    missing = missing_packages(accounting=True, energy=False, which=lambda _program: None)

    assert missing["slurmctld"] == "slurmctld"
    assert missing["munged"] == "munge"
    assert missing["sbatch"] == "slurm-client"
    assert missing["mariadbd"] == "mariadb-server-core"
    assert "make" not in missing


def test_free_ports_are_all_different() -> None:
    ports = free_ports(12)

    assert len(set(ports)) == 12
    assert all(1024 <= port <= 65535 for port in ports)


def test_folder_that_makes_the_socket_path_too_long_is_refused() -> None:
    with pytest.raises(LabError, match="over 100"):
        Layout(Path("/tmp") / ("x" * 90))


def test_labs_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")

    with pytest.raises(LabError, match="no other user may write"):
        make_labs_root(tmp_path / "root")


def test_labs_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o777)

    with pytest.raises(LabError, match="no other user may write"):
        make_labs_root(root)


def test_labs_folder_is_made_so_that_the_labs_users_may_enter_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        make_labs_root(tmp_path / "root")
    finally:
        os.umask(before)

    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o755


def test_highest_closed_folder_above_a_path_is_found() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders are closed
        top = Path(folder)
        top.chmod(0o755)
        inner = top / "closed" / "also-closed" / "clone"
        inner.mkdir(parents=True)
        assert closed_ancestor(inner) is None

        inner.parent.chmod(0o700)
        inner.parent.parent.chmod(0o700)

        assert closed_ancestor(inner) == top / "closed"
