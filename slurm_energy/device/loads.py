"""Programs that keep one GPU busy and say how much work they did: the built-in ones need torch with CUDA.

    python -m slurm_energy.device.loads NAME

Each prints a line `SECONDS UNITS` twice a second, monotonic time and units done by then, until its input is closed. Any
program that does so can be used in their place; CUDA_VISIBLE_DEVICES names the GPU.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from slurm_energy.device.gpu import Gpu
from slurm_energy.errors import DeviceError

BUILT_IN = {
    "matmul": "products of large half-precision matrices: bound by compute",
    "copy": "copies within the GPU's memory: bound by memory",
    "training": "steps of a small transformer block, forward and backward: in between",
}
"""Names of the built-in loads, and what they do."""
START_SECONDS = 120.0
"""Within which a load must have reported once: importing a library takes long."""
_REPORT_SECONDS = 0.5
_SIDE = 4096


def has_compute_library() -> bool:
    """Return whether what the built-in loads need is installed; whether it finds a GPU shows when they run."""
    return find_spec("torch") is not None


class ProgramLoad:
    """A load in a process of its own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it.

        Raises:
            DeviceError: it cannot be started.
        """
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise DeviceError(f"load {command[0][:80]!r} cannot be started: {error}") from error
        self._newest: tuple[float, float] | None = None
        self._said: list[str] = []
        self._readers = [
            threading.Thread(target=self._follow, daemon=True),
            threading.Thread(target=self._listen, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def wait_for_report(self, pause: Callable[[float], None], seconds: float = START_SECONDS) -> None:
        """Wait until it has reported once.

        Raises:
            DeviceError: it ended, or said nothing in time.
        """
        waited = 0.0
        while self._newest is None:
            if self._process.poll() is not None:
                raise DeviceError(self._why_ended())
            if waited >= seconds:
                self.stop()
                raise DeviceError(f"the load reported no work within {seconds:g} s")
            pause(0.1)
            waited += 0.1

    def units(self) -> tuple[float, float]:
        """Return monotonic seconds and units of the newest report.

        Raises:
            DeviceError: the program has ended.
        """
        if self._process.poll() is not None or self._newest is None:
            raise DeviceError(self._why_ended())
        return self._newest

    def stop(self) -> None:
        """End it, and wait for its end."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _why_ended(self) -> str:
        for reader in self._readers:
            reader.join(1.0)
        said = self._said[-1] if self._said else "it said nothing"
        return f"the load ended with {self._process.poll()}: {said[:300]}"

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            seconds, _, units = line.partition(" ")
            with suppress(ValueError):
                self._newest = float(seconds), float(units)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.strip():
                self._said = [*self._said[-5:], line.strip()]


def program_load(command: Sequence[str], pause: Callable[[float], None]) -> Callable[[Gpu], ProgramLoad]:
    """Return what starts a program on a GPU and waits for its first report."""

    def start(gpu: Gpu) -> ProgramLoad:
        load = ProgramLoad(command, {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.identity.uuid})
        try:
            load.wait_for_report(pause)
        except BaseException:
            load.stop()
            raise
        return load

    return start


def built_in_command(name: str) -> tuple[str, ...]:
    """Return the command of a built-in load."""
    return (sys.executable, "-m", "slurm_energy.device.loads", name)


def main(arguments: Sequence[str]) -> int:
    """Run a built-in load until its input is closed."""
    (name,) = arguments
    try:
        step = _step(name)
    except (ImportError, DeviceError) as error:
        sys.stderr.write(f"load {name}: {error}\n")
        return 3
    over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    done, reported = 0, 0.0
    while not over.is_set():
        step()
        done += 1
        now = time.monotonic()
        if now - reported >= _REPORT_SECONDS:
            sys.stdout.write(f"{now:.6f} {done}\n")
            sys.stdout.flush()
            reported = now
    return 0


def _step(name: str) -> Callable[[], None]:
    """Return what does one unit of work and waits for its end.

    Raises:
        ImportError: torch is not installed.
        DeviceError: torch finds no GPU.
    """
    torch: Any = import_module("torch")
    if not torch.cuda.is_available():
        raise DeviceError("torch finds no CUDA device: a build with CUDA and the driver's library are needed")
    device = torch.device("cuda")
    if name == "matmul":
        left, right = (torch.randn(_SIDE, _SIDE, device=device, dtype=torch.float16) for _ in range(2))

        def work() -> None:
            for _ in range(10):
                torch.matmul(left, right)

    elif name == "copy":
        source = torch.zeros(1 << 28, device=device, dtype=torch.float32)
        target = torch.empty_like(source)

        def work() -> None:
            for _ in range(10):
                target.copy_(source)

    else:
        layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device=device)
        batch = torch.randn(16, 256, 1024, device=device)

        def work() -> None:
            layer.zero_grad(set_to_none=True)
            layer(batch).square().mean().backward()

    def step() -> None:
        work()
        torch.cuda.synchronize()

    return step


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
