"""Going on from a state that a file held: what is wrong with it is told as damage, before anything is changed."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

from slurm_energy.errors import TrainingError
from slurm_energy.learning.experience import Learner
from slurm_energy.learning.training_state import TrainingState, damaged

_ROUNDS = "rounds"
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}


def restore_learner(learner: Learner, state: TrainingState, rank: int, folder: Path) -> None:
    """Let a rank's learner go on from a folder's state.

    A file can hold anything: whatever a learner meets in its part is a damage of the file, told in one way for all
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
    """Let an optimiser go on from a state; its settings stay those that it was made with.

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
    return f"its learner cannot go on from it: {first[:200]}"
