"""A sweep of a node's own boards: what it measures, when it refuses, and that clocks come back on any end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from node_bench import Bench, FakeGpu

from slurm_energy.config import NodeConfig
from slurm_energy.device.gpu import Gpu
from slurm_energy.errors import DeviceError
from slurm_energy.node.board_sweep import (
    BoardSweep,
    ReservedGpus,
    SweepSettings,
    reserved_gpus,
    swept_boards,
    swept_clocks,
)
from slurm_energy.node.context import HookContext
from slurm_energy.node.hooks import run_prolog
from slurm_energy.node.repair import run_repair

SETTINGS = SweepSettings(clocks=5, settle_seconds=1.0, window_seconds=4.0, max_seconds=600.0)
DRAINED = "IDLE+DRAIN"


class WorkingBoard:
    """A fake board under load: power grows with the clock, a unit takes 1 s at the highest and twice that at half."""

    def __init__(self, bench: Bench, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.bench = bench
        self.done = 0.0
        self.slower_later = 0.0
        self.stopped = False

    @property
    def clock_mhz(self) -> int:
        return self.gpu.lock[1] if self.gpu.lock else self.gpu.clocks[-1]

    def advance(self, seconds: float) -> None:
        """Let time pass at the present clock."""
        relative = self.clock_mhz / self.gpu.clocks[-1]
        self.gpu.counter_base, self.gpu.watts = self.gpu.energy_joules(), 100.0 + 200.0 * relative
        self.gpu.counter_since = self.bench.clock.monotonic
        self.bench.clock.monotonic += seconds
        self.done += seconds * relative
        self.done *= 1.0 - self.slower_later

    def units(self) -> tuple[float, float]:
        return self.bench.clock.monotonic, self.done

    def stop(self) -> None:
        self.stopped = True


class Site:
    """A bench with one board that works, and what sweeps it."""

    def __init__(self, tmp_path: Path, node: NodeConfig | None = None) -> None:
        self.bench = Bench(tmp_path, gpus=1, node=node)
        self.board = WorkingBoard(self.bench, self.bench.gpus[0])
        self.on_pause: Callable[[], None] = lambda: None
        self.said: list[str] = []

    def context(self) -> HookContext:
        return replace(self.bench.context(), pause=self._pause)

    def _pause(self, seconds: float) -> None:
        self.on_pause()
        self.board.advance(seconds)

    def sweep(
        self, settings: SweepSettings = SETTINGS, start: Callable[[Gpu], WorkingBoard] | None = None
    ) -> BoardSweep:
        context = self.context()
        reservation = reserved_gpus(context, {}, lambda: DRAINED)
        loads = {"matmul": start or (lambda gpu: self.board)}
        (found,) = swept_boards(context, reservation, loads, settings, self.said.append)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_power_and_time_are_those_of_each_clock(site: Site) -> None:
    found = site.sweep()
    assert found.problems == ()
    measured = found.clocks_by_load["matmul"]
    highest = found.supported_clocks_mhz[-1]
    assert [one.sm_clock_mhz for one in measured] == sorted(swept_clocks(found.supported_clocks_mhz, 5))
    for one in measured:
        relative = one.sm_clock_mhz / highest
        assert one.watts == pytest.approx(100.0 + 200.0 * relative, rel=1e-6)
        assert one.seconds == pytest.approx(1.0 / relative, rel=1e-6)
    assert (found.gpu_type, found.power_limit_watts) == ("a100-sxm4-80gb", 400.0)
    assert site.board.stopped and site.board.gpu.lock is None and site.bench.recorded() == {}
    assert len(site.said) == 1


def test_while_it_runs_the_lock_is_recorded_for_repair_and_no_hook_can_set_the_gpu(site: Site) -> None:
    seen: list[tuple[set[str], bool]] = []

    def look() -> None:
        with site.bench.spool.try_locks(["GPU-0000"]) as free:
            seen.append((set(site.bench.recorded()), free))

    site.on_pause = look
    site.sweep()
    assert len(seen) > 5
    assert all(one == ({"GPU-0000"}, False) for one in seen)


@pytest.mark.parametrize("error", [SystemExit(143), KeyboardInterrupt(), OSError("disk")])
def test_the_clock_comes_back_on_any_end(site: Site, error: BaseException) -> None:
    calls = iter(range(100))

    def end() -> None:
        if next(calls) == 5:
            raise error

    site.on_pause = end
    with pytest.raises(type(error)):
        site.sweep()
    assert site.board.gpu.lock is None and site.board.stopped and site.bench.recorded() == {}


def test_what_a_killed_sweep_leaves_is_given_back_by_repair(site: Site) -> None:
    site.board.gpu.faults["unlock_sm_clock"] = DeviceError("gone")  # as if it had been killed before this
    found = site.sweep()
    assert any("was not given back" in problem for problem in found.problems)
    assert set(site.bench.recorded()) == {"GPU-0000"}
    site.board.gpu.faults.clear()
    assert run_repair(site.bench.context(), everything=False)
    assert site.board.gpu.lock is None and site.bench.recorded() == {}


def test_the_sites_own_lock_is_put_back(tmp_path: Path) -> None:
    node = NodeConfig(spool_directory=str(tmp_path / "spool"), log_path="", site_locked_clocks_mhz={"a100": 1200})
    site = Site(tmp_path, node)
    site.sweep()
    assert site.board.gpu.lock is not None and site.board.gpu.lock[1] == 1200


def test_it_ends_in_time(site: Site) -> None:
    began = site.bench.clock.monotonic
    found = site.sweep(replace(SETTINGS, max_seconds=12.0))
    assert site.bench.clock.monotonic - began <= 12.0
    assert found.clocks_by_load == {} and "time for the sweep is over" in found.problems[0]
    assert site.board.gpu.lock is None


def test_a_load_that_drifts_or_stands_still_is_not_used(site: Site) -> None:
    site.board.slower_later = 1.0
    assert "did no work within" in site.sweep().problems[0]
    site.board.slower_later = 0.0
    site.board.gpu.counter_stuck = True
    assert "stood still" in site.sweep().problems[0]


def test_a_load_that_cannot_start_is_a_problem_and_no_more(site: Site) -> None:
    def start(gpu: Gpu) -> WorkingBoard:
        raise DeviceError("torch finds no CUDA device")

    assert site.sweep(start=start).problems == ("matmul: torch finds no CUDA device",)
    assert site.board.gpu.lock is None


@pytest.mark.parametrize("state", ["IDLE", "MIXED", "ALLOCATED", "", "DOWN+DRAIN", "ALLOCATED+DRAIN"])
def test_a_node_that_is_not_certainly_free_is_left_alone(site: Site, state: str) -> None:
    with pytest.raises(DeviceError, match="node n1 is"):
        reserved_gpus(site.context(), {}, lambda: state)
    assert site.board.gpu.calls == []


def test_a_running_job_stops_it_also_on_a_drained_node(site: Site) -> None:
    run_prolog(site.bench.context(), site.bench.hook(7))
    with pytest.raises(DeviceError, match="job 7 runs on this node"):
        reserved_gpus(site.context(), {}, lambda: DRAINED)


def test_inside_a_job_its_own_gpus_alone_are_swept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gpus=4)
    run_prolog(bench.context(), bench.hook(7, "1,2"))
    run_prolog(bench.context(), bench.hook(8, "3"))
    found = reserved_gpus(bench.context(), {"SLURM_JOB_ID": "7"}, lambda: "MIXED")
    assert found == ReservedGpus(uuids=frozenset({"GPU-0001", "GPU-0002"}), job_id=7)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="job 9 has no GPUs on this node"):
        reserved_gpus(bench.context(), {"SLURM_JOB_ID": "9"}, lambda: "MIXED")


def test_clocks_are_spread_from_the_highest_to_half_of_it() -> None:
    assert swept_clocks(range(200, 2001, 100), 4) == (2000, 1700, 1300, 1000)
    with pytest.raises(DeviceError, match="at least 4 are needed"):
        swept_clocks((1000, 2000), 4)
