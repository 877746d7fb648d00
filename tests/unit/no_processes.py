"""A unit test starts no process: it would be slow, and in the way of the tests beside it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EVENTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
COMPILERS = {"cc", "gcc", "make"}
"""The simulated NVML is C: its library is compiled once for the tests that load it."""

_started: list[str] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in EVENTS:
        words = arguments[1] if event == "subprocess.Popen" else arguments[0] if arguments else event
        name = str(words[0]) if isinstance(words, list | tuple) and words else str(words)
        if os.path.basename(name) not in COMPILERS:  # noqa: PTH119  # a string, in what is called at every event
            _started.append(f"{event} {words}")


sys.addaudithook(_note)


@pytest.fixture(autouse=True)
def _no_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test below tests/unit that started a process."""
    _started.clear()
    yield
    if request.path.is_relative_to(HERE):
        assert _started == [], "a unit test started a process: it belongs to tests/integration"
