"""Work on simulated GPUs by its own program: its time, its energy, and what happens when it ends early."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from simgpu_nodes import LINEAR, built_library, make_node

from slurm_energy.lab.simgpu.build import find_workload_tool
from slurm_energy.lab.simgpu.state import NodeGpuState

SCALE = 600.0


def start(node: NodeGpuState, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [built_library().workload, *arguments],
        env={"SLURM_ENERGY_SIM_GPU_STATE": str(node.path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, dict[str, str], str]:
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, dict(word.split("=") for word in stdout.split()), stderr


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 120.0
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.alone
def test_work_takes_its_time_and_its_energy_and_frees_the_gpu(tmp_path: Path) -> None:
    with make_node(tmp_path, "v100", time_scale=SCALE) as node:
        gpu, other = node.by_minor(0), node.by_minor(1)
        before = gpu.reading()
        code, words, _ = finish(start(node, "--seconds-at-default", "60", CUDA_VISIBLE_DEVICES="0"))
        after = gpu.reading()

        idle = 24.0 * (after.device_seconds - before.device_seconds)
        assert code == 0
        assert (words["state"], words["gpus"], words["work_seconds"]) == ("done", "1", "60.000")
        assert 60.0 <= float(words["device_seconds"]) < 90.0
        assert float(words["wall_seconds"]) == pytest.approx(float(words["device_seconds"]) / SCALE, rel=0.02)
        # 60 s of dgemm at the 1365 MHz that 250 W leave, and 1 W more than idle while the context is open otherwise.
        assert after.energy_joules - before.energy_joules - idle == pytest.approx(60.0 * (249.20 - 24.0), rel=0.005)
        assert after.loads == ()
        assert other.reading().power_watts == 24.0


@pytest.mark.parametrize("rhythm", ["iterations", "stalling", "evaluating", "aperiodic", "timer"])
def test_work_with_a_rhythm_is_done_whole(tmp_path: Path, rhythm: str) -> None:
    with make_node(tmp_path, time_scale=SCALE) as node:
        code, words, _ = finish(
            start(node, "--seconds-at-default", "60", "--rhythm", rhythm, "--period", "1.3", CUDA_VISIBLE_DEVICES="0")
        )
        assert (code, words["state"], words["work_seconds"]) == (0, "done", "60.000")
        assert float(words["device_seconds"]) >= 59.0


def test_units_are_seconds_of_an_a100(tmp_path: Path) -> None:
    with make_node(tmp_path, "a40", time_scale=SCALE) as node:
        _, words, _ = finish(start(node, "--units", "10", SLURM_JOB_GPUS="1"))

    assert float(words["units"]) == pytest.approx(10.0, abs=0.001)
    assert 20.0 < float(words["work_seconds"]) < 35.0


@pytest.mark.alone
def test_work_is_slower_at_a_clock_lowered_while_it_runs(tmp_path: Path) -> None:
    with make_node(tmp_path, "v100", time_scale=SCALE) as node:
        process = start(node, "--seconds-at-default", "60", SLURM_JOB_GPUS="0")
        gpu = node.by_minor(0)
        wait_until(lambda: len(gpu.loads) == 1)
        with node._mapped.locked() as state:
            state.gpus[gpu.index].locked_high_mhz = 690
        _, words, _ = finish(process)

    assert 100.0 < float(words["device_seconds"]) < 150.0


@pytest.mark.alone
def test_a_clock_raised_while_it_runs_ends_it_earlier_than_first_expected(tmp_path: Path) -> None:
    with make_node(tmp_path, "v100", time_scale=SCALE) as node:
        gpu = node.by_minor(0)
        with node._mapped.locked() as state:
            state.gpus[gpu.index].locked_high_mhz = 135
        process = start(node, "--seconds-at-default", "120", SLURM_JOB_GPUS="0")
        wait_until(lambda: len(gpu.loads) == 1)
        with node._mapped.locked() as state:
            state.gpus[gpu.index].locked_high_mhz = 0
            node._mapped.native.simgpu_changed(node._mapped.pointer)
        _, words, _ = finish(process)

    assert float(words["device_seconds"]) < 300.0  # 1360 at 135 MHz


@pytest.mark.alone
def test_job_on_two_gpus_waits_for_the_slower(tmp_path: Path) -> None:
    with make_node(tmp_path, "v100", count=4, time_scale=SCALE) as node:
        slow = node.by_minor(2)
        with node._mapped.locked() as state:
            state.gpus[slow.index].locked_high_mhz = 690
        _, words, _ = finish(start(node, "--seconds-at-default", "60", SLURM_STEP_GPUS="0,2", SLURM_JOB_GPUS="0,1,2"))

        assert (words["gpus"], words["work_seconds"]) == ("2", "60.000")
        assert float(words["device_seconds"]) > 109.0
        assert node.by_minor(1).reading().energy_joules < 24.1 * node.device_seconds


@pytest.mark.alone
def test_termination_frees_the_gpu_and_tells_what_was_done(tmp_path: Path) -> None:
    with make_node(tmp_path, time_scale=SCALE) as node:
        process = start(node, "--seconds-at-default", "100000", SLURM_JOB_GPUS="0")
        wait_until(lambda: bool(node.gpus[0].loads) and node.gpus[0].loads[0].done_seconds > 10.0)
        process.send_signal(signal.SIGTERM)
        code, words, _ = finish(process)

        assert code == 128 + signal.SIGTERM
        assert words["state"] == "stopped"
        assert 10.0 < float(words["work_seconds"]) < 1000.0
        assert node.gpus[0].loads == ()


def test_suspended_job_draws_idle_power_and_goes_on_afterwards(tmp_path: Path) -> None:
    with make_node(tmp_path, time_scale=SCALE) as node:
        process = start(node, "--seconds-at-default", "300", SLURM_JOB_GPUS="0")
        gpu = node.gpus[0]
        wait_until(lambda: len(gpu.loads) == 1)
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: gpu.loads[0].paused)
        done = gpu.loads[0].done_seconds
        assert gpu.reading().power_watts == 85.0
        assert gpu.loads[0].done_seconds == done
        process.send_signal(signal.SIGCONT)
        code, words, _ = finish(process)

    assert (code, words["work_seconds"]) == (0, "300.000")


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "message"),
    [
        ([], {"SLURM_JOB_GPUS": "0"}, 2, "Usage"),
        (["--units", "1", "--seconds-at-default", "1"], {"SLURM_JOB_GPUS": "0"}, 2, "Usage"),
        (["--units", "-1"], {"SLURM_JOB_GPUS": "0"}, 2, "not a number in range"),
        (["--units", "1e400"], {"SLURM_JOB_GPUS": "0"}, 2, "not a number in range"),
        (["--units", "nan"], {"SLURM_JOB_GPUS": "0"}, 2, "not a number in range"),
        (["--units", "1", "--utilisation", "1.1"], {"SLURM_JOB_GPUS": "0"}, 2, "not a number in range"),
        (["--units", "1", "--profile", "mining"], {"SLURM_JOB_GPUS": "0"}, 1, "no profile mining"),
        (["--units", "1"], {}, 1, "name no GPU"),
        (["--units", "1"], {"SLURM_JOB_GPUS": "7"}, 1, "name no GPU"),
        (["--units", "1"], {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 1, "name no GPU"),
    ],
)
def test_wrong_use_is_explained(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], code: int, message: str
) -> None:
    with make_node(tmp_path, time_scale=SCALE) as node:
        found, _, stderr = finish(start(node, *arguments, **environment))

        assert (found, message in stderr) == (code, True)
        assert all(gpu.loads == () for gpu in node.gpus)


def test_a_gpu_can_be_named_by_uuid(tmp_path: Path) -> None:
    with make_node(tmp_path, time_scale=SCALE) as node:
        code, _, _ = finish(start(node, "--units", "1", CUDA_VISIBLE_DEVICES=node.gpus[1].uuid))

        assert code == 0
        assert node.gpus[1].energy_joules_exact() > node.gpus[0].energy_joules_exact()


def test_tool_beside_the_states_is_preferred(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "gpus").mkdir()
    tool = tmp_path / "bin" / "simgpu-workload"
    os.link(built_library().workload, tool)

    assert find_workload_tool({"SLURM_ENERGY_SIM_GPU_DIR": str(tmp_path / "gpus")}) == tool


def test_load_of_a_dead_process_stops_counting(tmp_path: Path) -> None:
    with (
        make_node(tmp_path) as node,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
    ):
        gpu = node.gpus[0]
        gpu.add_load(LINEAR, pid=process.pid)
        node.advance(1.0)
        assert gpu.energy_joules_exact() == pytest.approx(300.0)

        process.kill()
        process.wait()
        assert gpu.loads == ()
        node.advance(1.0)
        assert gpu.energy_joules_exact() == pytest.approx(360.0)


def test_zombie_does_not_load_a_gpu(tmp_path: Path) -> None:
    with make_node(tmp_path) as node, subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        gpu = node.gpus[0]
        assert process.stdout is not None
        process.stdout.read()
        process_file = Path(f"/proc/{process.pid}/stat")
        while process_file.read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        gpu.add_load(LINEAR, pid=process.pid)

        assert gpu.loads == ()
