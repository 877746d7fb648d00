"""From trials in a node's report to the clock that the next job of the name begins with, on every database."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, inspect
from store_samples import A100, CLUSTER, SUBMITTED, make_gpu, make_key, make_report, make_state

from slurm_energy.cli.main import cli
from slurm_energy.config import ClusterConfig, Config, DaemonConfig, PolicyConfig, StoreConfig
from slurm_energy.daemon.decide import Decided, Known, create_decider
from slurm_energy.daemon.ipc.frames import ClockPart
from slurm_energy.daemon.recorder.history import HistoryLoop
from slurm_energy.daemon.recorder.link import RecorderLink
from slurm_energy.daemon.recorder.recorder import ChangedJobs
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState, PartitionState
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import JobId, PartitionName
from slurm_energy.domain.trials import ClockTrial
from slurm_energy.energy_model.curves import curve_source
from slurm_energy.energy_model.site_curves import use_site_curves
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.store.energy import record_report, stored_reports
from slurm_energy.store.explain import explain
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.session import store_session
from slurm_energy.wire.messages import SubmittedFields

pytest_plugins = ["database_fixtures"]


def trial(clock: int = 1110, **changes: Any) -> ClockTrial:
    values: dict[str, Any] = {
        "gpu_type": A100,
        "sm_clock_mhz": clock,
        "default_clock_mhz": 1410,
        "at_seconds": 900.0,
        "watts": 240.0,
        "default_watts": 330.0,
        "slowdown": 0.02,
        "error": 0.003,
        "kept": True,
        "source": "power",
    }
    return ClockTrial(**{**values, **changes})


def store(
    engine: Engine, *trials: ClockTrial, job_id: int = 77, flags: tuple[QualityFlag, ...] = (), name: str = "steady"
) -> None:
    report = make_report(make_gpu(flags=flags), job_id=job_id, decision_id=None, trials=trials)
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, (make_state(job_id, name=name, admin_comment=""),))
        record_report(session, report, make_key(job_id), submit_time_known=True)


def site(trials: str = "on") -> Config:
    return Config(
        policy=PolicyConfig(name="oracle", clock_trials=trials, min_saving_per_slowdown=0.0),  # type: ignore[arg-type]  # a test's own choice
        store=StoreConfig(),
    )


def history(engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: str = "on") -> JobHistory:
    """Return what the recorder tells the answering process."""
    config = replace(
        site(trials), cluster=ClusterConfig(name=CLUSTER), daemon=DaemonConfig(state_directory=str(tmp_path / "state"))
    )
    monkeypatch.setattr("slurm_energy.daemon.recorder.history.time.time", lambda: SUBMITTED + 86_400.0)
    used: list[JobHistory] = [JobHistory()]
    link = RecorderLink(used.append)
    told: list[object] = []
    with store_session(engine, read_only=True) as session:
        HistoryLoop(config, told.append, ChangedJobs())._send_clocks(session)
    assert [type(frame) for frame in told] == ([] if trials == "off" else [ClockPart])
    for frame in told:
        link.receive(frame)
    return used[-1]


def decide(known: JobHistory, setting: str = "on", slurm_type: str = "a100", **fields: Any) -> Decided:
    nodes = NodeState(
        name="n1",  # type: ignore[arg-type]  # a plain name will do
        partitions=(PartitionName("a100"),),
        states=("IDLE",),
        available=True,
        cpus=64,
        cpus_allocated=0,
        gpus=(NodeGpus(slurm_type=slurm_type, count=4, allocated=0),),
    )
    partition = PartitionState(name=PartitionName("a100"), is_default=True, up=True)
    snapshot = ClusterSnapshot(cluster=CLUSTER, taken_at_seconds=SUBMITTED, partitions=(partition,), nodes=(nodes,))
    job = SubmittedFields(**{"user_id": 1000, "name": "steady", "tres_per_job": "gres/gpu:1", **fields})
    return create_decider(site(setting)).decide(job, Known(snapshot=snapshot, history=known), SUBMITTED + 1.0)


def test_trials_are_stored_and_come_back_as_they_were_and_are_shown(engine: Engine) -> None:
    trials = (trial(1275, kept=False, slowdown=None, error=None, source="", reason="power does not repeat"), trial())
    store(engine, *trials)
    with store_session(engine, read_only=True) as session:
        assert stored_reports(session, CLUSTER, JobId(77))[0].trials == trials
        record = explain(session, CLUSTER, JobId(77))
    assert record is not None and record.trials == trials
    assert "clock_trial" in inspect(engine).get_table_names()


def test_a_report_that_comes_again_with_more_trials_adds_them(engine: Engine) -> None:
    store(engine, trial(1275))
    store(engine, trial(1275), trial(1110))
    with store_session(engine, read_only=True) as session:
        assert [one.sm_clock_mhz for one in stored_reports(session, CLUSTER, JobId(77))[0].trials] == [1275, 1110]


def test_the_next_job_of_the_name_begins_with_what_was_measured(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store(engine, trial(1275, slowdown=0.01, watts=300.0), trial(1110))
    known = history(engine, monkeypatch, tmp_path)
    decided = decide(known)
    (choice,) = decided.decision.clocks
    assert choice.sm_clock_mhz == 1110
    assert choice.predicted_slowdown == pytest.approx(0.02)
    assert choice.predicted_energy_change == pytest.approx(240.0 / 330.0 * 1.02 - 1.0)
    assert any("measured in 1 run of this name" in note for note in decided.decision.notes)
    assert decided.entry.trial_bounds == {A100: 0.05}
    # Another name, and the same where its user or the site wants none of it, has the table's clock.
    table = decide(known, name="other").decision.clocks
    assert table[0].sm_clock_mhz > 1110
    assert decide(known, trials=False).decision.clocks == table
    assert decide(known, "off").decision.clocks == table
    assert decide(known, "off").entry.trial_bounds == {}


def test_a_clock_whose_slowdown_with_its_error_passes_the_users_bound_is_not_begun_with(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store(engine, trial(slowdown=0.02, error=0.003))
    known = history(engine, monkeypatch, tmp_path)
    assert decide(known, max_slowdown=0.0256).decision.clocks[0].sm_clock_mhz == 1110
    assert all(clock.sm_clock_mhz != 1110 for clock in decide(known, max_slowdown=0.0252).decision.clocks)


@pytest.mark.parametrize("flags", [(QualityFlag.SHARED_GPU,), (QualityFlag.MIG,), (QualityFlag.GPU_IDENTITY_UNKNOWN,)])
def test_trials_on_a_gpu_that_was_not_the_jobs_alone_teach_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: tuple[QualityFlag, ...]
) -> None:
    store(engine, trial(), flags=flags)
    assert history(engine, monkeypatch, tmp_path).clocks == {}


def test_a_site_that_switched_trials_off_reads_none(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store(engine, trial())
    assert history(engine, monkeypatch, tmp_path, "off").clocks == {}


@pytest.mark.parametrize(
    ("setting", "asked", "expected"),
    [("off", True, False), ("asked", None, False), ("asked", True, True), ("on", None, True), ("on", False, False)],
)
def test_site_and_user_switch_trials(setting: str, asked: bool | None, expected: bool) -> None:
    assert bool(decide(JobHistory(), setting, trials=asked).entry.trial_bounds) is expected


@pytest.mark.parametrize(
    "fields", [{"deadline": "now+2hours"}, {"tres_frequency": "gpu:low"}, {"max_slowdown": 0.005}], ids=str
)
def test_no_trials_with_a_deadline_a_clock_of_the_users_own_or_a_bound_that_leaves_no_room(
    fields: dict[str, Any],
) -> None:
    assert decide(JobHistory(), **fields).entry.trial_bounds == {}


@pytest.mark.parametrize(
    ("slurm_type", "asked", "expected"),
    [("p100", True, False), ("t4", None, True), ("t4", True, True)],
    ids=["no clock to lock", "no measured program", "no measured program, and asked for"],
)
def test_boards_that_lock_no_clock_have_no_trials_and_those_of_which_no_program_was_measured_have(
    slurm_type: str, asked: bool | None, expected: bool
) -> None:
    assert bool(decide(JobHistory(), slurm_type=slurm_type, trials=asked).entry.trial_bounds) is expected


def test_curves_of_jobs_are_fitted_from_the_database_and_too_little_is_said(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed: the twin extra has it")
    monkeypatch.setattr("slurm_energy.cli.boards.time.time", lambda: SUBMITTED + 86_400.0)
    config = tmp_path / "config.toml"
    config.write_text(f'[cluster]\nname = "{CLUSTER}"\n', encoding="utf-8")
    monkeypatch.setenv("SLURM_ENERGY_CONFIG", str(config))
    url = engine.url.render_as_string(hide_password=False)
    output = tmp_path / "site-curves.json"
    call = ["calibrate", "--from-history", "--database", url, "--output", str(output)]
    nothing = CliRunner().invoke(cli, call, standalone_mode=False)
    assert (nothing.return_value, output.exists()) == (1, False)
    assert "no clock was tried in a job of cluster lab in 90 days" in capfd.readouterr().err
    for number, name in enumerate(("steady", "other", "third")):
        clocks = [
            trial(clock, slowdown=0.3 * (1410 / clock - 1), watts=110.0 + 220.0 * (clock / 1410) ** 3)
            for clock in (1335, 1200, 1110)
        ]
        store(engine, *clocks, job_id=77 + number, name=name)
        result = CliRunner().invoke(cli, call, standalone_mode=False)
        assert result.return_value == (0 if number == 2 else 1), result.output
        assert output.exists() is (number == 2)
        assert ("too little in" in result.output) is (number < 2)
    assert "3 curves, 1110 to 1410 MHz, from 3 jobs of 3 names" in result.output
    use_site_curves(output)
    try:
        assert curve_source(A100) == "measured here"
    finally:
        use_site_curves(None)
