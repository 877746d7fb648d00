"""One run of the environment: the engine, driven from one decision to the next, and the run as a few lines of text."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from slurm_energy.policy.placement import Discipline, Placement
from slurm_energy.twin.engine.events import WorkloadArrivals
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.loop import Engine, Steps
from slurm_energy.twin.engine.places import Place
from slurm_energy.twin.environment.choices import Choices, Chooser
from slurm_energy.twin.episode import Meter, Passage
from slurm_energy.twin.world import World


class Transition(NamedTuple):
    """What came of one answer."""

    passage: Passage
    granted: Placement | None
    """None when the job was let wait, or a backfilled start would have delayed the first job that waits."""
    expected_joules: float
    """Energy that the started job adds over what its devices draw when free, by its estimate; 0 without a start."""
    ended_jobs: int


class DecisionRun:
    """A run that stops at every decision of an agent."""

    def __init__(  # noqa: PLR0913  # what one run consists of
        self,
        world: World,
        places: Sequence[Place],
        workload: Workload,
        chooser: Chooser,
        *,
        seed: int,
        horizon_seconds: float | None,
        discipline: Discipline | None,
    ) -> None:
        """Set up the run and go to its first decision."""
        self.engine = Engine(
            world,
            WorkloadArrivals(workload.jobs),
            seed=seed,
            discipline=discipline,
            horizon_seconds=horizon_seconds,
        )
        self.has_horizon = horizon_seconds is not None
        self.job: Job | None = None
        """The job that is asked about, None when nothing more is asked."""
        self.choices: Choices | None = None
        self._places = places
        self._chooser = chooser
        self._meter = Meter()
        self._steps: Steps | None = self.engine.steps()
        self._go_on(None)

    @property
    def is_over(self) -> bool:
        """Whether the run has come to its end."""
        return self._steps is None

    def answer(self, placement: Placement | None) -> Transition:
        """Answer about the present job and run to the next decision; the first passage counts energy from time 0."""
        job, choices, runs, decided = self.job, self.choices, self.engine.runs, self.engine.now
        version = 0 if job is None else runs[job.job_id].version
        self._go_on(placement)
        granted, joules = None, 0.0
        if job is not None and choices is not None and placement is not None and runs[job.job_id].version > version:
            granted, joules = placement, self._expected_joules(job, choices, placement)
        passage = self._meter.read(self.engine)._replace(elapsed_seconds=self.engine.now - decided)
        return Transition(passage, granted, joules, len(self.engine.ended_jobs()))

    def _go_on(self, answer: Placement | None) -> None:
        """Run to the next job that can start somewhere; one that could only share a GPU waits."""
        self.job = self.choices = None
        if self._steps is None:
            return
        try:
            while True:
                job = self._steps.send(answer)
                if job is not None:
                    choices = self._chooser.choices(job, self.engine.view)
                    if choices.can_start:
                        self.job, self.choices = job, choices
                        return
                answer = None
        except StopIteration:
            self._steps = None

    def _expected_joules(self, job: Job, choices: Choices, placement: Placement) -> float:
        where = (placement.place, choices.costs.gpu_counts.index(placement.gpus), placement.clock)
        free_watts = placement.gpus * self._places[placement.place].device.free_watts
        extra = float(choices.costs.joules[where]) - free_watts * float(choices.costs.seconds[where])
        return job.estimated_units * extra


_MOST_PLACES = 16


def cluster_text(engine: Engine, places: Sequence[Place], job: Job | None) -> str:
    """Return time, power, queue, the job in question, and a bar of held devices for each place."""
    view = engine.view
    held = sum(len(pool.runs) for pool in view.pools)
    budget = "" if view.power_budget_watts == inf else f" of {view.power_budget_watts / 1000.0:.1f} kW"
    power = f"{view.power_watts / 1000.0:.1f} kW{budget}"
    lines = [
        f"t={engine.now:.0f} s  power={power}  running={held}  waiting={view.num_waiting}",
        "no job is asked about" if job is None else f"job {job.job_id}: {_job_text(job, engine.now)}",
    ]
    for place in places[:_MOST_PLACES]:
        info = place.info
        share = 1.0 - view.free_gpus[place.index] / info.total_gpus
        bar = "#" * round(10.0 * share)
        lines.append(f"{info.name:>16.16} [{bar:<10}] {view.free_gpus[place.index]:>5} of {info.total_gpus} free")
    if len(places) > _MOST_PLACES:
        lines.append(f"and {len(places) - _MOST_PLACES} places more")
    return "\n".join(lines)


def _job_text(job: Job, now: float) -> str:
    counts = f"{job.gpu_counts[0]}" if len(job.gpu_counts) == 1 else f"{job.gpu_counts[0]} to {job.gpu_counts[-1]}"
    left = "" if job.deadline_seconds == inf else f", deadline in {job.deadline_seconds - now:.0f} s"
    waits = f"waits {now - job.submitted_seconds:.0f} s"
    return f"{job.kind}, {job.estimated_units:.4g} units, {counts} devices, {waits}{left}"
