"""What the recorder tells the answering process of lower clocks: a network's expectation, or nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon.ipc.frames import PredictionPart
from slurm_energy.daemon.recorder.history import HistoryLoop
from slurm_energy.daemon.recorder.link import RecorderLink
from slurm_energy.daemon.recorder.recorder import ChangedJobs
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import MeasuredRun
from slurm_energy.errors import CheckpointError
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.policy.gnn.outcomes.graph import RunVertex
from slurm_energy.policy.gnn.outcomes.site import run_records

A100 = GpuTypeName("a100-sxm4-80gb")
RUN = MeasuredRun(user=1, name="bert", gpu_type=A100, gpus=1, seconds=600.0, watts=210.0, ended_at_seconds=1e9)
ON = Config(policy=PolicyConfig(clock_predictions="network"))


@pytest.fixture(autouse=True)
def no_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read no scripts: there is no database."""
    monkeypatch.setattr("slurm_energy.daemon.recorder.history.read_scripts", lambda *_: {})


def told(
    runs: Sequence[MeasuredRun], config: Config = ON, *corrections: MeasuredRun
) -> tuple[list[object], JobHistory]:
    """Return the frames and what the answering process knows by them."""
    frames: list[object] = []
    used = [JobHistory()]
    loop, link = HistoryLoop(config, frames.append, ChangedJobs()), RecorderLink(used.append)
    loop._send_predictions(runs)
    for one in corrections:
        loop._send_predictions([one], [(one.user, one.name)])
    for frame in frames:
        link.receive(frame)
    return frames, used[-1]


def test_names_that_ran_and_jobs_that_never_ran_are_predicted() -> None:
    frames, history = told([RUN])
    assert {type(frame) for frame in frames} == {PredictionPart}
    known = history.predicted_of(1, "bert", None)
    assert known is not None and known.own_runs == 1 and set(known.clocks) == {A100}
    assert history.predicted_of(2, "other", None) is not None


def test_a_run_that_ended_corrects_its_name_alone() -> None:
    _, history = told([RUN], ON, replace(RUN, name="later", watts=390.0))
    later, before = history.predicted_of(1, "later", None), history.predicted_of(1, "bert", None)
    assert later is not None and later.own_runs == 1
    assert before is not None and before.alike_runs == 0


def test_nothing_is_sent_where_tables_were_asked_for() -> None:
    assert told([RUN], Config())[0] == []


def test_tables_count_where_the_network_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise CheckpointError("cut off")

    monkeypatch.setattr("slurm_energy.policy.gnn.outcomes.inference.loaded_network", refuse)
    (frame,), history = told([RUN])
    assert isinstance(frame, PredictionPart) and frame.estimates == () and frame.first
    assert history.predicted_of(1, "bert", None) is None


def test_a_correction_looks_at_the_runs_of_its_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def counted(runs: Sequence[MeasuredRun], *rest: object) -> list[RunVertex]:
        looked.append(len(runs))
        return list(run_records(runs, *rest))  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr("slurm_energy.policy.gnn.outcomes.site.run_records", counted)
    loop = loop_of([replace(RUN, name=f"name{number}") for number in range(50)], [])
    loop._correct_work([(1, "name7")])
    assert looked == [50, 1]


def test_all_runs_are_looked_at_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("slurm_energy.daemon.recorder.history.time.monotonic", lambda: clock[0])
    frames: list[object] = []
    loop = loop_of([RUN], frames)
    for minutes in (10, 20, 50, 60):
        clock[0] = 60.0 * minutes
        loop._send_all_work(NO_SESSION)
    assert sum(isinstance(frame, PredictionPart) and frame.first for frame in frames) == 2


def test_a_name_that_is_corrected_keeps_what_other_names_say() -> None:
    frames, _ = told([RUN, replace(RUN, name="other")], ON, replace(RUN, watts=390.0, ended_at_seconds=1e9 + 60.0))
    corrected = [part for part in frames if isinstance(part, PredictionPart)][-1]
    ((_, name, found),) = corrected.estimates
    assert (name, found.own_runs, found.alike_runs) == ("bert", 1, 1)


NO_SESSION: Any = None


def loop_of(runs: Sequence[MeasuredRun], frames: list[object]) -> HistoryLoop:
    """Return a loop that has looked at all of these runs."""
    loop = HistoryLoop(ON, frames.append, ChangedJobs())
    for number, one in enumerate(runs):
        loop._memory._measured.put(number, (one.user, one.name), (one.user, one.name), one)
    loop._send_all_work(NO_SESSION)
    return loop
