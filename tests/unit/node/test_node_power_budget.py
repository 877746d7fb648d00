"""A running job under a power budget: what is stated, when its clock is lowered and put back, what its report says."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from node_bench import Bench, entry

from slurm_energy.config import NodeConfig
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import GpuUuid, JobId
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import DaemonUnavailable, DeviceError
from slurm_energy.node.energy import Heartbeat
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.power_budget import BudgetFollower, make_follower
from slurm_energy.node.repair import run_repair
from slurm_energy.node.sampler import take_sample
from slurm_energy.node.samples import GpuHolders, SamplerState
from slurm_energy.node.settings import HookSettings
from slurm_energy.wire.running_power import ClockOrder, RunningPower

TYPE = "a100-sxm4-80gb"
DECIDED, DEFAULT = (210, 1275), None


@dataclass
class Daemon:
    """Answers with what a test says, and keeps what it was asked."""

    clock_mhz: int | None = None
    lease_seconds: float = 30.0
    away: bool = False
    asked: list[RunningPower] = field(default_factory=list)

    def __call__(self, stated: RunningPower, _settings: HookSettings) -> ClockOrder:
        self.asked.append(stated)
        if self.away:
            raise DaemonUnavailable("connection refused")
        return ClockOrder(clock_mhz=self.clock_mhz, lease_seconds=self.lease_seconds, ask_seconds=4.0)


@dataclass
class Job:
    """One job with its sampler's state."""

    bench: Bench
    daemon: Daemon
    state: SamplerState

    def play(self, seconds: int) -> None:
        """Let time pass as the sampler does."""
        gpus = {gpu.identity.uuid: gpu for gpu in self.bench.gpus if gpu.identity.uuid in self.state.job.uuids}
        table = GpuHolders(self.bench.spool)
        for _ in range(seconds):
            take_sample(self.bench.context(), self.state, gpus, table)
            if self.state.budget is not None:
                shared = any(table.holders().get(uuid, 1) > 1 for uuid in self.state.job.uuids)
                stays = self.state.heartbeat.rescued or shared
                self.state.budget.step(self.state.heartbeat, self.state.own_clock_mhz, stays=stays)
                if self.state.budget._thread is not None:
                    self.state.budget._thread.join()
            self.bench.clock.advance(1.0)
        self.bench.spool.write_heartbeat(self.state.heartbeat, durable=False)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    node = NodeConfig(
        spool_directory=str(tmp_path / "spool"), log_path="", follow_power_budget=True, daemon_address="ctl:6818"
    )
    bench = Bench(tmp_path, node=node)
    for gpu in bench.gpus:
        gpu.on_change = lambda gpu=gpu: setattr(gpu, "watts", 60.0 + 340.0 * (gpu.sm_clock_mhz() / 1410.0) ** 2)
    return bench


def begin(bench: Bench, gpus: str = "0", minutes: int = 600, mode: EnergyMode = EnergyMode.BALANCED) -> Job:
    text = entry({TYPE: 1275}, mode, time_limit_minutes=minutes)
    run_prolog(bench.context(), bench.hook(7, gpus, text, SLURM_JOB_NODELIST="n1"))
    job = bench.spool.read_state(JobId(7))
    assert job is not None
    daemon = Daemon()
    state = SamplerState(job=job, heartbeat=Heartbeat(job_id=7, started_at_seconds=job.started_at_seconds))
    made = make_follower(bench.context(), job, {gpu.identity.uuid: gpu for gpu in bench.gpus})
    assert made is not None
    state.budget = BudgetFollower(bench.context(), job, made._gpus, made._clocks_mhz, daemon)
    return Job(bench, daemon, state)


def test_power_and_clocks_are_stated_every_few_seconds(bench: Bench) -> None:
    job = begin(bench, "0,1")
    job.play(20)
    first, *_, last = job.daemon.asked
    assert (first.watts, first.clock_mhz, first.decided_clock_mhz, first.default_clock_mhz) == (None, 1275, 1275, 1410)
    assert (last.num_gpus, last.lowest_clock_mhz, last.may_lower) == (2, 210, True)
    assert last.watts == pytest.approx(2 * bench.gpus[0].watts, rel=0.02)
    assert len(job.daemon.asked) == 4
    assert bench.gpus[0].lock == DECIDED


def test_the_clock_is_lowered_and_given_back(bench: Bench) -> None:
    job = begin(bench, "0,1")
    job.play(10)
    job.daemon.clock_mhz = 1000
    job.play(10)
    assert bench.locks()[:3] == [(210, 990), (210, 990), None]  # the highest supported one up to it
    assert job.daemon.asked[-1].clock_mhz == 990
    assert job.daemon.asked[-1].watts == pytest.approx(2 * bench.gpus[0].watts, rel=0.02)
    job.daemon.clock_mhz = None
    job.play(10)
    assert bench.locks()[:2] == [DECIDED, DECIDED]
    assert not bench.spool.trial_path(JobId(7)).exists()

    run_epilog(bench.context(), bench.hook(7, "0,1"))
    report = bench.reports()[0]
    assert bench.locks()[:2] == [DEFAULT, DEFAULT]
    assert all(QualityFlag.POWER_BUDGET in gpu.flags for gpu in report.gpus)
    assert any("at a lowered clock, 990 MHz the lowest" in event for event in report.events)


def test_a_clock_above_the_jobs_own_changes_nothing(bench: Bench) -> None:
    job = begin(bench)
    job.daemon.clock_mhz = 1400
    job.play(20)
    run_epilog(bench.context(), bench.hook(7, "0"))
    assert job.state.heartbeat.budget_seconds == 0.0
    assert QualityFlag.POWER_BUDGET not in bench.reports()[0].gpus[0].flags


def test_without_an_answer_the_jobs_own_clock_comes_back_when_the_lease_is_over(bench: Bench) -> None:
    job = begin(bench)
    job.daemon.clock_mhz = 900
    job.play(10)
    job.daemon.away = True
    job.play(20)
    assert bench.gpus[0].lock == (210, 900)
    job.play(20)
    assert bench.gpus[0].lock == DECIDED
    assert [event for event in job.state.heartbeat.events if "no answer" in event] != []
    job.daemon.away = False
    job.play(15)
    assert bench.gpus[0].lock == (210, 900)


def test_a_sampler_that_is_killed_leaves_the_clock_until_repair_puts_it_back(bench: Bench) -> None:
    job = begin(bench)
    job.daemon.clock_mhz = 900
    job.play(10)
    bench.live = frozenset({JobId(7)})
    run_repair(bench.context(), everything=False)
    assert bench.gpus[0].lock == (210, 900)
    bench.clock.advance(100.0)
    run_repair(bench.context(), everything=False)
    assert bench.gpus[0].lock == DECIDED


@pytest.mark.parametrize("mode", [EnergyMode.OFF, EnergyMode.OBSERVE])
def test_a_job_whose_user_or_site_says_no_is_counted_and_not_lowered(bench: Bench, mode: EnergyMode) -> None:
    job = begin(bench, mode=mode)
    job.daemon.clock_mhz = 500
    job.play(20)
    assert bench.gpus[0].lock is DEFAULT
    assert not job.daemon.asked[-1].may_lower


def test_a_rescued_job_keeps_its_default_clock(bench: Bench) -> None:
    job = begin(bench, minutes=1)
    job.daemon.clock_mhz = 900
    job.play(56)
    assert job.state.heartbeat.rescued
    job.play(20)
    assert bench.gpus[0].lock is DEFAULT
    assert not job.daemon.asked[-1].may_lower
    assert not bench.spool.trial_path(JobId(7)).exists()


def test_a_job_gives_no_more_than_a_tenth_of_its_limit(bench: Bench) -> None:
    job = begin(bench, minutes=10)
    job.daemon.clock_mhz = 705  # half of the default clock: a minute is half lost
    job.play(110)
    assert bench.gpus[0].lock == (210, 705)
    job.play(40)
    assert bench.gpus[0].lock == DECIDED
    assert job.state.heartbeat.budget_seconds < 130.0


def test_a_job_that_comes_to_share_its_gpu_is_left_alone(bench: Bench) -> None:
    job = begin(bench)
    job.daemon.clock_mhz = 900
    job.play(10)
    bench.live = frozenset({JobId(7)})
    run_prolog(bench.context(), bench.hook(8, "0", None, SLURM_JOB_NODELIST="n1"))
    job.play(10)
    assert bench.gpus[0].lock is DEFAULT
    assert not job.daemon.asked[-1].may_lower


def test_boards_that_refuse_the_clock_are_given_their_own_back_and_left_alone(bench: Bench) -> None:
    job = begin(bench, "0,1")
    job.daemon.clock_mhz = 900
    bench.gpus[1].faults["lock_sm_clock"] = DeviceError("not permitted")
    job.play(60)
    assert bench.gpus[0].lock in {DECIDED, DEFAULT}
    assert not job.daemon.asked[-1].may_lower


def test_a_node_that_does_not_follow_asks_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run_prolog(bench.context(), bench.hook(7, "0", entry({TYPE: 1275})))
    job = bench.spool.read_state(JobId(7))
    assert job is not None
    assert not job.follows_budget
    gpus = {GpuUuid(f"GPU-{at:04d}"): gpu for at, gpu in enumerate(bench.gpus)}
    assert make_follower(bench.context(), job, gpus) is None
