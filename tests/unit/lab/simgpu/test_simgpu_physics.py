from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from simgpu_nodes import LINEAR, make_node

from slurm_energy.energy_model.curves import WorkloadCurve, curves_of
from slurm_energy.errors import LabError
from slurm_energy.lab.simgpu.gpu import SimulatedGpu
from slurm_energy.lab.simgpu.layout import Fault
from slurm_energy.lab.simgpu.specs import SIMULATED_TYPES, standard_gpus
from slurm_energy.lab.simgpu.state import NodeGpuState

HELD_WATTS = {"a40": 0.977 * 300.0}
"""What the board makes of its default limit, where that is less than the loads want."""


def _free_watts(curve: WorkloadCurve, clock_mhz: int) -> float:
    return curve.power.watts(clock_mhz / curve.reference_clock_mhz)


def _free_seconds(curve: WorkloadCurve, clock_mhz: int) -> float:
    return curve.runtime.seconds(clock_mhz / curve.reference_clock_mhz)


def lock(node: NodeGpuState, gpu: SimulatedGpu, clock_mhz: int) -> None:
    with node._mapped.locked() as state:
        node._mapped.native.simgpu_settle(node._mapped.pointer, gpu.index)
        state.gpus[gpu.index].locked_low_mhz = clock_mhz
        state.gpus[gpu.index].locked_high_mhz = clock_mhz


def limit(node: NodeGpuState, gpu: SimulatedGpu, watts: float) -> None:
    with node._mapped.locked() as state:
        state.gpus[gpu.index].power_limit_milliwatts = round(watts * 1000)


def test_idle_gpu_draws_its_idle_power_and_an_open_context_draws_more(tmp_path: Path) -> None:
    with make_node(tmp_path, "h100") as node:
        gpu = node.gpus[0]
        node.advance(10.0)
        assert gpu.energy_joules_exact() == pytest.approx(710.0)
        assert gpu.reading().sm_clock_mhz == 345

        gpu.add_load(utilisation=0.0)
        node.advance(10.0)
        reading = gpu.reading()

    assert reading.energy_joules == pytest.approx(710.0 + 1170.0)
    assert (reading.power_watts, reading.sm_clock_mhz, reading.utilisation) == (117.0, 1980, 0.0)


def test_energy_is_the_sum_of_its_parts_over_every_change(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        gpu, neighbour = node.gpus
        node.advance(5.0)  # 60 W
        slot = gpu.add_load(LINEAR)
        node.advance(4.0)  # 300 W
        lock(node, gpu, 705)
        node.advance(3.0)  # 200 W
        gpu.remove_load(slot)
        node.advance(2.0)  # 60 W

        assert gpu.energy_joules_exact() == pytest.approx(300.0 + 1200.0 + 600.0 + 120.0)
        assert neighbour.energy_joules_exact() == pytest.approx(14.0 * 60.0)


def test_many_small_steps_give_the_energy_of_one_large_step(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        steps, jump = node.gpus
        steps.add_load(LINEAR, utilisation=0.7)
        jump.add_load(LINEAR, utilisation=0.7)
        for _ in range(1000):
            node.advance(0.013)

        expected = 13.0 * (85.0 + 0.7 * 215.0)
        assert steps.energy_joules_exact() == pytest.approx(expected, rel=1e-9)
        assert jump.energy_joules_exact() == pytest.approx(expected, rel=1e-9)


def test_utilisation_scales_between_idle_context_and_full_load(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        gpu = node.gpus[0]
        gpu.add_load(LINEAR, utilisation=0.5)

        assert gpu.reading().power_watts == pytest.approx(85.0 + 0.5 * (300.0 - 85.0))
        assert gpu.reading().utilisation == 0.5


def test_two_full_loads_share_time_and_draw_no_more_than_one(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        gpu = node.gpus[0]
        gpu.add_load(LINEAR)
        gpu.add_load(LINEAR)
        node.advance(10.0)
        reading = gpu.reading()

    assert reading.power_watts == pytest.approx(300.0)
    assert [load.done_seconds for load in reading.loads] == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("gpu_type", SIMULATED_TYPES)
def test_a_lower_clock_never_draws_more_and_never_works_faster(tmp_path: Path, gpu_type: str) -> None:
    with make_node(tmp_path, gpu_type, count=1) as node:
        gpu = node.gpus[0]
        for profile in standard_gpus(gpu_type, 1, "n1")[0].profiles:
            slot = gpu.add_load(profile)
            watts, speeds = [], []
            for clock_mhz in gpu.sm_clocks_mhz:
                lock(node, gpu, clock_mhz)
                before = gpu.reading()
                node.advance(1.0)
                watts.append(before.power_watts)
                speeds.append(gpu.loads[0].done_seconds - before.loads[0].done_seconds)
            gpu.remove_load(slot)

            assert watts == sorted(watts), profile.name
            assert all(later >= earlier - 1e-9 for earlier, later in pairwise(speeds)), profile.name
            assert speeds[-1] == pytest.approx(1.0), profile.name


@pytest.mark.parametrize("gpu_type", SIMULATED_TYPES)
def test_power_and_time_follow_the_measured_curves(tmp_path: Path, gpu_type: str) -> None:
    curves = curves_of(gpu_type)  # type: ignore[arg-type]  # a catalogue name
    with make_node(tmp_path, gpu_type, count=1) as node:
        gpu = node.gpus[0]
        for curve in curves:
            free = [mhz for mhz in gpu.sm_clocks_mhz if _free_watts(curve, mhz) <= HELD_WATTS.get(gpu_type, 1e9)]
            slot = gpu.add_load(curve.workload)
            for clock_mhz in gpu.sm_clocks_mhz[::7]:
                if clock_mhz not in free or clock_mhz < curve.low_clock_mhz:
                    continue
                lock(node, gpu, clock_mhz)
                before = gpu.loads[0].done_seconds
                assert gpu.reading().power_watts == pytest.approx(_free_watts(curve, clock_mhz)), curve.workload
                node.advance(2.0)
                speed = (gpu.loads[0].done_seconds - before) / 2.0
                assert speed == pytest.approx(_free_seconds(curve, free[-1]) / _free_seconds(curve, clock_mhz))
            gpu.remove_load(slot)


def test_board_steps_the_clock_down_to_hold_its_limit(tmp_path: Path) -> None:
    with make_node(tmp_path, "a40", count=1) as node:
        gpu = node.gpus[0]
        gpu.add_load("training")
        capped = gpu.reading()
        limit(node, gpu, 200.0)
        lower = gpu.reading()

    assert 1300 < capped.sm_clock_mhz < 1740
    assert 280.0 < capped.power_watts <= 293.1
    assert lower.sm_clock_mhz < capped.sm_clock_mhz
    assert lower.power_watts <= 200.0


def test_a_limit_below_the_boards_floor_does_not_hold(tmp_path: Path) -> None:
    heavy = replace(LINEAR, constant_watts=100.0, linear_watts=100.0, reference_clock_mhz=1740.0)
    with make_node(tmp_path, "a40", count=1) as node:
        gpu = node.gpus[0]
        gpu.add_load(heavy)
        limit(node, gpu, 100.0)
        reading = gpu.reading()

    assert reading.sm_clock_mhz == gpu.sm_clocks_mhz[0]
    assert reading.power_watts > 107.0


def test_work_ends_in_the_middle_of_a_window_and_only_then_the_power_falls(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        gpu = node.gpus[0]
        gpu.add_load(LINEAR, target_seconds=4.0)
        node.advance(10.0)
        reading = gpu.reading()

    assert reading.energy_joules == pytest.approx(4.0 * 300.0 + 6.0 * 85.0)
    assert reading.loads[0].done_seconds == 4.0
    assert reading.utilisation == 0.0


def test_half_the_clock_takes_twice_the_time(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        gpu = node.gpus[0]
        gpu.add_load(LINEAR, target_seconds=10.0)
        node.advance(5.0)
        lock(node, gpu, 705)
        node.advance(9.0)
        assert gpu.loads[0].done_seconds == pytest.approx(9.5)
        node.advance(1.0)
        assert gpu.loads[0].done_seconds == 10.0


def test_a_reused_process_number_is_another_process(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        gpu = node.gpus[0]
        slot = gpu.add_load(LINEAR)
        with node._mapped.locked() as state:
            state.gpus[0].loads[slot].pid_start -= 1

        assert gpu.loads == ()


def test_a_process_of_another_namespace_is_not_judged(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        gpu = node.gpus[0]
        slot = gpu.add_load(LINEAR)
        with node._mapped.locked() as state:
            load = state.gpus[0].loads[slot]
            load.pid, load.pid_namespace = 2**22 + 1, load.pid_namespace + 1

        assert [load.pid for load in gpu.loads] == [2**22 + 1]


def test_counter_moves_in_steps_of_device_time(tmp_path: Path) -> None:
    with make_node(tmp_path, counter_interval_seconds=0.1) as node:
        gpu = node.gpus[0]
        seen = []
        for _ in range(8):
            node.advance(0.03)
            seen.append(gpu.reading().counter_joules)

    assert seen == pytest.approx([0.0, 0.0, 0.0, 6.0, 6.0, 6.0, 12.0, 12.0])


def test_counter_step_holds_the_energy_of_its_moment_when_power_changed_in_between(tmp_path: Path) -> None:
    with make_node(tmp_path, counter_interval_seconds=1.0) as node:
        gpu = node.gpus[0]
        node.advance(0.5)
        gpu.add_load(LINEAR)
        node.advance(0.75)

        assert gpu.reading().counter_joules == pytest.approx(0.5 * 60.0 + 0.5 * 300.0)
        assert gpu.energy_joules_exact() == pytest.approx(0.5 * 60.0 + 0.75 * 300.0)


def test_temperature_approaches_what_the_power_warms_it_to(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        gpu = node.gpus[0]
        cold = gpu.reading().temperature_c
        gpu.add_load(LINEAR)
        node.advance(15.0)
        warm = gpu.reading().temperature_c
        node.advance(500.0)

        final = 28.0 + 0.09 * 300.0
        assert cold == pytest.approx(28.0 + 0.09 * 60.0)
        assert warm == pytest.approx(final + (cold - final) * 0.36788, abs=0.01)
        assert gpu.reading().temperature_c == pytest.approx(final)


def test_true_energy_is_untouched_by_counter_faults(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        gpu = node.gpus[0]
        node.advance(10.0)
        gpu.set_fault(Fault.ENERGY_RESET)
        node.advance(1.0)
        assert (gpu.reading().counter_joules, gpu.energy_joules_exact()) == (60.0, 660.0)
        gpu.set_fault(Fault.ENERGY_STUCK)
        node.advance(1.0)
        assert (gpu.reading().counter_joules, gpu.energy_joules_exact()) == (60.0, 720.0)
        gpu.set_fault(Fault.ENERGY_STUCK, on=False)
        assert gpu.reading().counter_joules == 120.0


def test_reboot_forgets_locks_and_limits_and_starts_the_counter_again(tmp_path: Path) -> None:
    spec = replace(standard_gpus("a100", 1, "n1")[0], site_locked_clocks_mhz=(210, 1200), site_power_limit_watts=400.0)
    with make_node(tmp_path, (spec,)) as node:
        gpu = node.gpus[0]
        node.advance(10.0)
        assert (gpu.locked_clocks_mhz, gpu.power_limit_watts) == ((210, 1200), 400.0)

        gpu.reload_driver()

        assert (gpu.locked_clocks_mhz, gpu.power_limit_watts) == (None, 500.0)
        assert (gpu.site_locked_clocks_mhz, gpu.site_power_limit_watts) == ((210, 1200), 400.0)
        assert gpu.reading().counter_joules == 0.0


def test_a_seventeenth_load_and_an_unknown_profile_are_refused(tmp_path: Path) -> None:
    with make_node(tmp_path) as node:
        gpu = node.gpus[0]
        with pytest.raises(LabError, match="no profile 'mining'; known: training"):
            gpu.add_load("mining")
        with pytest.raises(LabError, match=r"utilisation 1\.5"):
            gpu.add_load(utilisation=1.5)
        for _ in range(16):
            gpu.add_load(utilisation=0.01)
        with pytest.raises(LabError, match="16 loads already"):
            gpu.add_load(utilisation=0.01)


def test_state_that_is_cut_short_or_of_another_version_is_refused(tmp_path: Path) -> None:
    make_node(tmp_path).close()
    path = tmp_path / "n1.state"
    content = bytearray(path.read_bytes())
    for broken in (content[:1000], content[:8] + b"\x63" + content[9:], bytes(len(content))):
        path.write_bytes(broken)
        with pytest.raises(LabError, match="not a usable state"):
            NodeGpuState(path)
    path.unlink()
    with pytest.raises(LabError, match="No such file"):
        NodeGpuState(path)
