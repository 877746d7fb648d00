"""A spool that others can write to is refused, and a link in it is never followed: not read, written or changed."""

import json
import os
from pathlib import Path

import pytest
from node_bench import Bench, entry

from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SlurmEnergyError
from slurm_energy.node.flush import run_flush
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.log import MAX_LOG_BYTES, append_line
from slurm_energy.node.repair import run_repair
from slurm_energy.node.spool import Spool

SEVEN = JobId(7)
PRECIOUS = b"root's own"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that belongs to root, and that no hook has to do with."""
    path = tmp_path / "victim"
    path.write_bytes(PRECIOUS)
    path.chmod(0o644)
    os.utime(path, (1, 1))
    return path


def assert_untouched(victim: Path) -> None:
    status = victim.stat()
    assert (victim.read_bytes(), status.st_mode & 0o777, status.st_mtime) == (PRECIOUS, 0o644, 1.0)


def test_new_spool_is_open_to_root_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Spool(tmp_path / "deep" / "spool").prepare()
    finally:
        os.umask(before)
    folders = [tmp_path / "deep" / "spool", *(tmp_path / "deep" / "spool").iterdir()]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_spool_that_root_moved_behind_a_link_is_used(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir(mode=0o700)
    bench.spool.root.symlink_to(tmp_path / "large disk")
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    assert bench.locks()[0] == (210, 1275)


PLANTED = ["7.json", "7.beat", "7.sampler", "7.ending", "7.absent", "7.shared"]


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("kind", ["symlink", "dangling"])
def test_link_among_the_active_jobs_is_not_followed(bench: Bench, victim: Path, name: str, kind: str) -> None:
    bench.spool.prepare()
    target = victim if kind == "symlink" else victim.with_name("not there")
    (bench.spool.active / name).symlink_to(target)
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    run_prolog(bench.context(), bench.hook(8, "0", entry()))
    bench.clock.advance(10)
    for job_id in (7, 8):
        run_epilog(bench.context(), bench.hook(job_id, "0"))
    run_repair(bench.context(), everything=True)
    assert_untouched(victim)
    assert not victim.with_name("not there").exists()
    assert bench.locks() == [None] * 4
    assert all(PRECIOUS.decode() not in path.read_text() for path in bench.spool.waiting_reports())


@pytest.mark.parametrize("name", ["done/7", "locks/GPU-0000.lock", "locks/flush.lock", "pending/7-1.json"])
def test_link_elsewhere_in_the_spool_is_not_followed(bench: Bench, victim: Path, name: str) -> None:
    bench.spool.prepare()
    (bench.spool.root / name).symlink_to(victim)
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    run_epilog(bench.context(), bench.hook(7, "0"))
    run_repair(bench.context(), everything=False)
    run_flush(bench.context())
    assert_untouched(victim)
    assert bench.locks() == [None] * 4


def test_link_among_the_reports_is_put_aside_and_never_sent(bench: Bench, victim: Path) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    run_epilog(bench.context(), bench.hook(7, "0"))
    (report,) = bench.spool.waiting_reports()
    victim.write_bytes(report.read_bytes())  # even a whole report
    (bench.spool.reports / "0-0-0.000.json").symlink_to(victim)
    object.__setattr__(bench.node, "daemon_address", "127.0.0.1:1")
    with pytest.raises(SlurmEnergyError):
        run_flush(bench.context())
    assert bench.spool.waiting_reports() == (report,)
    assert (bench.spool.rejected / "0-0-0.000.json").is_symlink()
    assert victim.exists()


def test_second_record_is_refused_where_others_can_write_and_the_lock_is_set_all_the_same(bench: Bench) -> None:
    (bench.root / "run" / "n1").mkdir(parents=True)
    (bench.root / "run" / "n1").chmod(0o777)
    (bench.root / "run" / "n1" / "GPU-0003.json").write_text(
        json.dumps({"boot_id": "boot-1", "job_id": 1, "clock_mhz": 300})
    )
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    assert bench.locks()[0] == (210, 1275)
    job = bench.spool.read_state(SEVEN)
    assert job is not None and any("second record of the lock" in event for event in job.events)
    assert "unlock_sm_clock" not in bench.gpus[3].calls
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert bench.locks()[0] is None


def test_link_in_place_of_the_log_or_of_its_older_part_is_not_followed(tmp_path: Path, victim: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    (tmp_path / "log.1").symlink_to(victim)
    append_line(str(log), "last of the old")
    assert (tmp_path / "log.1").read_bytes().endswith(b"last of the old\n")
    log.symlink_to(victim)
    append_line(str(log), "nowhere")
    assert_untouched(victim)
