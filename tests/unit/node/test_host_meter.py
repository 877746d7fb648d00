"""The node's own count of host energy, and jobs without GPUs that are read from it."""

from dataclasses import replace
from pathlib import Path

import pytest
from node_bench import Bench

from slurm_energy.domain.ids import JobId
from slurm_energy.errors import DeviceNotSupported
from slurm_energy.files import locked
from slurm_energy.node.flush import run_flush
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.host_meter import note_meter, read_meter
from slurm_energy.node.repair import run_repair
from slurm_energy.node.state import MeterReading

RANGE = 262_143_328_850


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Processor:
    """Two packages' counters with one figure that both show."""

    def __init__(self, bench: Bench, packages: int = 2) -> None:
        self.bench, self.microjoules = bench, 0
        self.folders = [bench.root / "powercap" / f"intel-rapl:{number}" for number in range(packages)]
        for number, folder in enumerate(self.folders):
            folder.mkdir(parents=True)
            (folder / "name").write_text(f"package-{number}\n")
            (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
        self.draw(0.0, 0.0)

    def draw(self, watts: float, seconds: float) -> None:
        """Let time pass in which each package draws this."""
        self.bench.clock.advance(seconds)
        self.microjoules += int(watts * seconds * 1e6)
        for folder in self.folders:
            (folder / "energy_uj").write_text(f"{self.microjoules % (RANGE + 1)}\n")


def counted(bench: Bench) -> MeterReading:
    """Return the count, which no other process holds."""
    found = read_meter(bench.context())
    assert found is not None
    return found


def test_a_process_that_hangs_with_the_count_keeps_no_other_from_its_work(bench: Bench) -> None:
    processor = Processor(bench)
    first = counted(bench)
    with locked(bench.spool.host_meter_lock):
        processor.draw(100.0, 10.0)
        assert read_meter(bench.context()) is None
    assert counted(bench).joules - first.joules == pytest.approx(2 * 100.0 * 10.0)


def test_the_count_grows_over_wraps_that_somebody_reads_in_time(bench: Bench) -> None:
    processor = Processor(bench)
    first = counted(bench)
    for _ in range(20):
        processor.draw(400.0, 60.0)
        note_meter(bench.context())
    last = counted(bench)
    assert last.joules - first.joules == pytest.approx(2 * 400.0 * 1200.0)
    assert (last.meter_id, last.doubtful_steps) == (first.meter_id, 0)


def test_a_step_in_which_a_counter_may_have_wrapped_unseen_is_counted_as_doubtful(bench: Bench) -> None:
    processor = Processor(bench)
    counted(bench)
    processor.draw(400.0, 3600.0)
    assert counted(bench).doubtful_steps == 1


@pytest.mark.parametrize("spoil", ["boot", "domains", "file", "clock"])
def test_another_boot_other_counters_or_a_broken_file_begin_another_count(bench: Bench, spoil: str) -> None:
    processor = Processor(bench)
    processor.draw(100.0, 10.0)
    first = counted(bench)
    processor.draw(100.0, 10.0)
    if spoil == "boot":
        bench.boot_id = "boot-2"
    elif spoil == "domains":
        (processor.folders[1] / "name").write_text("core\n")
    elif spoil == "file":
        (bench.spool.root / "host.meter").write_text('{"format":1,"meter_id":"boot","joules":1e999}')
    else:
        bench.clock.monotonic -= 60.0
    second = counted(bench)
    assert second.meter_id != first.meter_id
    assert second.joules == 0.0


def test_a_node_without_counters_says_so_and_the_timer_does_not_mind(bench: Bench) -> None:
    with pytest.raises(DeviceNotSupported):
        counted(bench)
    assert run_flush(bench.context())


def cpu_jobs(bench: Bench) -> None:
    bench.node = replace(bench.node, cpu_jobs=True)


def test_a_job_without_gpus_has_the_stretch_between_its_hooks_and_opens_no_driver(bench: Bench) -> None:
    cpu_jobs(bench)
    processor = Processor(bench)
    run_prolog(bench.context(), bench.hook(7, ""))
    processor.draw(50.0, 10.0)
    run_prolog(bench.context(), bench.hook(8, ""))
    processor.draw(100.0, 20.0)
    run_epilog(bench.context(), bench.hook(7, "", SLURM_JOB_EXIT_CODE2="0:0"))
    processor.draw(30.0, 10.0)
    run_epilog(bench.context(), bench.hook(8, ""))
    hosts = {report.job_id: report.host for report in bench.reports()}
    first, second = hosts[JobId(7)], hosts[JobId(8)]
    assert first is not None and second is not None
    assert (first.node_joules, second.node_joules) == (pytest.approx(5000.0), pytest.approx(4600.0))
    assert first.meter_id == second.meter_id
    assert first.meter_end_joules == pytest.approx(5000.0)
    assert (second.meter_start_joules, second.meter_end_joules) == (pytest.approx(1000.0), pytest.approx(5600.0))
    assert first.coverage_seconds == pytest.approx(30.0)
    assert bench.driver.opened == 0
    assert list(bench.spool.active.iterdir()) == []


def test_a_job_without_gpus_and_its_neighbour_with_one_read_the_same_count(bench: Bench) -> None:
    cpu_jobs(bench)
    processor = Processor(bench)
    run_prolog(bench.context(), bench.hook(7, ""))
    run_prolog(bench.context(), bench.hook(8, "0"))
    processor.draw(50.0, 10.0)
    run_epilog(bench.context(), bench.hook(8, "0"))
    run_epilog(bench.context(), bench.hook(7, ""))
    hosts = {report.job_id: (len(report.gpus), report.host) for report in bench.reports()}
    assert hosts[JobId(8)][0] == 1
    host = hosts[JobId(7)][1]
    assert host is not None and host.node_joules == pytest.approx(1000.0)


def test_without_an_epilog_or_after_a_boot_the_host_of_a_job_without_gpus_is_unknown(bench: Bench) -> None:
    cpu_jobs(bench)
    processor = Processor(bench)
    run_prolog(bench.context(), bench.hook(7, ""))
    processor.draw(50.0, 10.0)
    bench.boot_id = "boot-2"
    assert run_repair(bench.context(), everything=False)
    (report,) = bench.reports()
    assert report.host is not None and report.host.joules is None and report.gpus == ()


def test_counters_that_cannot_be_read_leave_a_reason_and_stop_no_job(bench: Bench) -> None:
    cpu_jobs(bench)
    run_prolog(bench.context(), bench.hook(7, ""))
    run_epilog(bench.context(), bench.hook(7, ""))
    (report,) = bench.reports()
    assert report.host is not None and report.host.reason == "there is no start reading"
    assert any("RAPL" in event for event in report.events)
