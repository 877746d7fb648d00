"""Trials as values, in the decision that travels and in the reports that come back."""

import json
from typing import Any

import pytest

from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.ids import DecisionId, GpuTypeName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.errors import SpoolError, ValueRangeError, WireError
from slurm_energy.node.energy import Heartbeat, decode_heartbeat, encode_heartbeat
from slurm_energy.wire.report import decode_trial, encode_trial

A100, A40 = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("a40")
GOOD: dict[str, Any] = {
    "gpu_type": A100,
    "sm_clock_mhz": 1110,
    "default_clock_mhz": 1410,
    "at_seconds": 900.0,
    "watts": 240.0,
    "default_watts": 330.0,
    "slowdown": 0.02,
    "error": 0.003,
    "kept": True,
    "source": "power",
    "reason": "",
}


def entry(**bounds: float) -> DecisionEntry:
    named = {GpuTypeName(name): bound for name, bound in bounds.items()}
    return DecisionEntry(decision_id=DecisionId("abcdef0123456789"), mode=EnergyMode.BALANCED, trial_bounds=named)


def test_the_bound_travels_in_hundredths_of_a_per_cent_and_is_never_larger_than_it_was() -> None:
    text = entry(a40=0.05, v100=0.03337).encode()
    assert text.endswith(";trials=a40:500,v100:333")
    assert DecisionEntry.decode(text).trial_bounds == {"a40": 0.05, "v100": 0.0333}


def test_an_entry_without_bounds_is_as_it_was() -> None:
    assert "trials" not in entry().encode()
    assert DecisionEntry.decode(entry().encode()).trial_bounds == {}


@pytest.mark.parametrize("bad", ["a40", "a40:0", "a40:-5", "a40:10001", "a40:1e3", "a40:5,a40:6", "A40:5", ""])
def test_a_forged_bound_is_refused(bad: str) -> None:
    with pytest.raises(ValueRangeError):
        DecisionEntry.decode(f"v=1;id=abcdef0123456789;mode=balanced;trials={bad}")


@pytest.mark.parametrize(
    "change",
    [
        {"gpu_type": "A 100"},
        {"gpu_type": 5},
        {"sm_clock_mhz": 0},
        {"sm_clock_mhz": 1e9},
        {"watts": -1.0},
        {"slowdown": -0.1},
        {"slowdown": "0.02"},
        {"error": None},
        {"slowdown": None},
        {"kept": "yes"},
        {"source": "x" * 17},
        {"other": 1},
    ],
    ids=str,
)
def test_a_trial_that_cannot_be_is_refused_at_the_door(change: dict[str, Any]) -> None:
    assert decode_trial(GOOD) == ClockTrial(**GOOD)
    with pytest.raises(WireError):
        decode_trial({**GOOD, **change})


def test_energy_of_the_same_work_is_compared_with_the_default_clock() -> None:
    assert ClockTrial(**GOOD).energy_change == pytest.approx(240.0 / 330.0 * 1.02 - 1.0)
    assert ClockTrial(**{**GOOD, "slowdown": None, "error": None}).energy_change is None


def test_trials_come_back_out_of_the_heartbeat() -> None:
    beat = Heartbeat(
        job_id=7,
        started_at_seconds=5.0,
        trials=[ClockTrial(**GOOD)],
        kept_clock_mhz=1110,
        progress="progress: 3 steps of 1 s",
    )
    assert decode_heartbeat(encode_heartbeat(beat)) == beat
    document = json.loads(encode_heartbeat(beat))
    document["trials"] = [encode_trial(ClockTrial(**GOOD)) | {"watts": "many"}]
    with pytest.raises(SpoolError):
        decode_heartbeat(json.dumps(document).encode())
