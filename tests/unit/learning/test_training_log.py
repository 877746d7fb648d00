"""Figures of rounds on disk: one row a round, also after a training that was broken off."""

import importlib.util
import sys
from importlib import import_module
from pathlib import Path

import pytest

from slurm_energy.errors import TrainingError
from slurm_energy.learning.training_log import CsvLog, open_log

HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None


def test_a_row_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    log = open_log(tmp_path, "csv", done=0)
    log.write(1, {"loss": 0.5, "score": -2.0})
    assert (tmp_path / "log.csv").read_text() == "round,loss,score\n1,0.5,-2\n"
    log.write(2, {"loss": 1e-12, "score": float("nan")})
    assert (tmp_path / "log.csv").read_text() == "round,loss,score\n1,0.5,-2\n2,1e-12,nan\n"


def test_a_figure_that_comes_later_is_a_new_column_and_one_that_is_missing_is_empty(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "log.csv", done=0)
    log.write(1, {"waiting": 3.0})
    log.write(2, {"loss": 0.5})
    log.write(3, {"waiting": 4.0})
    assert (tmp_path / "log.csv").read_text() == "round,waiting,loss\n1,3,\n2,,0.5\n3,4,\n"


def test_going_on_keeps_the_rows_of_done_rounds_and_drops_the_others(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "log.csv", done=0)
    for number in (1, 2, 3):
        log.write(number, {"loss": float(number)})
    again = CsvLog(tmp_path / "log.csv", done=2)
    again.write(3, {"loss": 30.0})
    assert (tmp_path / "log.csv").read_text() == "round,loss\n1,1\n2,2\n3,30\n"


@pytest.mark.parametrize("end", ["3,", "3", '3,"', "3,1,", "\x003"])
def test_a_last_row_that_broke_off_is_dropped(end: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"round,loss,score\n1,1,1\n2,2,2\n{end}")
    log = CsvLog(path, done=2)
    log.write(3, {"loss": 3.0, "score": 3.0})
    assert path.read_text() == "round,loss,score\n1,1,1\n2,2,2\n3,3,3\n"


@pytest.mark.parametrize("text", ["name,job\na,1\nb,2\n", "round,loss\nx,1\ny,2\nz,3\n", "\xff\xfe\x00"])
def test_a_file_that_is_no_log_is_refused_and_stays(text: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TrainingError, match=r"log\.csv (is no log of a training|cannot be read)"):
        CsvLog(path, done=5)
    assert path.read_bytes() == text.encode("latin-1")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot be written"):
        CsvLog(tmp_path / "none" / "log.csv", done=0)


def test_tensorboard_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TrainingError, match="pip install tensorboard, or take --log-format csv"):
        open_log(tmp_path, "tensorboard", done=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not HAS_TENSORBOARD, reason="tensorboard is not installed")
def test_tensorboard_gets_an_event_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, "tensorboard", done=0)
    log.write(1, {"loss": 0.5})
    log.close()
    assert [path.name.startswith("events.out") for path in (tmp_path / "events").iterdir()] == [True]
    events = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    read = events(str(tmp_path / "events")).Reload()
    assert [(one.step, one.value) for one in read.Scalars("loss")] == [(1, 0.5)]
