from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slurm_energy.errors import LabError
from slurm_energy.lab.layout import ROOT_VARIABLE, claimed_folder, find_folder, remove_folder
from slurm_energy.lab.spec import LabSpec


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder with a short path: a lab holds sockets."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "l"))
    return tmp_path / "l"


def test_folder_is_made_below_the_labs_root(root: Path) -> None:
    with claimed_folder(LabSpec(name="x")) as layout:
        assert layout.directory == root / "x"
        assert list(layout.directory.iterdir()) == []


def test_lab_elsewhere_is_found_by_its_name_until_it_is_removed(tmp_path: Path, root: Path) -> None:
    spec = LabSpec(name="x", directory=tmp_path / "e")

    with claimed_folder(spec) as layout:
        assert find_folder("x") == layout.directory == tmp_path / "e"
    remove_folder(spec, layout)

    assert list(root.iterdir()) == []
    assert not (tmp_path / "e").exists()


def test_last_lab_takes_the_usual_root_along_but_not_a_chosen_one(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usual_root() -> Path:
        return tmp_path / "usual"

    with claimed_folder(LabSpec(name="x")) as chosen:
        pass
    remove_folder(LabSpec(name="x"), chosen)
    assert root.exists()

    monkeypatch.delenv(ROOT_VARIABLE)
    monkeypatch.setattr("slurm_energy.lab.layout.labs_root", usual_root)
    with claimed_folder(LabSpec(name="x")) as first, claimed_folder(LabSpec(name="y")) as second:
        pass
    remove_folder(LabSpec(name="x"), first)
    assert usual_root().exists()
    remove_folder(LabSpec(name="y"), second)
    assert not usual_root().exists()


def test_second_start_of_the_same_lab_is_refused_and_takes_nothing_away(root: Path) -> None:
    with claimed_folder(LabSpec(name="x")) as layout:
        (layout.directory / "etc").mkdir()
        layout.environment.touch()
        with pytest.raises(LabError, match="another process"), claimed_folder(LabSpec(name="x")):
            pass
        assert layout.environment.exists()


def test_what_a_dead_lab_left_is_removed(root: Path) -> None:
    with claimed_folder(LabSpec(name="x")) as layout:
        (layout.directory / "etc").mkdir()
        layout.environment.touch()

    with claimed_folder(LabSpec(name="x")) as layout:
        assert list(layout.directory.iterdir()) == []


def test_folder_with_files_that_are_no_labs_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "thesis.tex").touch()

    with (
        pytest.raises(LabError, match="is no lab's"),
        claimed_folder(LabSpec(name="x", directory=tmp_path / "e")),
    ):
        pass

    assert (tmp_path / "e" / "thesis.tex").exists()


@pytest.mark.parametrize("directory", ["/run/lab", "/var/run/lab"])
def test_folder_that_the_lab_would_cover_is_refused(directory: str) -> None:
    with pytest.raises(LabError, match="covers"), claimed_folder(LabSpec(name="x", directory=Path(directory))):
        pass
