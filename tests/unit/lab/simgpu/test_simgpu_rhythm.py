"""Power over time of simulated programs, and what the detector makes of it."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from simgpu_nodes import LINEAR, make_node

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.curves import WorkloadCurve, curves_of
from slurm_energy.errors import LabError
from slurm_energy.estimation.iterations.repetitions import Unknown
from slurm_energy.estimation.iterations.slowdown import Slowdown, slowdown_between
from slurm_energy.estimation.iterations.traces import Trace
from slurm_energy.lab.simgpu.gpu import Rhythm, SimulatedGpu
from slurm_energy.lab.simgpu.layout import OperatingPointStruct, RhythmKind
from slurm_energy.lab.simgpu.state import NodeGpuState

A100 = GpuTypeName("a100-sxm4-80gb")
ITERATIONS = Rhythm(kind=RhythmKind.ITERATIONS, period_seconds=1.0, high_share=0.7, low_level=0.35, jitter=0.02)


def lock(node: NodeGpuState, clock_mhz: int) -> None:
    node.advance(0.0)
    with node._mapped.locked() as state:
        state.gpus[0].locked_low_mhz = state.gpus[0].locked_high_mhz = clock_mhz


def work_rate(node: NodeGpuState, gpu: SimulatedGpu) -> float:
    point = OperatingPointStruct()
    with gpu._settled() as struct:
        node._mapped.native.simgpu_evaluate(ctypes.addressof(struct), ctypes.byref(point))
    return float(point.work_rate)


def window(node: NodeGpuState, clock_mhz: int, seconds: float = 60.0) -> Trace:
    """Return what a sampler sees: power and a counter of work ten times a second."""
    lock(node, clock_mhz)
    gpu, times, watts, rates = node.gpus[0], [], [], []
    for _ in range(int(seconds * 10)):
        node.advance(0.1)
        reading = gpu.reading()
        times.append(reading.device_seconds)
        watts.append(reading.power_watts)
        rates.append(work_rate(node, gpu))
    return Trace(
        seconds=np.array(times),
        watts=np.array(watts),
        sm_clock_mhz=float(clock_mhz),
        work_rates={"pcie": np.array(rates)},
    )


def test_energy_of_iterations_is_exact_however_seldom_it_is_settled(tmp_path: Path) -> None:
    rhythm = Rhythm(kind=RhythmKind.ITERATIONS, period_seconds=2.0, high_share=0.5, low_level=0.5)
    energy = []
    for name, steps in (("often", 400), ("once", 1)):
        with make_node(tmp_path, name=name) as node:
            gpu = node.gpus[0]
            slot = gpu.add_load(LINEAR, rhythm=rhythm)
            for _ in range(steps):
                node.advance(40.0 / steps)
            energy.append(gpu.energy_joules_exact())
            assert gpu.loads[slot].done_seconds == pytest.approx(40.0)
    context_watts = 85.0

    assert energy[0] == pytest.approx(energy[1], rel=1e-9)
    assert energy[1] == pytest.approx(40.0 * (context_watts + 0.75 * (300.0 - context_watts)))


def test_jitter_keeps_the_mean_and_stalls_and_evaluations_cost_time(tmp_path: Path) -> None:
    def done(rhythm: Rhythm, name: str) -> float:
        with make_node(tmp_path, name=name) as node:
            slot = node.gpus[0].add_load(LINEAR, rhythm=rhythm)
            node.advance(2000.0)
            return node.gpus[0].loads[slot].done_seconds

    stalls = Rhythm(kind=RhythmKind.ITERATIONS, stall_chance=0.1, stall_seconds=2.02)
    tests = Rhythm(kind=RhythmKind.ITERATIONS, evaluation_every=10, evaluation_seconds=5.02)

    assert done(Rhythm(kind=RhythmKind.ITERATIONS, jitter=0.1), "jitter") == pytest.approx(2000.0, rel=0.02)
    assert done(stalls, "stalls") == pytest.approx(2000.0 / 1.2, rel=0.03)
    assert done(tests, "tests") == pytest.approx(2000.0 / 1.5, rel=0.01)


def test_a_load_without_rhythm_ends_when_its_work_is_done_and_one_with_rhythm_too(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        slot = node.gpus[0].add_load(LINEAR, target_seconds=10.0, rhythm=ITERATIONS)
        node.advance(11.0)
        assert node.gpus[0].loads[slot].done_seconds == 10.0


def test_averaged_power_follows_slowly(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        node.average_power_over(1.0)
        node.advance(10.0)
        node.gpus[0].add_load(LINEAR)
        node.advance(1.0)
        with node._mapped.locked() as state:
            gpu = state.gpus[0]
            average = gpu.account[gpu.account_current & 1].average_watts

    assert average == pytest.approx(300.0 - (300.0 - 60.0) * np.exp(-1.0))


def test_a_rhythm_that_means_nothing_is_refused(tmp_path: Path) -> None:
    with make_node(tmp_path) as node, pytest.raises(LabError, match="rhythm"):
        node.gpus[0].add_load(rhythm=Rhythm(kind=RhythmKind.ITERATIONS, high_share=1.5))


@pytest.mark.parametrize("curve", curves_of(A100)[:2], ids=lambda curve: curve.workload)
def test_the_slowdown_of_a_measured_curve_is_found_from_power_and_traffic(tmp_path: Path, curve: WorkloadCurve) -> None:
    with make_node(tmp_path) as node:
        node.gpus[0].add_load(curve.workload, rhythm=ITERATIONS)
        answer = slowdown_between(window(node, 1410), window(node, 1200))

    def seconds(mhz: float) -> float:
        return curve.runtime.seconds(mhz / curve.reference_clock_mhz)

    assert isinstance(answer, Slowdown)
    assert answer.value == pytest.approx(seconds(1200) / seconds(1410) - 1.0, abs=0.01)


@pytest.mark.parametrize("kind", [RhythmKind.TIMER, RhythmKind.APERIODIC, RhythmKind.STEADY])
def test_timers_and_programs_without_a_period_have_no_answer(tmp_path: Path, kind: RhythmKind) -> None:
    with make_node(tmp_path) as node:
        node.gpus[0].add_load(LINEAR, rhythm=Rhythm(kind=kind, period_seconds=1.3))
        assert isinstance(slowdown_between(window(node, 1410), window(node, 1200)), Unknown)
