"""Episodes of a round: one after the other in this process, or at once in several processes, with the same outcome."""

import multiprocessing
import pickle
import signal
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from slurm_energy.errors import SlurmEnergyError, TrainingError
from slurm_energy.learning.experience import Collector, Weights
from slurm_energy.processes import end_with_parent

_END_SECONDS = 5.0
_SIGNAL_SECONDS = 0.5
_Arrays = Mapping[str, NDArray[Any]]


class EpisodeRunner(Protocol):
    """Those who run a round's episodes."""

    def collect(self, weights: Weights, seeds: Sequence[int]) -> list[Sequence[Any]]:
        """Return the experience of one episode for each seed, in their order.

        Raises:
            TrainingError: an episode failed; with its seed.
        """
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class InOrder:
    """Runs episodes one after the other in this process."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self, weights: Weights, seeds: Sequence[int]) -> list[Sequence[Any]]:
        """Return the experience of one episode for each seed."""
        copied = {name: tensor.detach().clone() for name, tensor in weights.items()}
        with _one_thread():
            return [self._episode(copied, number, seed) for number, seed in enumerate(seeds)]

    def close(self) -> None:
        """Do nothing: nothing was started."""

    def _episode(self, weights: Weights, number: int, seed: int) -> Sequence[Any]:
        try:
            return self._collector(weights, seed=seed)
        except Exception as error:
            raise _failure(number, seed, _words(error), "") from error


class Processes:
    """Runs the episodes of a round at once, each in a process of its own with one thread.

    The processes are daemons, and each looks whether this one still lives: none of them outlives it.
    """

    def __init__(self, collector: Collector, count: int) -> None:
        """Start them; they are ready when they answer the first round.

        Args:
            collector: Is pickled into each.
            count: How many.
        """
        context = multiprocessing.get_context("spawn")
        self._members: list[tuple[BaseProcess, Connection]] = []
        resource_tracker.ensure_running()  # the first start does it, too, and would let SIGINT through again
        # A Ctrl-C of the terminal goes to every process: children inherit that it waits, and later ignore it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for number in range(count):
                here, there = context.Pipe()
                process = context.Process(
                    target=_work, args=(there, collector), name=f"collector {number}", daemon=True
                )
                process.start()
                there.close()
                self._members.append((process, here))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def collect(self, weights: Weights, seeds: Sequence[int]) -> list[Sequence[Any]]:
        """Return the experience of one episode for each seed; there are as many seeds as processes."""
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}
        waiting: dict[Connection, int] = {}
        for number, seed in enumerate(seeds):
            _, connection = self._members[number]
            self._send(number, seed, pickle.dumps((arrays, seed), protocol=5))
            waiting[connection] = number
        found: dict[int, Sequence[Any]] = {}
        while waiting:
            for ready in wait(list(waiting)):
                assert isinstance(ready, Connection)
                number = waiting.pop(ready)
                found[number] = self._answer(number, seeds[number])
        return [found[number] for number in range(len(seeds))]

    def close(self) -> None:
        """End the processes."""
        for process, connection in self._members:
            connection.close()
            process.kill()  # what it holds is only its own
        for process, _ in self._members:
            process.join()
        self._members = []

    def _send(self, number: int, seed: int, message: bytes) -> None:
        try:
            self._members[number][1].send_bytes(message)
        except OSError:
            raise self._death(number, seed) from None

    def _answer(self, number: int, seed: int) -> Sequence[Any]:
        try:
            experience, words, trace = pickle.loads(self._members[number][1].recv_bytes())  # noqa: S301  # our child
        except (EOFError, OSError):
            raise self._death(number, seed) from None
        if words is not None:
            raise _failure(number, seed, words, trace)
        answer: Sequence[Any] = experience
        return answer

    def _death(self, number: int, seed: int) -> TrainingError:
        process = self._members[number][0]
        process.join(_END_SECONDS)
        code = process.exitcode
        if code == -signal.SIGTERM:
            time.sleep(
                _SIGNAL_SECONDS
            )  # Slurm's goes to all processes: here it is to stop the training, not to fail it
        if code is not None and code < 0:
            words = f"was ended by {signal.Signals(-code).name}; when memory ran out, take fewer collectors"
        else:
            words = f"ended with exit code {code}; its message is above"
        return TrainingError(f"collector {number} {words} (episode of seed {seed})")


def create_episode_runner(collector: Collector, count: int) -> EpisodeRunner:
    """Return who runs `count` episodes a round: processes of their own when there are several."""
    return InOrder(collector) if count == 1 else Processes(collector, count)


def _work(connection: Connection, collector: Collector) -> None:
    """Answer with experience, or with what went wrong and an end, until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    torch.set_num_threads(1)
    while True:
        try:
            arrays, seed = pickle.loads(connection.recv_bytes())  # noqa: S301  # our parent
        except (EOFError, OSError):
            return
        try:
            experience = collector(_tensors(arrays), seed=seed)
        except Exception as error:
            _say(connection, (None, _words(error), traceback.format_exc()))
            raise SystemExit(1) from error
        _say(connection, (experience, None, ""))


def _say(connection: Connection, answer: tuple[Sequence[Any] | None, str | None, str]) -> None:
    connection.send_bytes(pickle.dumps(answer, protocol=5))


def _tensors(arrays: _Arrays) -> dict[str, torch.Tensor]:
    # A copy: arrays from a pickle may lie in memory that must not be written to.
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _words(error: Exception) -> str:
    if isinstance(error, SlurmEnergyError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in last)
    return f"{type(error).__name__}: {error}{where}"


def _failure(number: int, seed: int, words: str, trace: str) -> TrainingError:
    failure = TrainingError(f"collector {number} failed in the episode of seed {seed}: {words}")
    if trace:
        failure.add_note(f"In the process of collector {number}:\n{trace}")
    return failure


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
