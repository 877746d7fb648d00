from collections.abc import Callable
from pathlib import Path

import pytest
from node_bench import Bench, entry, order_of

from slurm_energy.config import NodeConfig
from slurm_energy.domain.energy import EnergyScope, EnergySource, QualityFlag
from slurm_energy.domain.ids import GpuUuid, JobId
from slurm_energy.errors import DeviceError, DeviceNotSupported
from slurm_energy.node.energy import Heartbeat
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.repair import run_repair
from slurm_energy.node.sampler import run_sampler, take_sample
from slurm_energy.node.samples import GpuHolders, SamplerState

ZERO = GpuUuid("GPU-0000")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def sampler(bench: Bench, job_id: int) -> tuple[SamplerState, Callable[[], None]]:
    job = bench.spool.read_state(JobId(job_id))
    assert job is not None
    state = SamplerState(job=job, heartbeat=Heartbeat(job_id=job_id, started_at_seconds=job.started_at_seconds))
    gpus = {gpu.identity.uuid: gpu for gpu in bench.gpus if gpu.identity.uuid in job.uuids}
    table = GpuHolders(bench.spool)
    return state, lambda: take_sample(bench.context(), state, gpus, table)


def write_beat(bench: Bench, state: SamplerState) -> None:
    bench.spool.write_heartbeat(state.heartbeat, durable=False)


def test_gpu_without_counter_gets_its_power_integrated(bench: Bench) -> None:
    bench.gpus[0].faults["energy_joules"] = DeviceNotSupported("no counter")
    run_prolog(bench.context(), bench.hook(7, "0"))
    state, sample = sampler(bench, 7)
    for _ in range(11):
        sample()
        bench.clock.advance(1.0)
    write_beat(bench, state)
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert gpu.joules == pytest.approx(2000.0, rel=0.05)
    assert (gpu.source, gpu.flags) == (EnergySource.POLLED, (QualityFlag.COUNTER_UNSUPPORTED,))
    assert (gpu.observed_clock_mhz, gpu.utilisation) == (1410.0, 1.0)


def test_counter_that_stops_during_the_job_is_not_believed(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    state, sample = sampler(bench, 7)
    for second in range(31):
        if second == 10:
            bench.gpus[0].counter_base, bench.gpus[0].counter_stuck = bench.gpus[0].energy_joules(), True
        sample()
        bench.clock.advance(1.0)
    write_beat(bench, state)
    bench.gpus[0].counter_stuck = False  # it goes on from the true figure or not: what it missed is unknown
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert gpu.joules == pytest.approx(200.0 * 31, rel=0.05)
    assert (gpu.source, gpu.flags) == (EnergySource.POLLED, (QualityFlag.COUNTER_STUCK,))


def test_counter_that_stops_after_its_last_sample_is_not_believed(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    state, sample = sampler(bench, 7)
    for _ in range(6):  # the counter is read with the first sample and the sixth
        sample()
        bench.clock.advance(1.0)
    bench.gpus[0].counter_base, bench.gpus[0].counter_stuck = state.heartbeat.gpus[ZERO].counter_joules or 0.0, True
    for _ in range(4):
        sample()
        bench.clock.advance(1.0)
    write_beat(bench, state)
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert (gpu.source, gpu.flags) == (EnergySource.POLLED, (QualityFlag.COUNTER_STUCK,))
    assert gpu.joules == pytest.approx(200.0 * 10, rel=0.15)


def test_trapezoid_follows_a_ramp_exactly(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    state, sample = sampler(bench, 7)
    for watts in range(100, 201, 10):
        bench.gpus[0].watts = float(watts)
        sample()
        bench.clock.advance(1.0)
    assert state.heartbeat.gpus[ZERO].polled_joules == pytest.approx(1500.0)


def test_device_time_runs_at_its_scale(tmp_path: Path) -> None:
    bench = Bench(tmp_path, node=NodeConfig(spool_directory=str(tmp_path / "spool"), log_path="", time_scale=60.0))
    run_prolog(bench.context(), bench.hook(7, "0"))
    state, sample = sampler(bench, 7)
    sample()
    bench.clock.advance(2.0)
    sample()
    write_beat(bench, state)
    run_epilog(bench.context(), bench.hook(7, "0"))
    gpu = bench.reports()[0].gpus[0]
    assert gpu.joules == pytest.approx(24_000.0)
    assert gpu.coverage_seconds == pytest.approx(120.0)
    assert gpu.polled_joules == pytest.approx(24_000.0)
    assert bench.reports()[0].ended_at_seconds - bench.reports()[0].started_at_seconds == pytest.approx(2.0)


def test_a_gap_is_not_guessed(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    state, sample = sampler(bench, 7)
    sample()
    bench.clock.advance(600.0)
    sample()
    bench.clock.advance(1.0)
    sample()
    sums = state.heartbeat.gpus[ZERO]
    assert sums.polled_joules == pytest.approx(200.0)
    assert sums.sampled_seconds == pytest.approx(1.0)


def test_unreadable_or_absurd_power_makes_a_gap(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    state, sample = sampler(bench, 7)
    sample()
    bench.clock.advance(1.0)
    bench.gpus[0].watts = 4_294_967.295
    sample()
    bench.clock.advance(1.0)
    bench.gpus[0].watts = 200.0
    bench.gpus[0].faults["power_watts"] = [DeviceError("lost")]
    sample()
    assert state.heartbeat.gpus[ZERO].polled_joules == 0.0


def test_idle_samples_do_not_enter_the_busy_clock(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    state, sample = sampler(bench, 7)
    for busy, clock in ((0.0, 210), (0.9, 1275)):
        bench.gpus[0].busy, bench.gpus[0].free_clock_mhz = busy, clock
        sample()
        bench.clock.advance(1.0)
    sums = state.heartbeat.gpus[ZERO]
    assert sums.mean_busy_clock_mhz == 1275.0
    assert sums.mean_utilisation == pytest.approx(0.45)


def test_two_half_node_jobs_that_overlap_add_up_to_the_node(bench: Bench) -> None:
    bench.order = order_of(0, 1, 2, 3, shares=True)
    run_prolog(bench.context(), bench.hook(7, "0"))
    first, sample_first = sampler(bench, 7)
    sample_first()
    for _ in range(30):
        bench.clock.advance(1.0)
        sample_first()
    run_prolog(bench.context(), bench.hook(8, "0"))
    second, sample_second = sampler(bench, 8)
    sample_second()
    for _ in range(30):
        bench.clock.advance(1.0)
        sample_first()
        sample_second()
    write_beat(bench, first)
    run_epilog(bench.context(), bench.hook(7, "0"))
    for _ in range(30):
        bench.clock.advance(1.0)
        sample_second()
    write_beat(bench, second)
    run_epilog(bench.context(), bench.hook(8, "0"))
    rows = [report.gpus[0] for report in bench.reports()]
    assert {row.scope for row in rows} == {EnergyScope.SHARED_ESTIMATE}
    assert sum(row.joules or 0.0 for row in rows) == pytest.approx(90 * 200.0)
    assert [row.joules for row in rows] == [pytest.approx(9000.0), pytest.approx(9000.0)]


def test_counter_reset_in_the_middle_is_seen_though_it_ends_higher(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    state, sample = sampler(bench, 7)
    for second in range(40):
        if second == 10:
            bench.gpus[0].reset_counter()
        sample()
        bench.clock.advance(1.0)
    assert state.heartbeat.gpus[ZERO].counter_fell


def test_job_near_its_time_limit_gets_its_clock_back(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0,1", entry(time_limit_minutes=10)))
    state, sample = sampler(bench, 7)
    sample()
    bench.clock.advance(500.0)
    sample()
    assert bench.locks()[:2] == [(210, 1275)] * 2
    bench.clock.advance(50.0)
    bench.gpus[0].faults["unlock_sm_clock"] = [DeviceError("busy"), DeviceError("busy")]
    sample()
    assert not state.heartbeat.rescued
    sample()
    assert bench.locks() == [None] * 4
    run_epilog(bench.context(), bench.hook(7, "0,1"))
    report = bench.reports()[0]
    assert all(QualityFlag.RESCUED in gpu.flags for gpu in report.gpus)
    assert any("rescued after" in event for event in report.events)


@pytest.mark.parametrize("mode_entry", [None, entry({}, time_limit_minutes=10)])
def test_job_at_its_default_clock_needs_no_rescue(bench: Bench, mode_entry: str | None) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", mode_entry))
    state, sample = sampler(bench, 7)
    bench.clock.advance(590.0)
    sample()
    assert not state.heartbeat.rescued and "unlock_sm_clock" not in bench.gpus[0].calls


def test_rescue_waits_while_a_hook_works_on_the_gpu(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry(time_limit_minutes=10)))
    state, sample = sampler(bench, 7)
    bench.clock.advance(590.0)
    with bench.spool.gpu_locks([ZERO]):
        sample()
    assert bench.locks()[0] == (210, 1275) and not state.heartbeat.rescued


def test_sampler_ends_when_its_job_is_gone(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))
    waits: list[float] = []

    def sleep(seconds: float) -> bool:
        waits.append(seconds)
        bench.clock.advance(1.0)
        if len(waits) == 5:
            bench.spool.forget(JobId(7))
        return False

    run_sampler(bench.context(), JobId(7), sleep, bench.root)
    assert len(waits) == 5
    assert list(bench.spool.active.iterdir()) == []


def test_sampler_ends_when_another_takes_over(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))

    def sleep(seconds: float) -> bool:
        bench.clock.advance(1.0)
        bench.spool.sampler_path(JobId(7)).write_text('{"pid": 999, "start_ticks": 5, "boot_id": "boot-1"}')
        return False

    run_sampler(bench.context(), JobId(7), sleep, bench.root)
    assert bench.spool.sampler_path(JobId(7)).exists()


def test_sampler_that_is_asked_to_end_leaves_its_last_sums(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0"))

    def sleep(seconds: float) -> bool:
        bench.clock.advance(0.5)
        return True

    run_sampler(bench.context(), JobId(7), sleep, bench.root)
    job = bench.spool.read_state(JobId(7))
    assert job is not None
    heartbeat = bench.spool.read_heartbeat(job)
    assert heartbeat is not None and heartbeat.gpus[ZERO].polled_joules == pytest.approx(100.0)


def test_sampler_of_a_job_without_state_ends_at_once(bench: Bench) -> None:
    bench.spool.prepare()
    run_sampler(bench.context(), JobId(7), lambda seconds: pytest.fail("waited"))


def test_heartbeats_close_a_job_of_a_dead_node(bench: Bench) -> None:
    run_prolog(bench.context(), bench.hook(7, "0", entry()))
    _, sample = sampler(bench, 7)
    for _ in range(23):
        sample()
        bench.clock.advance(1.0)
    bench.boot_id = "boot-2"
    assert run_repair(bench.context(), everything=False)
    gpu = bench.reports()[0].gpus[0]
    assert (gpu.joules, gpu.source) == (pytest.approx(20 * 200.0), EnergySource.COUNTER)
    assert gpu.flags == (QualityFlag.TRUNCATED,)


def test_processors_are_divided_among_the_nodes_jobs(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "powercap" / "intel-rapl:0"
    folder.mkdir(parents=True)
    (folder / "name").write_text("package-0\n")
    (folder / "max_energy_range_uj").write_text("262143328850\n")
    counter = [262_100_000_000]

    def advance(sample: Callable[[], None]) -> None:
        bench.clock.advance(1.0)
        counter[0] = (counter[0] + 60_000_000) % 262_143_328_851
        (folder / "energy_uj").write_text(f"{counter[0]}\n")
        sample()

    run_prolog(bench.context(), bench.hook(7, "0"))
    state, sample = sampler(bench, 7)
    for _ in range(3):
        advance(sample)
    run_prolog(bench.context(), bench.hook(8, "1"))
    advance(sample)
    host = state.heartbeat.host
    assert host is not None
    assert host.joules == pytest.approx(2 * 60 + 30)
    assert (host.shared, host.wrap_unobserved) == (True, False)
