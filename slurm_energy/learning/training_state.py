"""The state of a training on disk: written whole or not at all, the one before kept, read without running any code."""

import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

from slurm_energy.errors import TrainingError
from slurm_energy.learning.experience import Learner
from slurm_energy.learning.settings_file import RUN_BOUNDS

STATE_FILE = "state.pt"
PREVIOUS_FILE = "state.previous.pt"
_FORMAT = 1
_DEEPEST = 32
_MAX_BITS = 64
"""Of a whole number that any reader takes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingState:
    """All that is needed to resume after a round."""

    settings_sha256: str
    """Of what must be the same to resume."""
    rounds: int
    """That are done."""
    best_score: float | None
    """Of the rounds that are done; None where the learner gives none."""
    learners: tuple[Mapping[str, Any], ...]
    """State of each rank's learner."""


def on_host(value: Any) -> Any:
    """Return a learner's state with its tensors in the CPU's memory: it may be gone on from on another device."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return {key: on_host(item) for key, item in value.items()}
    return type(value)(map(on_host, value)) if isinstance(value, list | tuple) else value


def learner_bytes(state: Mapping[str, Any]) -> bytes:
    """Return a learner's state as bytes, for another rank.

    Raises:
        TrainingError: it holds what is no tensor, number or text.
    """
    _check_plain(state, "state", 0)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def learner_state(data: bytes) -> Mapping[str, Any]:
    """Return what `learner_bytes` made bytes of."""
    found: Mapping[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return found


def write_state(folder: Path, state: TrainingState) -> None:
    """Write a training's state into its folder; the present one becomes the previous one.

    Not by `write_atomically`: torch writes gigabytes into the file piece by piece, and the previous state gives way
    only when the new one is whole.

    Raises:
        TrainingError: it cannot be written, or a learner's state holds what is no tensor, number or text.
    """
    for learner in state.learners:
        _check_plain(learner, "state", 0)
    path, unfinished = folder / STATE_FILE, folder / f".{STATE_FILE}.part"
    document = {
        "format": _FORMAT,
        "settings_sha256": state.settings_sha256,
        "rounds": state.rounds,
        "best_score": state.best_score,
        "learners": [dict(learner) for learner in state.learners],
    }
    try:
        with unfinished.open("wb") as file:
            torch.save(document, file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            # A hard link, not a rename: at every moment there is a whole state.pt.
            (folder / PREVIOUS_FILE).unlink(missing_ok=True)
            os.link(path, folder / PREVIOUS_FILE)
        unfinished.replace(path)
    except (OSError, RuntimeError) as error:  # RuntimeError is how torch tells of a full disk
        raise TrainingError(f"training state {path} cannot be written: {error}") from error


def read_state(folder: Path) -> TrainingState:
    """Return the state that a folder holds.

    Raises:
        TrainingError: there is none, or it is damaged; then with what to do about it.
    """
    path = folder / STATE_FILE
    try:
        return _read(path)
    except FileNotFoundError:
        raise TrainingError(f"{folder} holds no training: {path} does not exist{_offer(folder)}") from None
    except _Damaged as error:
        raise damaged(folder, str(error)) from error


def damaged(folder: Path, why: str) -> TrainingError:
    """Return the error of a folder's damaged state, with what to do about it."""
    return TrainingError(f"training state {folder / STATE_FILE} is damaged: {why}{_offer(folder)}")


class _Damaged(Exception):
    """A file that is no whole state of a training."""


def _offer(folder: Path) -> str:
    previous = folder / PREVIOUS_FILE
    try:
        rounds = _read(previous).rounds
    except (FileNotFoundError, _Damaged):
        return ""
    return (
        f"; the state before it is whole and ends after round {rounds}: "
        f"`cp {previous} {folder / STATE_FILE}`, then resume"
    )


def _read(path: Path) -> TrainingState:
    try:
        if not path.is_file() and path.exists():
            raise _Damaged("it is no regular file")
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()  # torch itself does not compare checksums
        if broken is not None:
            raise _Damaged(f"the checksum of its part {broken[:80]!r} is wrong")
        document = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except (
        OSError,
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        pickle.UnpicklingError,
        RuntimeError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        MemoryError,
        OverflowError,
        NotImplementedError,
    ) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise _Damaged(first[:200]) from error
    return _checked(document)


def _checked(document: object) -> TrainingState:
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise _Damaged(f"it is no training state of format {_FORMAT}")
    rounds, best, learners = document.get("rounds"), document.get("best_score"), document.get("learners")
    sha256 = document.get("settings_sha256")
    try:
        for name, value in (("rounds", rounds), ("best score", best), ("hash", sha256)):
            _check_plain(value, name, 0)
        for learner in learners if isinstance(learners, list) else ():
            _check_plain(learner, "state", 0)
    except TrainingError as error:
        raise _Damaged(str(error)) from error
    if type(rounds) is not int or not 0 <= rounds <= RUN_BOUNDS["rounds"][1] or not isinstance(sha256, str):
        raise _Damaged(f"its number of rounds is {rounds!r:.40} and its settings' hash {sha256!r:.80}")
    if not (best is None or (type(best) is float and isfinite(best))) or not isinstance(learners, list) or not learners:
        raise _Damaged("its best score is no number or it has no learner")
    if not all(isinstance(learner, dict) for learner in learners):
        raise _Damaged("a learner's state is no table")
    return TrainingState(settings_sha256=sha256, rounds=rounds, best_score=best, learners=tuple(learners))


def _check_plain(value: object, name: str, depth: int) -> None:
    """Refuse what the careful reading would refuse, before a training of days relies on it."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise TrainingError(
            f"{name} of the learner is a whole number of {value.bit_length()} bits, at most {_MAX_BITS} are read back"
        )
    if value is None or isinstance(value, torch.Tensor) or type(value) in {bool, int, float, str}:
        return
    if depth < _DEEPEST and isinstance(value, dict):
        for key, item in value.items():
            if type(key) not in {int, str}:
                raise TrainingError(f"{name} of the learner has the key {key!r:.64}: keys must be texts or integers")
            _check_plain(item, f"{name}[{key!r:.64}]", depth + 1)
    elif depth < _DEEPEST and isinstance(value, list | tuple):
        for at, item in enumerate(value):
            _check_plain(item, f"{name}[{at}]", depth + 1)
    else:
        raise TrainingError(
            f"{name} of the learner is a {type(value).__name__}: only tensors, numbers, texts, lists and tables of "
            "them can be read back"
        )


_ROUNDS = "rounds"
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}


def restore_learner(learner: Learner, state: TrainingState, rank: int, folder: Path) -> None:
    """Let a rank's learner resume from a folder's state.

    A file can hold anything: whatever a learner meets in its part is a damage of the file, reported in one way for all
    algorithms.

    Raises:
        TrainingError: the state is none of this learner; with what to do about it.
    """
    given = state.learners[rank]
    counted = given.get(_ROUNDS, state.rounds)
    if type(counted) is not int or counted != state.rounds:
        raise damaged(folder, f"its learner has counted {counted!r:.40} rounds where {state.rounds} are done")
    try:
        learner.restore(given)
    except (
        TrainingError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        RuntimeError,
    ) as error:
        raise damaged(folder, _why(error)) from error
    for name, tensor in learner.acting.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise damaged(folder, f"weights of its learner are no finite numbers (the first are {name})")


def restore_adam(optimiser: Adam, state: Mapping[str, Any]) -> None:
    """Let an optimiser resume from a state; its settings stay those that it was made with.

    Raises:
        ValueError: the state is none of an Adam over these parameters.
        KeyError, TypeError, AttributeError: likewise.
    """
    own = optimiser.state_dict()
    sizes, theirs = ([len(group["params"]) for group in of["param_groups"]] for of in (own, state))
    if sizes != theirs:
        raise ValueError(f"an optimiser has groups of {theirs} parameters, {sizes} are learned")
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    moments = state["state"]
    for number, kept in moments.items():
        if type(number) is not int or not 0 <= number < len(parameters):
            raise ValueError(f"an optimiser knows of parameter {number!r:.40}, there are {len(parameters)}")
        if set(kept) != _MOMENTS:
            raise ValueError(f"an optimiser keeps {', '.join(map(str, kept)):.80} of a parameter")
        for name, tensor in kept.items():
            shape = torch.Size() if name == "step" else parameters[number].shape
            if not same_form(tensor, shape) or (name != "exp_avg" and bool((tensor < 0.0).any())):
                raise ValueError(f"an optimiser's {name} of parameter {number} is none of it")
    # A copy: an optimiser changes what it is given in place.
    optimiser.load_state_dict({"state": deepcopy(dict(moments)), "param_groups": own["param_groups"]})


def same_form(value: object, shape: torch.Size) -> bool:
    """Return whether something is a tensor of finite numbers with this shape."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.shape == shape
        and bool(torch.isfinite(value).all())
    )


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"its learner lacks {error}"
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"its learner cannot resume from it: {first[:200]}"
