"""Jobs on slices of GPUs (MIG): energy is the board's by slices, if their size is known; no clock is a slice's own."""

from pathlib import Path

import pytest
from node_bench import Bench, entry

from slurm_energy.domain.energy import EnergyScope, EnergySource, QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.slurm_gpus import parse_slurmd

SLICES = """
slurmd: Gres Name=gpu Type=1g.10gb Count=1 ID=7696487 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21 (null)
slurmd: Gres Name=gpu Type=1g.10gb Count=1 ID=7696487 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap30 (null)
slurmd: Gres Name=gpu Type=a100 Count=1 Index=1 ID=7696487 File=/dev/nvidia1 (null)
"""
SETTERS = {"lock_sm_clock", "unlock_sm_clock", "set_power_limit"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a node whose first GPU is cut into slices, and whose second is whole."""
    made = Bench(tmp_path, gpus=2)
    made.gpus[0].mig = True
    made.order = parse_slurmd(SLICES)
    return made


def test_two_jobs_on_two_slices_of_one_gpu_do_not_disturb_each_other(bench: Bench) -> None:
    first = bench.hook(7, "0", entry(), CUDA_VISIBLE_DEVICES="MIG-aaaa")
    second = bench.hook(8, "1", entry(), CUDA_VISIBLE_DEVICES="MIG-bbbb")
    run_prolog(bench.context(), first)
    bench.clock.advance(50)
    run_prolog(bench.context(), second)
    assert bench.spool.read_state(JobId(7)) is not None
    bench.clock.advance(50)
    other = bench.spool.read_state(JobId(8))
    run_epilog(bench.context(), first)
    assert bench.spool.read_state(JobId(7)) is None
    assert bench.spool.read_state(JobId(8)) == other != None  # noqa: E711  # it is there, and as it was
    bench.clock.advance(50)
    run_epilog(bench.context(), second)
    reports = bench.reports()
    assert [(report.job_id, report.ended_at_seconds - report.started_at_seconds) for report in reports] == [
        (7, 100.0),
        (8, 100.0),
    ]
    for report in reports:
        (gpu,) = report.gpus
        assert (gpu.gpu_uuid, gpu.joules, gpu.source) == ("GPU-0000", None, EnergySource.NONE)
        assert (gpu.scope, gpu.counter_joules) == (EnergyScope.MIG_ESTIMATE, None)
        assert "the job held a slice" in gpu.reason and QualityFlag.MIG in gpu.flags
        assert any("MIG mode: its clock stays as it is" in event for event in report.events)
        assert (gpu.asked_clock_mhz, gpu.applied_clock_mhz) == (1275, None)
    assert not SETTERS & {call for gpu in bench.gpus for call in gpu.calls}


def test_end_of_a_slice_leaves_the_clock_of_a_whole_gpu_alone(bench: Bench) -> None:
    whole = bench.hook(9, "2", entry(), CUDA_VISIBLE_DEVICES="1")
    run_prolog(bench.context(), whole)
    slice_of_gpu = bench.hook(7, "0", entry(), CUDA_VISIBLE_DEVICES="MIG-aaaa")
    run_prolog(bench.context(), slice_of_gpu)
    bench.clock.advance(10)
    run_epilog(bench.context(), slice_of_gpu)
    assert bench.locks() == [None, (210, 1275)]
    run_epilog(bench.context(), whole)
    assert bench.locks() == [None, None]
    assert {report.job_id: report.gpus[0].joules for report in bench.reports()} == {7: None, 9: 2000.0}


def test_of_two_devices_asked_for_one_visible_slice_is_reported_with_an_event(bench: Bench) -> None:
    hook = bench.hook(7, "0,2", entry(), CUDA_VISIBLE_DEVICES="MIG-aaaa")
    run_prolog(bench.context(), hook)
    bench.clock.advance(10)
    run_epilog(bench.context(), hook)
    (report,) = bench.reports()
    assert [(gpu.gpu_uuid, gpu.joules) for gpu in report.gpus] == [("GPU-0000", None)]
    assert any("names 2 devices, CUDA_VISIBLE_DEVICES 1 with MIG" in event for event in report.events)
    assert not SETTERS & {call for gpu in bench.gpus for call in gpu.calls}


def test_slices_without_a_prologs_state_are_unknown_too(bench: Bench) -> None:
    run_epilog(bench.context(), bench.hook(7, "0,1", entry(), CUDA_VISIBLE_DEVICES="MIG-aaaa"))
    (report,) = bench.reports()
    assert [(gpu.gpu_uuid, gpu.joules, gpu.scope) for gpu in report.gpus] == [
        ("GPU-0000", None, EnergyScope.MIG_ESTIMATE)
    ]


def test_jobs_on_slices_share_the_boards_energy_by_their_slices(bench: Bench) -> None:
    bench.driver.shares = {"MIG-aaaa": 2 / 7, "MIG-bbbb": 4 / 7}
    hooks = [
        bench.hook(7, "0", entry(), CUDA_VISIBLE_DEVICES="MIG-aaaa"),
        bench.hook(8, "1", entry(), CUDA_VISIBLE_DEVICES="MIG-bbbb"),
    ]
    for hook in hooks:
        run_prolog(bench.context(), hook)
    bench.clock.advance(70)
    for hook in hooks:
        run_epilog(bench.context(), hook)
    first, second = (report.gpus[0] for report in bench.reports())
    board = bench.gpus[0].watts * 70.0
    assert (first.joules, second.joules) == (pytest.approx(board * 2 / 7), pytest.approx(board * 4 / 7))
    for gpu in (first, second):
        assert (gpu.source, gpu.scope, gpu.reason) == (EnergySource.MODEL, EnergyScope.MIG_ESTIMATE, None)
        assert QualityFlag.MIG in gpu.flags and gpu.coverage_seconds == pytest.approx(70.0)


def test_a_job_with_more_slices_than_it_can_see_gets_no_share(bench: Bench) -> None:
    bench.driver.shares = {"MIG-aaaa": 1 / 7}
    hook = bench.hook(7, "0,1", entry(), CUDA_VISIBLE_DEVICES="MIG-aaaa")
    run_prolog(bench.context(), hook)
    bench.clock.advance(10)
    run_epilog(bench.context(), hook)
    assert [gpu.joules for report in bench.reports() for gpu in report.gpus] == [None]
