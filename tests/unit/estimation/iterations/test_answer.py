"""The detector as the sampler asks it: windows as JSON, one answer for all GPUs, and a process that may fail."""

import io
import json
import sys
from typing import Any

import numpy as np
import pytest

from slurm_energy.estimation.iterations import answer as module
from slurm_energy.estimation.iterations.answer import answer
from slurm_energy.node.trials.detector import _checked


def window(period: float, seconds: float = 60.0, *, by_counter: bool = False, gap: bool = False) -> dict[str, Any]:
    """A program of one period: 70 % of it at high power, and memory traffic in proportion to its work."""
    rng = np.random.default_rng(5)
    times = np.arange(0.0, seconds, 0.1) + rng.uniform(0.0, 0.02, round(seconds / 0.1))
    high = (times / period) % 1.0 < 0.7
    watts = np.where(high, 300.0, 120.0) + rng.normal(0.0, 2.0, times.size)
    work = np.where(high, 1.0, 0.2) / period
    found: dict[str, Any] = {
        "seconds": times.tolist(),
        "watts": [None if gap and 100 < n < 110 else value for n, value in enumerate(watts.tolist())],
        "sm_clock_mhz": 1410.0 if period == 2.0 else 1200.0,
        "work_rates": {"memory_utilisation": work.tolist(), "pcie_bytes": [None] * times.size},
    }
    if by_counter:
        del found["watts"]
        found["joules"] = [None] * times.size
    return found


def test_the_slowest_of_several_gpus_is_the_answer() -> None:
    pairs = [{"before": window(2.0), "after": window(period, gap=True)} for period in (2.04, 2.1)]
    found = answer(pairs)
    assert found["slowdown"] == pytest.approx(0.05, abs=0.01)


def test_one_gpu_that_says_nothing_leaves_it_unknown() -> None:
    pairs = [
        {"before": window(2.0), "after": window(2.1)},
        {"before": window(2.0), "after": window(2.1, by_counter=True)},
    ]
    assert answer(pairs) == {"unknown": "too few samples", "longer_may_help": False}
    assert "unknown" in answer([])


@pytest.mark.parametrize("text", ["", "[]", '{"pairs": 3}', '{"pairs": [{}]}', "\x00", '{"pairs": [{"before": 1}]}'])
def test_windows_that_cannot_be_read_are_unknown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.nice", lambda _by: 0)
    monkeypatch.setattr("resource.setrlimit", lambda *_bounds: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdout", said)
    assert module.main() == 0
    assert "the detector failed" in json.loads(said.getvalue())["unknown"]


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{}", b'{"slowdown": NaN, "error": 0.1}', b'{"slowdown": "x", "error": 1}', b"3"]
)
def test_what_is_no_answer_is_unknown(content: bytes) -> None:
    assert "unknown" in _checked(content)
