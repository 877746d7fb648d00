"""Signals during a training: noted, or at once where nothing is left half done; a second one always at once."""

import signal
import threading

import pytest

from slurm_energy.learning.rounds import SIGNALS, StopRequest


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_the_second_raises(number: signal.Signals) -> None:
    with StopRequest().listening() as stop:
        signal.raise_signal(number)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_where_nothing_is_left_half_done_it_raises_at_once(number: signal.Signals) -> None:
    with StopRequest().listening() as stop, pytest.raises(KeyboardInterrupt), stop.at_once():
        signal.raise_signal(number)
    assert stop.asked


def test_one_that_was_noted_raises_before_the_next_episodes_begin() -> None:
    with StopRequest().listening() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), stop.at_once():
            raise AssertionError("episodes began")


def test_signals_are_afterwards_what_they_were() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopRequest().listening():
        assert all(signal.getsignal(number) not in before for number in SIGNALS)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_outside_the_main_thread_nothing_is_changed() -> None:
    found: list[bool] = []

    def listen() -> None:
        before = signal.getsignal(signal.SIGINT)
        with StopRequest().listening():
            found.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [True]
