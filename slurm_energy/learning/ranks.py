"""One training on several ranks: every rank collects episodes of its own, and gradients are averaged over all.

Ranks are the tasks of an `srun` step, or processes that a launcher gives RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
They talk through torch.distributed with the backend gloo, which needs neither a GPU nor MPI. Gradients, a few megabytes
at most, go through the CPU's memory: so it does not matter whether ranks have a GPU each, share one, or have none.
Every process that reaches the port is believed: the port belongs into a cluster's own network.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.nn import Parameter

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.graph.holdings import node_names
from slurm_energy.learning.experience import Averaging, Weights

_SLURM = ("SLURM_PROCID", "SLURM_NTASKS")
_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FIRST_PORT = 20_000
_PORTS = 10_000
_MAX_RANKS = 1009
JOIN_SECONDS = 120.0
"""For how long ranks wait for each other at the start."""
WAIT_SECONDS = 7200.0
"""For how long a rank waits for another later on: for its longest episode."""
FloatArray = NDArray[np.float64]
_SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Which rank this process is, of how many, and where the first one listens."""

    number: int
    count: int
    address: str
    port: int
    local: int = 0
    """Which it is of those on its own machine."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= _MAX_RANKS:
            raise ConfigError(f"there are {self.count} ranks: 1 to {_MAX_RANKS} can train together")
        if not 0 <= self.number < self.count:
            raise ConfigError(f"rank {self.number} is none of {self.count} ranks: they count from 0")
        if not 1 <= self.port <= 65_535:
            raise ConfigError(f"port {self.port} of rank 0 must be between 1 and 65535: set MASTER_PORT")


def rendezvous(environment: Mapping[str, str]) -> Rendezvous:
    """Return where this process stands, by a launcher's variables or by those of an `srun` step.

    Without MASTER_ADDR rank 0 is on the first host of the step; without MASTER_PORT the port follows from the job's id.

    Raises:
        ConfigError: a variable is missing or no number, or this is a batch script's own process and no step.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        _complete(environment, _LAUNCHER, "a launcher's")
        return Rendezvous(
            number=_whole(environment, "RANK"),
            count=_whole(environment, "WORLD_SIZE"),
            address=environment["MASTER_ADDR"],
            port=_whole(environment, "MASTER_PORT"),
            local=_local(environment, "LOCAL_RANK"),
        )
    if not any(name in environment for name in _SLURM):
        raise ConfigError(
            "a distributed training needs to know its ranks: start it with `srun --ntasks=N slurm-energy train ...`, "
            f"or set {', '.join(_LAUNCHER)}"
        )
    _complete(environment, _SLURM, "Slurm's")
    if "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment:
        raise ConfigError(
            "this process is no task of an srun step, so the other ranks would never come: write `srun` before "
            "`slurm-energy train` in the batch script"
        )
    return Rendezvous(
        number=_whole(environment, "SLURM_PROCID"),
        count=_whole(environment, "SLURM_NTASKS"),
        address=environment.get("MASTER_ADDR") or _first_host(environment),
        port=_whole(environment, "MASTER_PORT") if environment.get("MASTER_PORT") else _port(environment),
        local=_local(environment, "SLURM_LOCALID"),
    )


def _complete(environment: Mapping[str, str], names: Sequence[str], whose: str) -> None:
    missing = [name for name in names if not environment.get(name)]
    if missing:
        there = [name for name in names if name not in missing]
        raise ConfigError(
            f"of {whose} variables {', '.join(there)} is set and {', '.join(missing)} is not: all of "
            f"{', '.join(names)} are needed"
        )


def _whole(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isdecimal():
        raise ConfigError(f"${name} is {text[:40]!r}, it must be a whole number")
    return int(text)


def _local(environment: Mapping[str, str], name: str) -> int:
    return _whole(environment, name) if environment.get(name) else 0


def _first_host(environment: Mapping[str, str]) -> str:
    text = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
    names = node_names(text)
    if not names:
        raise ConfigError(
            f"$SLURM_JOB_NODELIST is {text[:80]!r}, which names no host: set MASTER_ADDR to rank 0's address"
        )
    return names[0]


def _port(environment: Mapping[str, str]) -> int:
    """Return a port that two jobs, or two steps of one, rarely share."""
    job = environment.get("SLURM_JOB_ID", "0")
    step = environment.get("SLURM_STEP_ID", "0")
    number = 31 * int(job if job.isdecimal() else 0) + int(step if step.isdecimal() else 0)
    return _FIRST_PORT + number % _PORTS


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
    try:
        store = distributed.TCPStore(  # type: ignore[attr-defined]  # torch makes it public by its documentation only
            place.address,
            place.port,
            place.count,
            place.number == 0,
            timeout=timedelta(seconds=join_seconds),
        )
        distributed.init_process_group(
            "gloo",
            store=store,
            rank=place.number,
            world_size=place.count,
            timeout=timedelta(seconds=WAIT_SECONDS),
        )
    except (RuntimeError, ValueError, OSError) as error:  # torch's DistError is a RuntimeError
        raise TrainingError(
            f"rank {place.number} of {place.count} found no way to the others through {place.address}:{place.port} "
            f"within {join_seconds:g} s: {_first_line(error)}. Set MASTER_ADDR and MASTER_PORT to where rank 0 can "
            "listen and, where a host's name is not its address in the cluster, GLOO_SOCKET_IFNAME to its interface"
        ) from error
    try:
        yield Ranks(place.number, place.count, place.local)
    finally:
        distributed.destroy_process_group()


@contextmanager
def _spoken() -> Iterator[None]:
    """Translate what torch says when another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            f"another rank does not answer any more; see its message. ({_first_line(error)})"
        ) from error


def _gradient(parameter: Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


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
