"""What holds for every unit test: no process is started, and torch computes on one core."""

import os
import sys
from collections.abc import Iterator

import pytest

# pytest runs one process for each core. Set before anything imports torch; results do not depend on it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

STARTS_A_PROCESS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
COMPILERS = {"cc", "gcc", "make"}
"""The simulated NVML is C: its library is compiled once for those who load it."""

_started: list[str] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTS_A_PROCESS:
        words = arguments[1] if event == "subprocess.Popen" else arguments[0] if arguments else event
        name = str(words[0]) if isinstance(words, list | tuple) and words else str(words)
        if os.path.basename(name) not in COMPILERS:  # noqa: PTH119  # only strings in a hook that sees every event
            _started.append(f"{event} {words}")


sys.addaudithook(_note)


@pytest.fixture(autouse=True)
def _starts_no_process() -> Iterator[None]:
    """Fail a test that starts a process: those are in tests/integration."""
    _started.clear()
    yield
    assert _started == [], "a unit test started a process: it belongs into tests/integration"
