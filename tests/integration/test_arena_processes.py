"""Worker processes of the arena: what ends one of them costs no other run its result."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena.comparison import FailedRun, WorkerCall, WorkerPool


def test_a_process_that_dies_fails_its_own_step_only() -> None:
    steps = [
        WorkerCall(policy="good", seed=1, call=abs, arguments=(-1,)),
        WorkerCall(policy="deadly", seed=1, call=os._exit, arguments=(3,)),
        WorkerCall(policy="good", seed=2, call=abs, arguments=(-2,)),
        WorkerCall(policy="good", seed=3, call=abs, arguments=(-3,)),
    ]
    told: list[tuple[str, int, int]] = []
    with WorkerPool(2) as pool:
        found, failed = pool.results(steps, lambda *words: told.append(words), "runs")
        again, _ = pool.results(steps[:1], lambda *words: None, "runs")
    assert found == {0: 1, 2: 2, 3: 3}
    assert failed == (
        FailedRun(policy="deadly", seed=1, error="its process ended before it was done: out of memory, or killed"),
    )
    assert again == {0: 1}
    assert told[-1] == ("runs", 4, 4)


def test_foreign_errors_are_told_with_their_type() -> None:
    with WorkerPool(1) as pool:
        _, failed = pool.results(
            [WorkerCall(policy="p", seed=1, call=int, arguments=("x",))], lambda *words: None, "runs"
        )
    assert failed[0].error.startswith("ValueError: invalid literal")


def test_an_interrupt_ends_the_workers_at_once() -> None:
    def interrupt(*words: object) -> None:
        raise KeyboardInterrupt

    steps = [WorkerCall(policy="quick", seed=1, call=abs, arguments=(-1,))]
    steps += [WorkerCall(policy="slow", seed=seed, call=time.sleep, arguments=(900.0,)) for seed in range(4)]
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), WorkerPool(2) as pool:
        pool.results(steps, interrupt, "runs")
    assert time.monotonic() - begun < 300.0


_BUSY = """
import os, time
from slurm_energy.evaluation.arena.comparison import WorkerPool, WorkerCall
if __name__ == "__main__":
    with WorkerPool(2) as pool:
        pids = [WorkerCall(policy="pid", seed=seed, call=os.getpid, arguments=()) for seed in range(8)]
        naps = [WorkerCall(policy="slow", seed=seed, call=time.sleep, arguments=(120.0,)) for seed in range(2)]
        found, _ = pool.results(pids, lambda *words: None, "pids")
        print(*sorted(set(found.values())), flush=True)
        pool.results(naps, lambda *words: None, "naps")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_workers_do_not_outlive_their_command(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "busy.py"
    script.write_text(_BUSY, encoding="utf-8")
    command = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    workers = [int(word) for word in command.stdout.readline().split()]
    assert workers
    command.send_signal(number)
    command.wait(timeout=120)
    end = time.monotonic() + 120.0
    while any(_lives(pid) for pid in workers):
        assert time.monotonic() < end, f"workers {workers} outlive their command"
        time.sleep(0.1)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_no_worker_is_refused() -> None:
    from slurm_energy.evaluation.arena.comparison import run_arena
    from slurm_energy.evaluation.arena.plan import ArenaPlan

    with pytest.raises(EvaluationError, match="0 workers"):
        run_arena(ArenaPlan(policies=("greedy",), world="chsac"), workers=0)
