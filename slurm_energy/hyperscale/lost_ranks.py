"""Which rank was lost: those that are left sign in at the store through which they all met."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from slurm_energy.errors import plain_words
from slurm_energy.rendezvous import Rendezvous, first_line

MIN_WAIT_SECONDS = 10.0
_EPOCHS_WAITED = 3.0
_MAX_TEXT = 300


class NoAnswer(Exception):
    """torch.distributed says that another rank does not answer; it does not say which."""


@contextmanager
def talking() -> Iterator[None]:
    """Translate what torch.distributed raises when another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        raise NoAnswer(first_line(error)) from error


class Store(Protocol):
    """What is used of torch.distributed's store."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""
        ...

    def get(self, key: str, /) -> bytes:
        """Return a value, waiting until it is there."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Return whether all are there."""
        ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Wait until all are there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Who was lost."""

    words: str
    first_survivor: int


class RankPresence:
    """This rank among the others."""

    def __init__(self, place: Rendezvous, store: Store | None) -> None:
        """Say which host this rank is on; the store is None where the rank is alone."""
        self.number, self.count = place.number, place.count
        self._store = store
        if store is not None:
            with talking():
                store.set(f"host/{self.number}", socket.gethostname()[:_MAX_TEXT])

    def failed(self, error: Exception) -> None:
        """Leave word of an error of this rank's own for the others."""
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(f"failed/{self.number}", plain_words(error)[:_MAX_TEXT])

    def lost(self, error: NoAnswer, epoch_seconds: float) -> Lost:
        """Return which ranks are lost: those that do not sign in within some epochs' time.

        Where the store itself is gone, rank 0 is, which holds it.
        """
        assert self._store is not None
        wait = timedelta(seconds=max(MIN_WAIT_SECONDS, _EPOCHS_WAITED * epoch_seconds))
        try:
            self._store.set(f"left/{self.number}", "1")
            others = [number for number in range(self.count) if number != self.number]
            with suppress(RuntimeError):
                self._store.wait([f"left/{number}" for number in others], wait)
            gone = [number for number in others if not self._store.check([f"left/{number}"])]
            words = " and ".join(self._words_of(number) for number in gone) or f"a connection broke ({error})"
            self._store.set(f"read/{self.number}", "1")
            if self.number == 0:  # the others read from this process
                with suppress(RuntimeError):
                    self._store.wait([f"read/{number}" for number in others if number not in gone], wait)
        except RuntimeError:
            return Lost(words=f"rank 0 of {self.count} is lost ({error})", first_survivor=1)
        left = [number for number in range(self.count) if number not in gone]
        return Lost(words=words, first_survivor=left[0])

    def _words_of(self, number: int) -> str:
        assert self._store is not None
        host = self._store.get(f"host/{number}").decode(errors="replace")
        words = f"rank {number} of {self.count} (on {host})"
        if self._store.check([f"failed/{number}"]):
            return f"{words} failed: {self._store.get(f'failed/{number}').decode(errors='replace')}"
        return f"{words} is lost"
