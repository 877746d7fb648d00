"""kill -9 at every point of prolog and epilog: the next hook puts everything back exactly and reports once."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import crash_worker
import pytest
from node_bench import Bench, entry

from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.repair import run_repair

MOST_POINTS = 200


def die_at(folder: Path, verb: str, point: int) -> bool:
    """Run the hook of job 7 in a process that dies at the point; return whether it came to its end before."""
    child = os.fork()
    if child == 0:
        try:
            crash_worker.main([str(folder), verb, "7", "0,1", str(point), entry()])
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, -signal.SIGKILL}
    return status == 0


def node_after(folder: Path) -> Bench:
    bench = Bench(folder, gpus=2)
    crash_worker.load_world(bench, folder)
    return bench


def next_prolog(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(8, "0,1"))


def next_prolog_on_one_gpu_after_boot(bench: Bench) -> None:
    for gpu in bench.gpus:
        gpu.limit_watts = 400.0
    bench.boot_id = "boot-2"
    run_prolog(bench.context(), bench.hook(8, "1"))


def repair_of_everything(bench: Bench) -> None:
    bench.clock.advance(3600.0)
    assert run_repair(bench.context(), everything=True)


def own_epilog(bench: Bench) -> None:
    bench.clock.advance(10.0)
    run_epilog(bench.context(), bench.hook(7, "0,1"))


def all_points(tmp_path: Path, verb: str, prepare: Callable[[Path], None], check: Callable[[Path], None]) -> int:
    for point in range(MOST_POINTS):
        folder = tmp_path / str(point)
        folder.mkdir()
        prepare(folder)
        ended = die_at(folder, verb, point)
        check(folder)
        if ended:
            return point
    pytest.fail("the hook never came to its end")


@pytest.mark.parametrize(
    "put_right", [next_prolog, next_prolog_on_one_gpu_after_boot, repair_of_everything, own_epilog]
)
def test_prolog_that_is_killed_anywhere_leaves_nothing_behind(
    tmp_path: Path, put_right: Callable[[Bench], None]
) -> None:
    def check(folder: Path) -> None:
        bench = node_after(folder)
        put_right(bench)
        assert bench.locks() == [None, None]
        assert [gpu.limit_watts for gpu in bench.gpus] == [400.0, 400.0]
        assert bench.spool.read_state(JobId(7)) is None
        assert len([report for report in bench.reports() if report.job_id == 7]) <= 1

    assert all_points(tmp_path, "prolog", lambda folder: None, check) > 30


@pytest.mark.parametrize("put_right", [next_prolog, repair_of_everything, own_epilog])
def test_epilog_that_is_killed_anywhere_is_finished_once(tmp_path: Path, put_right: Callable[[Bench], None]) -> None:
    def prepare(folder: Path) -> None:
        assert die_at(folder, "prolog", MOST_POINTS)
        bench = node_after(folder)
        bench.gpus[1].set_power_limit(300.0)  # an administrator's doing

    def check(folder: Path) -> None:
        bench = node_after(folder)
        written = bool(bench.reports())
        put_right(bench)
        assert bench.locks() == [None, None]
        assert [gpu.limit_watts for gpu in bench.gpus] == [400.0, 300.0]
        reports = [report for report in bench.reports() if report.job_id == 7]
        assert len(reports) == 1
        for gpu in reports[0].gpus:
            if written:
                assert gpu.joules == pytest.approx(2000.0)  # what the killed epilog read in time
            assert (gpu.joules is None) == (QualityFlag.INCOMPLETE in gpu.flags)

    assert all_points(tmp_path, "epilog", prepare, check) > 15


def test_state_that_was_half_written_by_a_power_cut_is_put_aside(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    path = bench.spool.state_path(JobId(7))
    path.write_bytes(path.read_bytes()[:100])
    bench.boot_id = "boot-2"
    run_prolog(bench.context(), bench.hook(8, "0"))
    assert [path.name for path in bench.spool.rejected.iterdir()] == ["7.json"]
    assert bench.spool.read_state(JobId(8)) is not None
