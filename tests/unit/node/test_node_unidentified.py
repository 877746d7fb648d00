"""Jobs whose GPUs cannot be known: nothing is set, nothing is billed, and the row says so."""

from pathlib import Path

import pytest
from node_bench import Bench, FakeDriver, entry, order_of

from slurm_energy.domain.energy import EnergySource, QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import DeviceError
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.repair import run_repair
from slurm_energy.node.sampler import run_sampler

WHY = "gpu identity unknown: slurmd did not answer"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.order = order_of(0, 1, 2, 3, problem="slurmd did not answer")
    return made


def test_gpu_that_is_not_proven_is_not_touched_and_the_row_says_why(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "1,2", entry()))
    state = bench.spool.read_state(JobId(7))
    assert state is not None and state.ready and state.uuids == {"unknown-1", "unknown-2"}
    assert bench.samplers == [7]
    bench.clock.advance(100)
    run_epilog(bench.context(), bench.hook(7, "1,2"))
    assert [gpu.calls for gpu in bench.gpus] == [[], [], [], []]
    (report,) = bench.reports()
    assert report.ended_at_seconds - report.started_at_seconds == 100.0 and report.decision_id is not None
    for row in report.gpus:
        assert (row.joules, row.reason, row.source) == (None, WHY, EnergySource.NONE)
        assert set(row.flags) == {QualityFlag.GPU_IDENTITY_UNKNOWN, QualityFlag.INCOMPLETE}
    assert WHY in report.events
    assert list(bench.spool.active.iterdir()) == []


def test_job_before_it_that_was_never_closed_is_still_put_back(bench: Bench) -> None:
    unknown, bench.order = bench.order, order_of(0, 1, 2, 3)
    run_prolog(bench.context(), bench.hook(7, "1", entry()))
    assert bench.locks()[1] == (210, 1275)
    bench.order, bench.boot_id = unknown, "boot-2"
    run_prolog(bench.context(), bench.hook(8, "1", entry()))
    assert bench.locks() == [None] * 4
    assert bench.spool.read_state(JobId(7)) is None


def test_reboot_after_it_leaves_nothing_to_restore(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "1", entry()))
    bench.boot_id = "boot-2"
    assert run_repair(bench.context(), everything=False)
    (report,) = bench.reports()
    assert not any("lock does not survive" in event for event in report.events)
    assert report.gpus[0].reason == WHY


def test_epilog_without_a_state_reports_it_too(bench: Bench) -> None:
    run_epilog(bench.context(), bench.hook(7, "1"))
    (report,) = bench.reports()
    assert [(row.gpu_uuid, row.reason) for row in report.gpus] == [("unknown-1", WHY)]
    assert QualityFlag.GPU_IDENTITY_UNKNOWN in report.gpus[0].flags


def test_driver_that_cannot_be_opened_is_its_own_reason(bench: Bench) -> None:
    bench.driver = FakeDriver(bench.gpus, broken=DeviceError("no driver"))
    run_prolog(bench.context(), bench.hook(7, "1", entry()))
    assert bench.spool.read_state(JobId(7)) is None
    assert any("no driver" in line for line in bench.lines) and not any("identity" in line for line in bench.lines)


def allow(bench: Bench, text: str) -> None:
    folder = bench.root / "devices" / "slurm" / "uid_1000" / "job_7"
    folder.mkdir(parents=True)
    (folder / "devices.list").write_text(text)


def sample(bench: Bench, tmp_path: Path) -> None:
    proc = tmp_path / "proc" / "40"
    proc.mkdir(parents=True)
    (proc / "cmdline").write_bytes(b"slurmstepd: [7.batch]\0")
    (proc / "stat").write_text(f"40 (x) S {' '.join(['0'] * 18)} 100 0\n")
    ticks = iter(range(6))

    def sleep(wait_seconds: float) -> bool:
        bench.clock.advance(1.0)
        return next(ticks, None) is None

    run_sampler(bench.context(), JobId(7), sleep, tmp_path / "proc")
    bench.spool.sampler_path(JobId(7)).unlink()  # or the epilog would end this process


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("c 195:1 rwm\nc 195:255 rwm\nc 1:3 rwm\n", True),
        ("a *:* rwm\n", True),
        ("c 195:* rwm\n", True),
        ("c 195:2 rwm\nc 195:255 rwm\n", False),
    ],
)
def test_cgroup_that_holds_another_gpu_gives_the_clock_back(
    bench: Bench, tmp_path: Path, text: str, held: bool
) -> None:
    bench.order = order_of(0, 1, 2, 3)
    run_prolog(bench.context(), bench.hook(7, "1", entry()))
    allow(bench, text)
    sample(bench, tmp_path)
    assert bench.locks()[1] == ((210, 1275) if held else None)
    run_epilog(bench.context(), bench.hook(7, "1"))
    row = bench.reports()[0].gpus[0]
    assert (row.joules is not None) is held
    if not held:
        assert row.reason == ("gpu identity unknown: the job's cgroup holds nvidia2, Slurm's numbers led to nvidia1")
        assert QualityFlag.GPU_IDENTITY_UNKNOWN in row.flags
