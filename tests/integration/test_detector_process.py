"""The detector's own process: what it says, and what becomes of one that fails, hangs or cannot start."""

import sys
import time
from typing import Any

import numpy as np
import pytest

from slurm_energy.node.trials.detector import MAX_SECONDS, DetectorProcess


def window(period: float) -> dict[str, Any]:
    """A program of one period: 70 % of it at high power, and memory traffic in proportion to its work."""
    times = np.arange(0.0, 60.0, 0.1)
    high = (times / period) % 1.0 < 0.7
    work = np.where(high, 1.0, 0.2) / period
    return {
        "seconds": times.tolist(),
        "watts": np.where(high, 300.0, 120.0).tolist(),
        "sm_clock_mhz": 1410.0 if period == 2.0 else 1200.0,
        "work_rates": {"memory_utilisation": work.tolist()},
    }


def ask(executable: str, pairs: list[dict[str, Any]]) -> dict[str, Any]:
    process = DetectorProcess(pairs, 0.0, executable)
    while (found := process.answer(1.0)) is None:
        time.sleep(0.02)
    return found


def test_the_process_answers_and_leaves_nothing_behind() -> None:
    found = ask(sys.executable, [{"before": window(2.0), "after": window(2.1)}])
    assert found["slowdown"] == pytest.approx(0.05, abs=0.01)


def test_a_process_that_fails_or_cannot_start_is_unknown() -> None:
    assert ask("/bin/false", []) == {"unknown": "the detector ended with status 256"}
    assert "cannot be started" in ask("/nonexistent/python", [])["unknown"]


def test_a_process_that_takes_too_long_is_ended() -> None:
    process = DetectorProcess([], 0.0, sys.executable)
    assert process.answer(MAX_SECONDS + 1.0) == {"unknown": f"the detector took longer than {MAX_SECONDS:.0f} s"}
    assert process.answer(0.0) == {"unknown": "the detector was ended"}
    process.close()
