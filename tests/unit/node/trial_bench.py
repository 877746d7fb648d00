"""Trials of clocks on a bench of one node: a detector that answers at once, and time that passes as in the sampler."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from node_bench import A100_CLOCKS, Bench, entry

from slurm_energy.domain.ids import GpuUuid, JobId
from slurm_energy.estimation.clock_trials import ClockTrials
from slurm_energy.node.hooks import run_prolog
from slurm_energy.node.trials.run import TrialRun, make_trials

ZERO = GpuUuid("GPU-0000")
TABLE = (210, 1275)
TYPE = "a100-sxm4-80gb"
Answers = Callable[[int], dict[str, Any]]


@dataclass
class Detector:
    """Answers at once by the clock at which the second window was read."""

    bench: Bench
    answers: Answers
    pairs: list[dict[str, Any]] = field(default_factory=list)
    closed: bool = False

    def __call__(self, pairs: list[dict[str, Any]], _now: float) -> "Detector":
        self.pairs = pairs
        return self

    def answer(self, _now: float) -> dict[str, Any] | None:
        return self.answers(int(self.pairs[0]["after"]["sm_clock_mhz"]))

    def close(self) -> None:
        self.closed = True


def sensitive(share: float) -> Answers:
    """Answers of a program whose slowdown is this share of the clock's."""
    return lambda clock: {"slowdown": share * (1410.0 / clock - 1.0), "error": 0.003}


def unknown(_clock: int) -> dict[str, Any]:
    return {"unknown": "power does not repeat"}


def begin(bench: Bench, gpus: str = "0", **more: Any) -> None:
    for gpu in bench.gpus:
        gpu.on_change = lambda gpu=gpu: setattr(gpu, "watts", 100.0 + 300.0 * (gpu.sm_clock_mhz() / 1410.0) ** 2)
    text = entry(more.pop("clocks", None), time_limit_minutes=600, trials={TYPE: 0.05})
    run_prolog(bench.context(), bench.hook(7, gpus, text, **{"SLURM_JOB_NODELIST": "n1", **more}))


def trials(bench: Bench, answers: Answers, cpu: Callable[[], float] = lambda: 0.0) -> TrialRun:
    job = bench.spool.read_state(JobId(7))
    assert job is not None
    made = make_trials(bench.context(), job, {gpu.identity.uuid: gpu for gpu in bench.gpus}, None)
    assert made is not None
    gpus = {gpu.uuid: bench.gpus[int(gpu.uuid[-4:])] for gpu in job.gpus}
    ladder = ClockTrials(
        clocks_mhz=A100_CLOCKS, table_clock_mhz=job.gpus[0].target_clock_mhz or 1410, max_slowdown=0.05
    )
    return TrialRun(bench.context(), job, gpus, ladder, None, cpu=cpu, ask=Detector(bench, answers))  # type: ignore[arg-type]


def play(bench: Bench, run: TrialRun, seconds: float, until: Callable[[], bool] = lambda: False) -> list[Any]:
    """Let time pass as the sampler does; return the locks that were seen, each once in a row."""
    end, seen = bench.clock.monotonic + seconds, [bench.gpus[0].lock]
    while bench.clock.monotonic < end and not until():
        wanted = run.step()
        if bench.gpus[0].lock != seen[-1]:
            seen.append(bench.gpus[0].lock)
        bench.clock.advance(min(max(wanted, 0.05), 60.0))
    return seen


def tried_clock(bench: Bench, run: TrialRun) -> None:
    """Stop in the middle of a trial below the table's clock."""
    play(bench, run, 4 * 3600.0, until=lambda: bench.gpus[0].lock not in {None, TABLE})
    assert bench.gpus[0].lock not in {None, TABLE}
