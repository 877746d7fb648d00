"""One workload twice in a laboratory cluster: under Slurm's default and under an energy policy."""

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from slurm_energy.config import StoreConfig
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.errors import LabError
from slurm_energy.lab.cluster import Lab, LabSpec, start_lab
from slurm_energy.lab.jobs import ENDED_STATES, submit
from slurm_energy.store.energy import stored_reports
from slurm_energy.store.explain import explain
from slurm_energy.store.session import open_engine, store_session

SAMPLE = Path(__file__).resolve().parent / "workloads" / "philly_sample.csv"
_COLUMNS = ("submit_offset_seconds", "duration_seconds", "gpus", "partition", "profile")
_QUEUE_LIMIT_SECONDS = 300.0
_ACCOUNT_LIMIT_SECONDS = 30.0
_POLL_SECONDS = 0.5
# A limit that none of the sample's jobs comes near: 25 minutes of wall time.
_TIME_LIMIT_MINUTES = 25

Tell = Callable[[str, int, int], None]
"""Called with a phase and how many of how many jobs are through it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """One row of a workload file; times are device seconds."""

    offset_seconds: float
    duration_seconds: float
    gpus: int
    partition: str
    profile: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """What came of one job; times are device seconds."""

    partition: str
    joules: float | None
    """Measured by the hooks and read from the database; None when unknown."""
    wait_seconds: float
    run_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRow:
    """One line of the comparison."""

    partition: str
    jobs: int
    kilojoules: tuple[float, float]
    """Under the default and under the policy."""
    wait_seconds: tuple[float, float]
    run_seconds: tuple[float, float]

    @property
    def saving(self) -> float:
        """Share of the default's energy that the policy saved."""
        return 1.0 - self.kilojoules[1] / self.kilojoules[0] if self.kilojoules[0] else 0.0

    @property
    def slowdown(self) -> float:
        """Relative change of the mean run time."""
        return self.run_seconds[1] / self.run_seconds[0] - 1.0 if self.run_seconds[0] else 0.0


def read_workload(path: Path = SAMPLE) -> tuple[DemoJob, ...]:
    """Return the jobs of a workload file, in order of submission.

    Raises:
        LabError: a column is missing or a value is no number, with file, line, column and value.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [column for column in _COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise LabError(f"{path} lacks the columns {', '.join(missing)}")
        jobs = [_read_row(path, reader.line_num, row) for row in reader]
    return tuple(sorted(jobs, key=lambda job: job.offset_seconds))


def _read_row(path: Path, line: int, row: dict[str, str]) -> DemoJob:
    numbers: dict[str, float] = {}
    for column in _COLUMNS[:3]:
        try:
            numbers[column] = float(row[column])
        except (TypeError, ValueError):
            raise LabError(f"{path} line {line}, {column}: {row[column]!r} is no number") from None
        if not 0 <= numbers[column] < 1e7:
            raise LabError(f"{path} line {line}, {column}: {row[column]} is not between 0 and 1e7")
    return DemoJob(
        offset_seconds=numbers["submit_offset_seconds"],
        duration_seconds=numbers["duration_seconds"],
        gpus=int(numbers["gpus"]),
        partition=row["partition"],
        profile=row["profile"],
    )


def run_workload(policy: str, jobs: Sequence[DemoJob], tell: Tell) -> tuple[DemoOutcome, ...]:
    """Run the jobs in a laboratory of their own under one policy and return what the database says of each.

    Raises:
        LabError: the laboratory does not start, or a job does not end or is not accounted for in time.
    """
    tell("starting", 0, len(jobs))
    spec = LabSpec(name=f"demo-{policy}", settings={"policy": {"name": policy}, "plugin": {"message": True}})
    with start_lab(spec, owned=True) as lab:
        ids = _submit_all(lab, jobs, tell)
        _await_end(lab, ids, tell)
        return _await_accounts(lab, jobs, ids, tell)


def _submit_all(lab: Lab, jobs: Sequence[DemoJob], tell: Tell) -> list[int]:
    begin = time.monotonic()
    ids: list[int] = []
    for job in jobs:
        time.sleep(max(0.0, begin + job.offset_seconds / lab.spec.time_scale - time.monotonic()))
        arguments = ["-p", job.partition, f"--gres=gpu:{job.gpus}", "-t", str(_TIME_LIMIT_MINUTES), "-o", "/dev/null"]
        work = f"simgpu-workload --profile {job.profile} --seconds-at-default {job.duration_seconds:g}"
        ids.append(submit(lab, [*arguments, "-J", f"philly-{len(ids)}"], wrap=work))
        tell("submitting", len(ids), len(jobs))
    return ids


def _await_end(lab: Lab, ids: Sequence[int], tell: Tell) -> None:
    end = time.monotonic() + _QUEUE_LIMIT_SECONDS
    while True:
        said = lab.run(["squeue", "-h", "-a", "-t", "all", "-o", "%i %T"], check=True).stdout
        states = dict(line.split() for line in said.splitlines())
        ended = [states.get(str(number), "COMPLETED") for number in ids]
        done = sum(state in ENDED_STATES for state in ended)
        tell("running", done, len(ids))
        wrong = sorted({state for state in ended if state in ENDED_STATES - {"COMPLETED"}})
        if wrong:
            raise LabError(f"a job of lab {lab.name} ended as {', '.join(wrong)}; logs were in {lab.layout.log}")
        if done == len(ids):
            return
        if time.monotonic() > end:
            raise LabError(f"{len(ids) - done} jobs of lab {lab.name} have not ended after {_QUEUE_LIMIT_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)


def _await_accounts(lab: Lab, jobs: Sequence[DemoJob], ids: Sequence[int], tell: Tell) -> tuple[DemoOutcome, ...]:
    end = time.monotonic() + _ACCOUNT_LIMIT_SECONDS
    engine = open_engine(StoreConfig(url=f"sqlite:///{lab.layout.database}"))
    cluster = ClusterName(lab.spec.cluster_name)
    found: dict[int, DemoOutcome] = {}
    try:
        while True:
            with store_session(engine, read_only=True) as session:
                for job, number in zip(jobs, ids, strict=True):
                    if number in found:
                        continue
                    record = explain(session, cluster, JobId(number))
                    reports = stored_reports(session, cluster, JobId(number))
                    if record is None or not reports or record.decision is None:
                        continue
                    started = min(report.started_at_seconds for report in reports)
                    found[number] = DemoOutcome(
                        partition=job.partition,
                        joules=record.job.gpu.joules,
                        # Slurm's own times are whole seconds, each a minute of device time.
                        wait_seconds=(started - record.decision.decided_at_seconds) * lab.spec.time_scale,
                        run_seconds=max(gpu.coverage_seconds for gpu in record.gpus),
                    )
            tell("accounting", len(found), len(ids))
            if len(found) == len(ids):
                return tuple(found[number] for number in ids)
            if time.monotonic() > end:
                raise LabError(f"{len(ids) - len(found)} jobs have no energy after {_ACCOUNT_LIMIT_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
    finally:
        engine.dispose()


def compare(default: Sequence[DemoOutcome], policy: Sequence[DemoOutcome]) -> tuple[DemoRow, ...]:
    """Return a row per partition and one for all; both runs hold the same jobs in the same order.

    Raises:
        LabError: a job's energy is unknown in one of the runs, so that sums would mislead.
    """
    unknown = sum(outcome.joules is None for outcome in (*default, *policy))
    if unknown:
        raise LabError(f"the energy of {unknown} jobs is unknown: no honest comparison can be made")
    partitions = sorted({outcome.partition for outcome in default})
    return tuple(_row(name, default, policy) for name in (*partitions, "total"))


def _row(name: str, default: Sequence[DemoOutcome], policy: Sequence[DemoOutcome]) -> DemoRow:
    pairs = [(a, b) for a, b in zip(default, policy, strict=True) if name in {a.partition, "total"}]

    def both(value: Callable[[DemoOutcome], float], fold: Callable[[list[float]], float]) -> tuple[float, float]:
        return fold([value(a) for a, _ in pairs]), fold([value(b) for _, b in pairs])

    return DemoRow(
        partition=name,
        jobs=len(pairs),
        kilojoules=both(lambda outcome: (outcome.joules or 0.0) / 1000.0, sum),
        wait_seconds=both(lambda outcome: outcome.wait_seconds, fmean),
        run_seconds=both(lambda outcome: outcome.run_seconds, fmean),
    )
