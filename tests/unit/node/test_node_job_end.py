"""The sampler sees that a job is over, so that a lost epilog bills neither idle time nor the next job to it."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from node_bench import Bench, entry

from slurm_energy.domain.energy import EnergySource, GpuEnergy, NodeReport, QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import DeviceNotSupported
from slurm_energy.node.energy import Heartbeat, decode_heartbeat, encode_heartbeat
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.sampler import NO_STEP_SECONDS, run_sampler
from slurm_energy.node.steps import Presence, StepWatch

SEVEN = JobId(7)


class Proc:
    """A /proc of our own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def start(self, pid: int, title: str, ticks: int = 100) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "cmdline").write_bytes(title.encode() + b"\0")
        (folder / "stat").write_text(f"{pid} (slurm) stepd) S {' '.join(['0'] * 18)} {ticks} 0\n")

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def sample(bench: Bench, proc: Proc, script: Mapping[int, Callable[[], object]], until: int) -> int:
    """Run job 7's sampler, one second a sample; do what the script says at its seconds, and ask to end at `until`."""
    second = 0

    def sleep(wait_seconds: float) -> bool:
        nonlocal second
        second += 1
        bench.clock.advance(1.0)
        script.get(second, lambda: None)()
        return second >= until

    run_sampler(bench.context(), SEVEN, sleep, proc.root)
    bench.spool.sampler_path(SEVEN).unlink()  # it names this process, which no hook shall end
    return second


def heartbeat(bench: Bench) -> Heartbeat:
    job = bench.spool.read_state(SEVEN)
    assert job is not None
    found = bench.spool.read_heartbeat(job)
    assert found is not None
    return found


def closed_by_the_next_job(bench: Bench) -> tuple[NodeReport, GpuEnergy]:
    """Lose the epilog: the next job comes to the same GPU much later."""
    bench.clock.advance(900.0)
    run_prolog(bench.context(), bench.hook(8, "0"))
    report = next(report for report in bench.reports() if report.job_id == 7)
    return report, report.gpus[0]


@pytest.mark.parametrize("counter", [True, False])
def test_job_whose_epilog_is_lost_is_billed_until_its_batch_step_ended(bench: Bench, proc: Proc, counter: bool) -> None:
    if not counter:
        bench.gpus[0].faults["energy_joules"] = DeviceNotSupported("no counter")
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    proc.start(40, "slurmstepd: [7.batch]")
    assert sample(bench, proc, {3: lambda: proc.end(40)}, until=500) == 3
    assert heartbeat(bench).final
    report, gpu = closed_by_the_next_job(bench)
    assert gpu.joules == pytest.approx(600.0)
    assert gpu.coverage_seconds == pytest.approx(3.0)
    assert gpu.source is (EnergySource.COUNTER if counter else EnergySource.POLLED)
    assert QualityFlag.TRUNCATED in gpu.flags
    assert report.ended_at_seconds - report.started_at_seconds == pytest.approx(3.0)
    assert any("measured until" in event for event in report.events)
    assert bench.locks()[0] is None


def test_batch_step_that_begins_after_the_sampler_is_found_in_time(bench: Bench, proc: Proc) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    proc.start(30, "slurmstepd: [7.extern]")
    script = {1: lambda: proc.start(40, "slurmstepd: [7.batch]"), 3: lambda: proc.end(40)}
    assert sample(bench, proc, script, until=500) == 3


def test_sampler_ends_as_soon_as_the_epilog_begins(bench: Bench, proc: Proc) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    proc.start(40, "slurmstepd: [7.batch]")
    assert sample(bench, proc, {4: lambda: bench.spool.mark_ending(SEVEN, bench.moment())}, until=500) == 4
    _, gpu = closed_by_the_next_job(bench)
    assert gpu.joules == pytest.approx(800.0)
    assert gpu.flags == (QualityFlag.TRUNCATED,)


def test_epilog_after_the_final_heartbeat_still_reads_the_counter(bench: Bench, proc: Proc) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    proc.start(40, "slurmstepd: [7.batch]")
    sample(bench, proc, {20: lambda: proc.end(40)}, until=500)
    bench.gpus[0].reset_counter(bench.gpus[0].energy_joules())
    bench.gpus[0].watts = 50.0
    bench.clock.advance(4.0)
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert (gpu.joules, gpu.source) == (pytest.approx(20 * 200.0 + 4 * 50.0), EnergySource.COUNTER)
    assert (gpu.coverage_seconds, gpu.flags) == (pytest.approx(24.0), ())


def test_late_epilog_does_not_make_the_samples_of_a_short_job_too_few(bench: Bench, proc: Proc) -> None:
    bench.gpus[0].faults["energy_joules"] = DeviceNotSupported("no counter")
    run_prolog(bench.context(), bench.hook(7, "0"))
    proc.start(40, "slurmstepd: [7.batch]")
    sample(bench, proc, {3: lambda: proc.end(40)}, until=500)
    bench.clock.advance(5.0)
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert (gpu.joules, gpu.source, gpu.coverage_seconds) == (pytest.approx(600.0), EnergySource.POLLED, 3.0)


def test_job_over_is_not_rescued(bench: Bench, proc: Proc) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry(time_limit_minutes=1)))
    proc.start(40, "slurmstepd: [7.batch]")

    def end_late() -> None:
        proc.end(40)
        bench.clock.advance(58.0)

    sample(bench, proc, {2: end_late}, until=500)
    assert (heartbeat(bench).rescued, bench.locks()[0]) == (False, (210, 1275))


@pytest.mark.parametrize("pause", [5, 200])
def test_job_without_a_batch_step_is_billed_until_its_last_step_ended(bench: Bench, proc: Proc, pause: int) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    proc.start(40, "slurmstepd: [7.0]")
    sample(bench, proc, {3: lambda: proc.end(40)}, until=3 + pause)
    assert heartbeat(bench).final
    _, gpu = closed_by_the_next_job(bench)
    assert gpu.joules == pytest.approx(600.0)
    assert gpu.flags == (QualityFlag.TRUNCATED,)


def test_sums_of_the_last_step_are_on_disk_a_minute_later(bench: Bench, proc: Proc) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    proc.start(40, "slurmstepd: [7.0]")
    seen: list[object] = []

    def look() -> None:
        beat = heartbeat(bench)
        seen.append((beat.final, beat.at_monotonic_seconds - 5_000.0))

    script = {3: lambda: proc.end(40), 40: look, 3 + int(NO_STEP_SECONDS) + 10: look}
    sample(bench, proc, script, until=100)
    assert seen == [(False, pytest.approx(35.0)), (True, pytest.approx(3.0))]


def test_allocation_in_which_a_step_begins_again_goes_on(bench: Bench, proc: Proc) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    proc.start(40, "slurmstepd: [7.0]")
    script = {3: lambda: proc.end(40), 150: lambda: proc.start(41, "slurmstepd: [7.1]")}
    assert sample(bench, proc, script, until=200) == 200
    beat = heartbeat(bench)
    assert not beat.final
    assert beat.gpus[bench.gpus[0].identity.uuid].polled_joules == pytest.approx(200 * 200.0)


def test_epilog_of_an_allocation_that_stood_idle_gets_all_its_samples(bench: Bench, proc: Proc) -> None:
    bench.gpus[0].faults["energy_joules"] = DeviceNotSupported("no counter")
    run_prolog(bench.context(), bench.hook(7, "0"))
    proc.start(40, "slurmstepd: [7.0]")
    sample(
        bench, proc, {3: lambda: proc.end(40), 200: lambda: bench.spool.mark_ending(SEVEN, bench.moment())}, until=200
    )
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert bench.reports()[0].gpus[0].joules == pytest.approx(200 * 200.0)


def test_job_of_which_no_step_was_ever_seen_goes_on(bench: Bench, proc: Proc) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    proc.start(40, "slurmstepd: [77.batch]")
    assert sample(bench, proc, {5: lambda: proc.end(40)}, until=90) == 90
    assert not heartbeat(bench).final


def test_child_that_bears_the_name_for_a_moment_does_not_end_the_job(proc: Proc) -> None:
    watch = StepWatch(SEVEN, proc.root)
    proc.start(41, "slurmstepd: [7.batch]", ticks=105)
    assert watch.look(0.0) is Presence.RUNNING
    proc.start(40, "slurmstepd: [7.batch]", ticks=100)
    proc.end(41)
    assert watch.look(1.0) is Presence.RUNNING
    proc.end(40)
    assert watch.look(2.0) is Presence.OVER


def test_number_that_another_process_took_over_is_not_the_step(proc: Proc) -> None:
    watch = StepWatch(SEVEN, proc.root)
    proc.start(40, "slurmstepd: [7.batch]", ticks=100)
    assert watch.look(0.0) is Presence.RUNNING
    proc.start(40, "python train.py", ticks=900)
    assert watch.look(1.0) is Presence.OVER


def test_known_batch_step_is_looked_at_without_a_search(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StepWatch(SEVEN, proc.root)
    proc.start(40, "slurmstepd: [7.batch]")
    watch.look(0.0)
    monkeypatch.setattr(Path, "glob", lambda *arguments: pytest.fail("searched"))
    assert [watch.look(float(second)) for second in range(1, 500)] == [Presence.RUNNING] * 499


def test_searches_become_rare_when_no_step_is_found(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StepWatch(SEVEN, proc.root)
    searches: list[str] = []

    def search(folder: Path, pattern: str) -> list[Path]:
        searches.append(pattern)
        return []

    monkeypatch.setattr(Path, "glob", search)
    for second in range(3600):
        assert watch.look(float(second)) is Presence.UNSEEN
    assert 10 < len(searches) < 120


def test_heartbeat_of_an_older_release_is_not_final() -> None:
    beat = Heartbeat(job_id=7, started_at_seconds=1.0, final=True)
    content = encode_heartbeat(beat)
    assert decode_heartbeat(content).final
    assert not decode_heartbeat(content.replace(b'"final":true,', b"")).final
