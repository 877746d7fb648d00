"""Ctrl-C and Slurm's SIGTERM: a training ends where its state is whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the training was asked to stop.

    The first signal is only noted, unless it comes inside `at_once`, where nothing would be left half done; there, and
    from the second one on, it raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.asked = False
        self._at_once = False

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Take the signals, in the main thread; elsewhere they stay what they are."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._note) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal interrupt what is inside."""
        if self.asked:
            raise KeyboardInterrupt
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if again or self._at_once:
            raise KeyboardInterrupt
