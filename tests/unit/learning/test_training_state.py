"""States on disk: read back as they were, and refused when anything in them is not as it was written."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from slurm_energy.errors import TrainingError
from slurm_energy.learning.training_state import TrainingState, learner_bytes, learner_state, read_state, write_state

LEARNER: dict[str, Any] = {
    "weights": {"a": torch.arange(50_000.0), "b": torch.tensor([True])},
    "names": ["x", None, 1.5],
    "groups": {0: {"lr": 0.1, "betas": (0.9, 0.999)}},
    "count": 3,
}


def state(rounds: int = 4, learner: dict[str, Any] | None = None) -> TrainingState:
    return TrainingState(settings_sha256="a" * 64, rounds=rounds, best_score=1.5, learners=(learner or LEARNER,))


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_state(tmp_path, state())
    found = read_state(tmp_path)
    assert (found.settings_sha256, found.rounds, found.best_score) == ("a" * 64, 4, 1.5)
    (learner,) = found.learners
    assert torch.equal(learner["weights"]["a"], LEARNER["weights"]["a"])
    assert (learner["names"], learner["count"], learner["groups"]) == (["x", None, 1.5], 3, LEARNER["groups"])
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_the_state_before_is_kept_and_no_other(tmp_path: Path) -> None:
    for rounds in (1, 2, 3):
        write_state(tmp_path, state(rounds))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.previous.pt", "state.pt"]
    (tmp_path / "state.previous.pt").replace(tmp_path / "state.pt")
    assert read_state(tmp_path).rounds == 2


def damaged(data: bytes, how: str) -> bytes:
    if how == "cut":
        return data[: len(data) // 2]
    if how == "empty":
        return b""
    if how == "text":
        return b"not a state\n"
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("how", ["cut", "empty", "text", "one bit"])
def test_a_damaged_state_is_refused_and_the_one_before_is_offered(how: str, tmp_path: Path) -> None:
    write_state(tmp_path, state(7))
    write_state(tmp_path, state(8))
    path = tmp_path / "state.pt"
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(TrainingError, match=r"state\.pt is damaged: .*ends after round 7: `cp .*state\.previous\.pt "):
        read_state(tmp_path)


def test_a_damaged_state_without_one_before_offers_nothing(tmp_path: Path) -> None:
    write_state(tmp_path, state(7))
    path = tmp_path / "state.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TrainingError, match="is damaged") as caught:
        read_state(tmp_path)
    assert "cp " not in str(caught.value)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("touched-by-a-state"),))


def test_a_state_that_names_code_is_refused_and_runs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": 1, "learners": [{"x": _Evil()}]}, tmp_path / "state.pt")
    with pytest.raises(TrainingError, match="is damaged"):
        read_state(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "no training state of format 1"),
        ({"rounds": -1}, "number of rounds is -1"),
        ({"rounds": True}, "number of rounds is True"),
        ({"learners": []}, "no learner"),
        ({"learners": [3]}, "no table"),
        ({"best_score": "high"}, "best score is no number"),
        ({"learners": [{"x": torch.float32}]}, "is a dtype"),
    ],
)
def test_a_state_that_says_what_cannot_be_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    document = {"format": 1, "settings_sha256": "a", "rounds": 1, "best_score": None, "learners": [{}]}
    torch.save({**document, **changes}, tmp_path / "state.pt")
    with pytest.raises(TrainingError, match=message):
        read_state(tmp_path)


def test_a_zip_of_something_else_and_a_folder_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("hello", "world")
    (tmp_path / "state.pt").write_bytes(buffer.getvalue())
    with pytest.raises(TrainingError, match="is damaged"):
        read_state(tmp_path)
    (tmp_path / "other" / "state.pt").mkdir(parents=True)
    with pytest.raises(TrainingError, match="no regular file"):
        read_state(tmp_path / "other")
    with pytest.raises(TrainingError, match="holds no training"):
        read_state(tmp_path / "none")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"pool": {"generator": _Evil()}}, r"state\['pool'\]\['generator'\] of the learner is a _Evil"),
        ({"pool": [1, {2}]}, r"state\['pool'\]\[1\] of the learner is a set"),
        ({"pool": {(1, 2): 3}}, r"has the key \(1, 2\)"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(value: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=message):
        write_state(tmp_path, state(learner=value))
    assert list(tmp_path.iterdir()) == []


def test_a_state_of_many_learners_keeps_their_order(tmp_path: Path) -> None:
    write_state(
        tmp_path, TrainingState(settings_sha256="", rounds=0, best_score=None, learners=({"rank": 0}, {"rank": 1}))
    )
    assert [learner["rank"] for learner in read_state(tmp_path).learners] == [0, 1]


def test_a_learners_state_travels_as_bytes() -> None:
    found = learner_state(learner_bytes(LEARNER))
    assert torch.equal(found["weights"]["a"], LEARNER["weights"]["a"])


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot be written"):
        write_state(tmp_path / "none", state())
