"""Run one hook on GPUs kept in a file, and die by SIGKILL at the Nth thing that it does to GPUs or files.

usage: crash_worker.py FOLDER prolog|epilog JOB GPUS N [DECISION]; exit 0: it came to its end before N.
"""

import builtins
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node_bench import Bench

from slurm_energy.node.hooks import run_epilog, run_prolog


def load_world(bench: Bench, folder: Path) -> None:
    """Take the GPUs' settings and the time from the file, and write every change back at once."""
    path = folder / "world.json"
    if path.exists():
        world = json.loads(path.read_text())
        bench.clock.advance(world["seconds"])
        for gpu, (lock, limit) in zip(bench.gpus, world["gpus"], strict=True):
            gpu.lock, gpu.limit_watts = (None if lock is None else (lock[0], lock[1])), limit

    def save() -> None:
        seconds = bench.clock.now - 1_800_000_000.0
        gpus = [[gpu.lock, gpu.limit_watts] for gpu in bench.gpus]
        path.write_text(json.dumps({"seconds": seconds, "gpus": gpus}))

    save()
    for gpu in bench.gpus:
        gpu.on_change = save


class Reaper:
    """Counts and kills."""

    def __init__(self, point: int) -> None:
        self._left = point

    def tick(self, *_: object) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self.tick()
            result = function(*arguments, **named)
            self.tick()
            return result

        return wrapped


def main(arguments: list[str]) -> None:
    folder, verb, job_id, gpus, point, *rest = arguments
    bench = Bench(Path(folder), gpus=2)
    load_world(bench, Path(folder))
    if verb == "epilog":
        bench.clock.advance(10.0)
    reaper = Reaper(int(point))
    for gpu in bench.gpus:
        gpu.on_call = reaper.tick
        saved = gpu.on_change
        assert saved is not None
        gpu.on_change = reaper.wrap(saved)
    for name in ("replace", "fsync", "unlink", "write"):
        setattr(os, name, reaper.wrap(getattr(os, name)))
    hook = bench.hook(int(job_id), gpus, rest[0] if rest else None)
    (run_prolog if verb == "prolog" else run_epilog)(bench.context(), hook)
    builtins.print("done")


if __name__ == "__main__":
    main(sys.argv[1:])
