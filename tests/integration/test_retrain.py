"""A night: from a site's database to a candidate, whatever the site is like; or a reason, and the live policy stays."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from site_database import A100, CLUSTER, LOWER_MHZ, Site, fill, site_config

from slurm_energy.cli.main import main
from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName, GpuTypeName
from slurm_energy.domain.promotion import Stage
from slurm_energy.errors import SchemaVersionError, TrainingError
from slurm_energy.evaluation.gate.sheet import STAGE_NAMES, ScoreSheet, StageResult, StageVerdict
from slurm_energy.learning.nightly import judgement, night, tuning
from slurm_energy.learning.nightly.administration import candidate_desk
from slurm_energy.learning.nightly.night import retrain
from slurm_energy.learning.nightly.tuning import Cost, SiteReplay
from slurm_energy.policy.candidate import CandidatePolicy, candidates_folder, write_candidate
from slurm_energy.reporting.candidates import story_lines
from slurm_energy.store.promotion import add_candidate, candidate_rows, move_candidate, stage_of
from slurm_energy.store.session import Session, open_engine, run_in_transaction, store_session
from slurm_energy.twin.workloads.formats import load_workload

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replays whose cost is read off the policy: what is tested here is the night around them."""
    replayed: list[str] = []

    def costs(self: SiteReplay, texts: list[str]) -> list[Cost | None]:
        for text in texts:
            if self._key(text) not in self.evaluations.known:
                replayed.append(self._key(text))
                joules = 100.0 if "total-cost" not in text else 90.0
                self.evaluations.keep(self._key(text), Cost(joules=joules, turnaround_seconds=10.0, failed_share=0.0))
        return [self.evaluations.known[self._key(text)] for text in texts]

    monkeypatch.setattr(SiteReplay, "costs", costs)
    return replayed


def run(config: Config) -> tuple[CandidatePolicy, list[str]]:
    said: list[str] = []
    with night.undisturbed(config):
        found = retrain(config, say=said.append, actor="root", seed=3)
    assert found.candidate is not None
    return found.candidate, said


def test_a_night_leaves_a_candidate_with_the_clocks_of_names_and_the_prices_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "MAX_GENERATIONS", 2)
    monkeypatch.setattr(tuning, "POPULATION", 3)
    config = site_config(tmp_path)
    fill(config, Site())
    candidate, said = run(config)
    assert candidate.folder is not None
    assert candidate.estimates is not None
    assert len(candidate.estimates.clocks) >= 30
    clock = candidate.estimates.clocks[0].clocks[GpuTypeName(A100)]
    # The names wait for 15 % of their time only: a clock below the one that ran is within the bound.
    assert clock.sm_clock_mhz < LOWER_MHZ
    assert 0.0 < clock.slowdown < 0.05
    assert candidate.figures["held_out_joules"] > 0.0
    assert any("generation 2" in line for line in said)
    engine = open_engine(config.store)
    with store_session(engine, read_only=True) as session:
        assert [row.candidate_id for row in candidate_rows(session, ClusterName(CLUSTER))] == [candidate.candidate_id]
        assert stage_of(session, ClusterName(CLUSTER), candidate.candidate_id) is Stage.CANDIDATE
    engine.dispose()


def test_the_same_night_again_is_the_same_candidate(tmp_path: Path, quick: list[str]) -> None:
    config = site_config(tmp_path)
    fill(config, Site())
    first, _ = run(config)
    replays = len(quick)
    second, _ = run(config)
    assert second == first
    assert len(quick) == replays, "what was replayed is known"


@pytest.mark.parametrize("step", ["name_clocks", "build_twin", "tune", "write_candidate", "add_candidate"])
def test_a_night_that_was_killed_is_resumed_with_the_same_end(
    tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    config, other = site_config(tmp_path / "one"), site_config(tmp_path / "two")
    for one in (config, other):
        Path(one.daemon.state_directory).mkdir(parents=True)
        fill(one, Site())
    undisturbed, _ = run(other)

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(night, step, killed)
        with pytest.raises(Killed):
            run(config)
    monkeypatch.setattr(time, "time", lambda: NOW + 3600.0)
    resumed, _ = run(config)
    assert replace(resumed, folder=None) == replace(undisturbed, folder=None)


def test_fewer_than_200_jobs_are_refused_with_the_reason(tmp_path: Path) -> None:
    config = site_config(tmp_path)
    fill(config, Site(jobs=150))
    with pytest.raises(TrainingError, match=r"150 jobs .* at least 200 .*live policy stays"):
        run(config)
    assert not list((tmp_path / "state" / "candidates").glob("2*"))


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (Site(first_user_share=0.8), "user 1000 has 8"),
        (Site(gap_days=(10.0, 20.0)), "days without an ended job"),
        (Site(jobs=800, recent_factor=3.0), "only the last 14 days"),
        (Site(jobs=500, vanished="v100-sxm2-16gb"), "v100-sxm2-16gb has had no job"),
        (Site(unmeasured=True), "no run has a reading"),
    ],
)
def test_what_is_odd_about_a_history_is_said(tmp_path: Path, quick: list[str], site: Site, words: str) -> None:
    config = site_config(tmp_path)
    fill(config, site)
    candidate, said = run(config)
    assert any(words in note for note in candidate.data.notes), candidate.data.notes
    assert any(words in line for line in said)
    if site.vanished:
        assert site.vanished not in str(candidate.estimates)
    if site.unmeasured:
        assert candidate.estimates is None


def test_night_that_failed_is_not_resumed(tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = site_config(tmp_path)
    fill(config, Site(jobs=150))
    with pytest.raises(TrainingError, match="150 jobs"):
        run(config)
    monkeypatch.setattr(time, "time", lambda: NOW + 60.0)
    with pytest.raises(TrainingError, match="could not be replayed"), monkeypatch.context() as patch:
        patch.setattr(night, "read_history", lambda *_: (_ for _ in ()).throw(TrainingError("could not be replayed")))
        run(config)
    assert not (candidates_folder(config) / night.WORK_FOLDER).exists()
    replayed: list[float] = []

    def read(engine: Any, cluster: Any, until_seconds: float, min_jobs: int) -> Any:
        replayed.append(until_seconds)
        raise TrainingError("enough")

    monkeypatch.setattr(night, "read_history", read)
    with pytest.raises(TrainingError, match="enough"):
        run(config)
    assert replayed == [NOW + 60.0], "a new night begins now, not when the failed one did"


def site_file(tmp_path: Path, config: Config) -> Path:
    file = tmp_path / "slurm-energy.toml"
    file.write_text(
        f'[cluster]\nname = "{CLUSTER}"\n[store]\nurl = "{config.store.url}"\n'
        f'[daemon]\nstate_directory = "{config.daemon.state_directory}"\n'
    )
    return file


def test_gate_runs_under_the_lock_and_before_the_work_folder_goes(
    tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = site_config(tmp_path)
    fill(config, Site())
    seen: list[float] = []

    def judge(made: night.Night, given: Config, say: Any, seconds_left: float) -> bool:
        with pytest.raises(TrainingError, match="another retrain is at work"), night.undisturbed(given):
            pass
        assert made.twin is not None
        assert made.twin.held_out.exists()
        seen.append(seconds_left)
        return True

    monkeypatch.setattr(judgement, "judge_night", judge)
    assert main(["--config", str(site_file(tmp_path, config)), "retrain"]) == 0
    assert len(seen) == 1
    assert 0.0 < seen[0] < 60.0 * Config().nightly.max_minutes
    assert not (candidates_folder(config) / night.WORK_FOLDER).exists()


def test_without_the_gates_packages_a_night_works_unjudged_and_says_what_to_install(
    tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = site_config(tmp_path)
    fill(config, Site())
    file = str(site_file(tmp_path, config))
    monkeypatch.setattr("slurm_energy.cli.retrain.find_spec", lambda name: None if name == "z3" else name)
    monkeypatch.delattr("slurm_energy.learning.nightly.judgement")
    monkeypatch.setitem(sys.modules, "slurm_energy.learning.nightly.judgement", None)
    assert main(["--config", file, "retrain"]) == 1
    assert "z3" in (said := capfd.readouterr().err)
    assert "slurm-energy[gate]" in said
    assert main(["--config", file, "retrain", "--no-judge"]) == 0


def test_oldest_folders_are_packed_away_at_the_end_of_a_night(
    tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = site_config(tmp_path)
    fill(config, Site())
    file = site_file(tmp_path, config)
    file.write_text(f"{file.read_text()}[nightly]\nkeep = 1\n")
    for day in (0, 1):
        monkeypatch.setattr(time, "time", lambda day=day: NOW + day * 86_400.0)
        assert main(["--config", str(file), "retrain", "--no-judge"]) == 0
    assert len(list(candidates_folder(config).glob("2*"))) == 1
    assert len(list((candidates_folder(config) / "archive").iterdir())) == 1


def test_only_one_run_works_at_a_time(tmp_path: Path) -> None:
    config = site_config(tmp_path)
    fill(config, Site(jobs=150))
    with night.alone(candidates_folder(config)), pytest.raises(TrainingError, match="another retrain is at work"):
        run(config)


def test_a_database_of_another_schema_says_upgrade(tmp_path: Path) -> None:
    config = site_config(tmp_path)
    open_engine(config.store).dispose()
    with pytest.raises(SchemaVersionError, match="database upgrade"):
        run(config)


def test_time_that_does_not_suffice_for_the_live_policy_ends_with_the_reason(tmp_path: Path) -> None:
    config = site_config(tmp_path, max_minutes=1e-6)
    fill(config, Site(jobs=220))
    with pytest.raises(TrainingError, match="time did not suffice"):
        run(config)


def test_the_command_ends_with_1_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = site_config(tmp_path)
    fill(config, Site(jobs=30))
    file = site_file(tmp_path, config)
    monkeypatch.setattr(time, "time", lambda: NOW)
    assert main(["--config", str(file), "retrain"]) == 1
    assert "30 jobs" in capfd.readouterr().err


def sheet(stopped: str = "") -> ScoreSheet:
    stages = [
        StageResult(
            stage=name,
            verdict=StageVerdict.STOPPED if name == stopped else StageVerdict.PASSED,
            summary=f"{name} of a test",
            score=0.8,
        )
        for name in STAGE_NAMES
    ]
    return ScoreSheet(
        candidate_id="c", incumbent_id="configured", judged_at_seconds=NOW, stages=tuple(stages), value=0.8
    )


@pytest.mark.parametrize(("stopped", "stage"), [("", Stage.SHADOW), ("twin", Stage.REJECTED)])
def test_what_the_gate_says_moves_the_candidate_and_is_shown(
    tmp_path: Path,
    quick: list[str],
    monkeypatch: pytest.MonkeyPatch,
    stopped: str,
    stage: Stage,
) -> None:
    config = site_config(tmp_path)
    fill(config, Site())
    made = retrain(config, say=lambda _: None, actor="root", seed=3)
    assert made.candidate is not None
    assert made.candidate.policy is not None, "the fake replays like total-cost better"
    seen: list[Any] = []

    def judge(*given: Any) -> ScoreSheet:
        seen.append(given[2])
        return sheet(stopped)

    monkeypatch.setattr(judgement, "judge", judge)
    assert judgement.judge_night(made, config, lambda _: None) is not bool(stopped)
    history = seen[0]
    assert made.twin is not None
    checked, judged = (load_workload(path).jobs for path in (made.twin.held_out, made.twin.judged))
    later = sorted(state.submitted_at_seconds for state in made.history.held_out)
    half, most = len(later) // 2, config.nightly.replayed_jobs
    # Workloads begin at 0: the check has the first half's jobs, the gate the second half's.
    for jobs, times in ((checked, later[:half][:most]), (judged, later[half:][:most])):
        assert [job.submitted_seconds for job in jobs] == pytest.approx([one - times[0] for one in times], abs=1.0)
    assert {job.user for job in history.twin.make_workload(1).jobs} <= {job.user for job in judged}
    assert {job.user for job in judged} <= set(history.twin.user_ids)
    first, second = history.twin.make_workload(1), history.twin.make_workload(2)
    assert [job.user for job in first.jobs] != [job.user for job in second.jobs]
    assert sum(history.load.gpu_hours) > 100.0
    with candidate_desk(config) as desk:
        story = desk.story(made.candidate.candidate_id)
    assert story.line.stage is stage
    page = "\n".join(story_lines(story))
    assert "HyperScore" in page
    assert ("STOPPED" in page) == bool(stopped)
    assert "twin of a test" in page


def worthless(self: SiteReplay, texts: list[str]) -> list[Cost | None]:
    """Every policy costs the same."""
    return [Cost(joules=100.0, turnaround_seconds=10.0, failed_share=0.0) for _ in texts]


def test_clocks_of_names_alone_are_judged_too_and_worthless_prices_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SiteReplay, "costs", worthless)
    config = site_config(tmp_path)
    fill(config, Site())
    made = retrain(config, say=lambda _: None, actor="root", seed=3)
    assert made.candidate is not None
    assert made.candidate.parts == ("estimates.json",)
    monkeypatch.setattr(judgement, "judge", lambda *_: sheet(""))
    said: list[str] = []
    assert judgement.judge_night(made, config, said.append)
    assert said[-1].endswith("passed the gate and is in shadow")
    with candidate_desk(config) as desk:
        page = "\n".join(story_lines(desk.story(made.candidate.candidate_id)))
    assert "prices found in the search cost +0.00 %" in page
    assert "not proposed" in page


def test_a_night_without_a_gain_proposes_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SiteReplay, "costs", worthless)
    config = site_config(tmp_path)
    fill(config, Site(unmeasured=True))
    assert main(["--config", str(site_file(tmp_path, config)), "retrain", "--no-judge"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("no candidate: nothing would be gained by one")
    assert "no name has measured runs at two clocks" in out
    with candidate_desk(config) as desk:
        assert desk.lines() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"promote": "off"}, "nightly.promote is off"),
        ({"person_for_different": True}, "very different"),
        ({"paused": True}, "promotion is paused"),
        ({"challenger": "other"}, "other is in shadow"),
    ],
)
def test_a_candidate_that_waits_says_for_what(
    tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
) -> None:
    settings = {name: value for name, value in change.items() if name in ("promote", "person_for_different")}
    config = site_config(tmp_path, **settings)
    fill(config, Site())
    made = retrain(config, say=lambda _: None, actor="root", seed=3)
    assert made.candidate is not None
    with candidate_desk(config) as desk:
        if change.get("paused"):
            desk.pause("root", paused=True)
    if "challenger" in change:
        write_candidate(replace(made.candidate, candidate_id="other"), tmp_path / "other")
        engine = open_engine(config.store)
        run_in_transaction(engine, lambda session: in_shadow(session, tmp_path / "other"))
        engine.dispose()
    monkeypatch.setattr(
        judgement, "judge", lambda *_: replace(sheet(""), needs_person="person_for_different" in change)
    )
    said: list[str] = []
    assert judgement.judge_night(made, config, said.append)
    assert "passed the gate and waits" in said[-1]
    assert words in said[-1]
    with candidate_desk(config) as desk:
        assert words in "\n".join(story_lines(desk.story(made.candidate.candidate_id)))


def in_shadow(session: Session, folder: Path) -> None:
    cluster = ClusterName(CLUSTER)
    add_candidate(
        session,
        cluster,
        candidate_id="other",
        made_at_seconds=NOW - 1.0,
        parent_id="",
        folder=str(folder),
        document={},
        actor="root",
    )
    move_candidate(session, cluster, "other", Stage.SHADOW, at_seconds=NOW - 1.0, actor="root", reason="")
