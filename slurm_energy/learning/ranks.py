"""One training on several ranks: every rank collects episodes of its own, and gradients are averaged over all.

They meet as `rendezvous` says and talk with the backend gloo, which needs neither a GPU nor MPI. Gradients, a few
megabytes at most, go through the CPU's memory: so it does not matter whether ranks have a GPU each, share one, or have
none.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.nn import Parameter

from slurm_energy.errors import TrainingError
from slurm_energy.learning.experience import Averaging, Weights
from slurm_energy.rendezvous import JOIN_SECONDS, Rendezvous, first_line, process_group

FloatArray = NDArray[np.float64]
_SMALLEST_DEVIATION = 1e-6


class Ranks:
    """The ranks of a training, this one among them; with one alone, every method is as if the others agreed."""

    def __init__(self, number: int = 0, count: int = 1, local: int = 0) -> None:
        self.number = number
        self.count = count
        self.local = local
        self._averaged = 0

    @property
    def writes(self) -> bool:
        """Whether this rank is the one that writes files."""
        return self.number == 0

    def average(self, parameters: Iterable[Parameter]) -> None:
        """Replace the gradients of parameters by their mean over all ranks.

        Raises:
            TrainingError: a rank has no further update in this round, or none answers.
        """
        if self.count == 1:
            return
        self._averaged += 1
        with _spoken():
            self._agree(continues=True)
            held = list(parameters)
            device = held[0].device
            reached = torch.tensor([float(parameter.grad is not None) for parameter in held])
            parts = [reached.to(device), *(_gradient(parameter).reshape(-1).to(device) for parameter in held)]
            flat = torch.cat(parts).cpu()  # one copy from the device, and one back
            distributed.all_reduce(flat)
            means = (flat[len(held) :] / self.count).to(device)
            split = torch.split(means, [parameter.numel() for parameter in held])
            for parameter, ranks_reached, mean in zip(held, flat[: len(held)].tolist(), split, strict=True):
                # What no rank's loss reached keeps no gradient: an optimiser leaves it alone, as it does on one rank.
                parameter.grad = mean.to(parameter).view_as(parameter) if ranks_reached else None

    def end_updates(self) -> None:
        """Make sure that all ranks have made equally many updates in this round.

        Raises:
            TrainingError: they have not.
        """
        if self.count > 1:
            with _spoken():
                self._agree(continues=False)
        self._averaged = 0

    def any_of(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        if self.count == 1:
            return flag
        found = torch.tensor([float(flag)])
        with _spoken():
            distributed.all_reduce(found, op=distributed.ReduceOp.MAX)
        return float(found) > 0.0

    def begin_equal(self, weights: Mapping[str, Tensor]) -> None:
        """Give every rank the first one's weights, in place."""
        if self.count > 1:
            with _spoken(), torch.no_grad():
                for name in sorted(weights):
                    distributed.broadcast(weights[name], src=0)

    def check_equal(self, weights: Weights) -> None:
        """Refuse weights that are not the same on all ranks.

        Raises:
            TrainingError: a rank's weights differ from the first one's.
        """
        if self.count == 1:
            return
        digest = hashlib.sha256()
        for name in sorted(weights):
            digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
        mine = torch.tensor(list(digest.digest()), dtype=torch.uint8)
        all_of_them = [torch.empty_like(mine) for _ in range(self.count)]
        with _spoken():
            distributed.all_gather(all_of_them, mine)
        others = [number for number, one in enumerate(all_of_them) if not torch.equal(one, all_of_them[0])]
        if others:
            raise TrainingError(
                f"the weights of ranks {', '.join(map(str, others))} are not those of rank 0: the learner changed them "
                "by something that is not averaged, or their GPUs are of other models, which round in other ways"
            )

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks, in their order, on the first one; nothing on the others."""
        if self.count == 1:
            return [data]
        with _spoken():
            lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            distributed.all_gather(lengths, torch.tensor([len(data)]))
            if self.number > 0:
                distributed.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), dst=0)
                return []
            found = [data]
            for source in range(1, self.count):
                received = torch.empty(int(lengths[source]), dtype=torch.uint8)
                distributed.recv(received, src=source)
                found.append(received.numpy().tobytes())
            return found

    def _agree(self, *, continues: bool) -> None:
        going = torch.tensor([float(continues)])
        distributed.all_reduce(going)
        if 0.0 < float(going) < self.count:
            raise TrainingError(
                f"{int(going)} of {self.count} ranks make an update number {self._averaged + (not continues)} in this "
                "round, the others have made all of theirs: the number of updates must not depend on a rank's episodes"
            )


ALONE = Ranks()


@contextmanager
def joined(place: Rendezvous, join_seconds: float = JOIN_SECONDS) -> Iterator[Ranks]:
    """Wait for the other ranks, and let go of them at the end.

    Raises:
        TrainingError: they do not come in time, or rank 0's address cannot be used.
    """
    with process_group(place, join_seconds=join_seconds):
        yield Ranks(place.number, place.count, place.local)


@contextmanager
def _spoken() -> Iterator[None]:
    """Translate what torch says when another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(f"another rank does not answer any more; see its message. ({first_line(error)})") from error


def _gradient(parameter: Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def carrier(values: Sequence[float]) -> Parameter:
    """Return a parameter whose gradient is these numbers: averaging makes the ranks' mean of them."""
    parameter = Parameter(torch.zeros(len(values), dtype=torch.float64))
    parameter.grad = torch.tensor(values, dtype=torch.float64)
    return parameter


def carried(parameter: Parameter) -> list[float]:
    """Return the numbers of a carrier."""
    assert parameter.grad is not None
    found: list[float] = parameter.grad.tolist()
    return found


def agreed(values: Sequence[float], averaging: Averaging) -> list[float]:
    """Return the mean of these numbers over all ranks."""
    figures = carrier(values)
    averaging([figures])
    return carried(figures)


def shares_of_mean(counts: Sequence[float], averaging: Averaging) -> list[float]:
    """Return each count over the mean of all ranks' counts; 0 where there is none here.

    What a mean over own steps is multiplied by, so that in the mean over ranks each step counts alike.
    """
    means = agreed(counts, averaging)
    return [own / mean if own > 0.0 else 0.0 for own, mean in zip(counts, means, strict=True)]


def mean_and_deviation(values: FloatArray, averaging: Averaging) -> tuple[float, float]:
    """Return mean and standard deviation of all ranks' values together; 0 and 1 where there are none."""
    sums = [float(len(values)), float(values.sum()), float(np.square(values).sum())]
    count, total, squares = agreed(sums, averaging)
    if count == 0.0:
        return 0.0, 1.0
    mean = total / count
    return mean, max(_SMALLEST_DEVIATION, sqrt(max(0.0, squares / count - mean * mean)))
