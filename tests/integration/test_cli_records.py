"""Reports and explanations on the command line: from a daemon, from the database, and from neither."""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from sqlalchemy import update
from store_samples import (
    CLUSTER,
    HOSTILE_NAME,
    decision_record,
    make_decision,
    make_key,
    make_report,
    make_request,
    make_state,
    record_decision,
    unknown_gpu,
)

from slurm_energy.cli.main import main
from slurm_energy.config import StoreConfig
from slurm_energy.domain.report import EnergyReport, EnergySum, GroupEnergyRecord, encode_record
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import open_engine, store_session
from slurm_energy.store.tables import NodeEnergyRow
from slurm_energy.wire.codec import Message
from slurm_energy.wire.messages import parse_query


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database file with job 77, measured, and job 78, without a known reading."""
    path = tmp_path_factory.mktemp("filled") / "energy.sqlite"
    url = f"sqlite:///{path}"
    upgrade(url)
    engine = open_engine(StoreConfig(url=url))
    with store_session(engine) as session:
        record_decision(session, make_decision(), make_request(), CLUSTER)
        upsert_jobs(session, CLUSTER, [make_state(77, name=HOSTILE_NAME), make_state(78, admin_comment="")])
        record_report(session, make_report(), make_key())
        record_report(session, make_report(unknown_gpu(5), job_id=78, decision_id=None, host=None), make_key(78))
    engine.dispose()
    return path


@pytest.fixture
def url(filled: Path, tmp_path: Path) -> str:
    """Return the URL of a copy of that database."""
    return f"sqlite:///{shutil.copy(filled, tmp_path / 'energy.sqlite')}"


@pytest.fixture(autouse=True)
def _site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_ENERGY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_ENERGY_CLUSTER_NAME", CLUSTER)
    monkeypatch.setenv("SLURM_ENERGY_DAEMON_SOCKET_PATH", str(tmp_path / "energyd.sock"))
    monkeypatch.setenv("SLURM_ENERGY_STORE_URL", f"sqlite:///{tmp_path}/energy.sqlite")


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path / "energyd.sock", Message("refused", {"reason": "job 77 is not yours"}))
    yield daemon
    daemon.close()


def test_a_report_comes_from_the_database_while_the_daemon_is_away(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "job", "77", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(job["job_id"], job["gpu"]["joules"]) for job in found["jobs"]] == [(77, 20000.25)]


def test_unknown_energy_is_null_and_never_zero(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "job", "78", "--json", "--database", url]) == 0
    job = json.loads(capsys.readouterr().out)["jobs"][0]
    assert (job["gpu"]["joules"], job["gpu"]["unknown_readings"]) == (None, 1)
    assert main(["report", "job", "78", "--csv"]) == 0
    row = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert (row["gpu_joules"], row["gpu_unknown_readings"]) == ("", "1")


@pytest.mark.parametrize("words", [["report", "job", "77"], ["explain", "77"], ["report", "user", "ada"]])
def test_a_hostile_job_name_reaches_no_terminal_raw(
    url: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--database", url]) == 0
    out = capsys.readouterr().out
    assert "ada" in out
    assert all(letter.isprintable() or letter == "\n" for letter in out)


def test_explain_tells_what_was_asked_decided_applied_and_measured(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "77"]) == 0
    out = capsys.readouterr().out
    headings = ("Asked", "Decided", "Why", "Applied and observed", "Predicted against actual")
    assert [heading for heading in headings if heading in out] == list(headings)
    assert "1275" in out


@pytest.mark.parametrize("subject", ["user", "partition"])
def test_periods_choose_jobs_by_their_end(url: str, subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", subject, "--since", "2026-09-01", "--until", "2026-10-01", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["jobs"] == 2
    assert main(["report", subject, "--since", "2027-01-01", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["jobs"] == 0


@pytest.mark.parametrize("words", [["report", "job", "9"], ["explain", "9"]])
def test_a_job_that_is_not_there_is_an_error(url: str, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--database", url]) == 1
    said = capfd.readouterr()
    assert said.out == ""
    assert "job 9" in said.err


@pytest.mark.parametrize("words", [["report", "user"], ["explain", "77"]])
def test_a_refusal_is_final_and_the_database_is_not_asked_instead(
    url: str, refusing: FakeDaemon, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert capfd.readouterr().err == "slurm-energy: the daemon refuses: job 77 is not yours\n"
    assert refusing.requests[0].fields["cluster"] == CLUSTER


def test_a_report_comes_from_the_daemon_where_it_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = EnergySum(joules=None)
    total = GroupEnergyRecord(group="total", jobs=0, jobs_without_energy=0, gpu=nothing, host=nothing)
    record = EnergyReport(kind="user", cluster=CLUSTER, total=total)
    daemon = FakeDaemon(tmp_path / "energyd.sock", Message("ok", {"json": encode_record(record)}))
    assert main(["report", "user", "ada", "--since", "2026-09-01", "--json"]) == 0
    daemon.close()
    assert json.loads(capsys.readouterr().out)["kind"] == "user"
    sent = dict(daemon.requests[0].fields)
    assert float(sent.pop("since")) == pytest.approx(1788220800, abs=86400)
    assert sent == {"what": "report-user", "user": "ada", "cluster": CLUSTER}


def test_a_report_by_month_asks_for_this_machines_months(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = EnergySum(joules=None)
    total = GroupEnergyRecord(group="total", jobs=0, jobs_without_energy=0, gpu=nothing, host=nothing)
    record = EnergyReport(kind="account", cluster=CLUSTER, total=total)
    daemon = FakeDaemon(tmp_path / "energyd.sock", Message("ok", {"json": encode_record(record)}))
    words = ["accounts", "physics", "--qos", "high", "--since", "2026-01-01", "--until", "2026-04-01"]
    assert main(["report", *words, "--by", "month,users"]) == 0
    daemon.close()
    sent = dict(daemon.requests[0].fields)
    bounds = [float(word) for word in sent.pop("bounds").split(",")]
    assert [(later - earlier) / 86_400 for earlier, later in pairwise(bounds)] == pytest.approx([31, 28, 31], abs=0.1)
    assert (float(sent.pop("since")), float(sent.pop("until"))) == (bounds[0], bounds[-1])
    assert sent == {"what": "report-account", "account": "physics", "qos": "high", "also": "user", "cluster": CLUSTER}
    parse_query(daemon.requests[0].fields)
    assert capsys.readouterr().out.strip() == "No jobs match."


@pytest.mark.parametrize("by", ["year", "day,week", "cluster", "month,gpu"])
def test_what_a_report_cannot_be_by_is_a_wrong_usage(by: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "users", "--by", by]) == 2
    assert "is not day, week or month" in capfd.readouterr().err


@pytest.mark.parametrize("answer", ['{"format": 9}', "[]", "{", '{"format": 1, "record": {"kind": "x"}}', ""])
def test_a_malformed_answer_is_a_clear_error(tmp_path: Path, answer: str, capfd: pytest.CaptureFixture[str]) -> None:
    daemon = FakeDaemon(tmp_path / "energyd.sock", Message("ok", {"json": answer}))
    assert main(["report", "user"]) == 1
    daemon.close()
    assert "the daemon's answer cannot be read" in capfd.readouterr().err


def test_neither_daemon_nor_database_names_both_ways_out(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "user"]) == 1
    said = capfd.readouterr().err
    assert "is slurm-energyd running?" in said
    assert "--database URL" in said


def test_a_missing_database_file_is_not_made_by_a_question(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.sqlite"
    for words in (["report", "user"], ["database", "status"]):
        assert main([*words, "--database", f"sqlite:///{path}"]) == 1
        assert f"{path} does not exist" in capfd.readouterr().err
    assert not path.exists()


def test_optimize_brings_in_what_waits_and_makes_all_sums_again_only_when_asked(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    brought = []
    for more in ([], [], ["--rebuild-sums"]):
        assert main(["database", "optimize", *more, "--database", url]) == 0
        brought.append(int(capfd.readouterr().out.split()[0]))
    assert brought == [2, 0, 2]


def test_a_database_without_schema_is_refused_and_upgraded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/new.sqlite"
    open_engine(StoreConfig(url=url)).dispose()
    assert main(["database", "status", "--database", url]) == 1
    assert main(["report", "user", "--database", url]) == 1
    assert "slurm-energy database upgrade" in capfd.readouterr().err
    assert main(["database", "upgrade", "--database", url]) == 0
    assert main(["database", "status", "--database", url]) == 0


def test_prune_warns_of_jobs_that_estimates_learn_from(filled: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{filled}"
    for before, warned in (("2020-01-01", False), ("2100-01-01", True)):
        assert main(["database", "prune", "--before", before, "--dry-run", "--database", url]) == 0
        assert ("estimates of run time and energy learn from the last 90 days" in capfd.readouterr().err) is warned


def test_an_upgrade_that_was_stopped_is_said_until_it_is_finished(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/new.sqlite"
    assert main(["database", "upgrade", "--database", url]) == 0
    engine = open_engine(StoreConfig(url=url))
    with store_session(engine) as session:
        record_report(session, make_report(), make_key())
        session.execute(update(NodeEnergyRow).values(gpu_readings=None))
    engine.dispose()
    capfd.readouterr()
    assert main(["database", "status", "--json", "--database", url]) == 1
    printed = capfd.readouterr()
    assert json.loads(printed.out)["finished"] is False and "An upgrade was stopped on the way" in printed.err
    assert main(["database", "upgrade", "--database", url]) == 0
    assert main(["database", "status", "--database", url]) == 0


def test_status_shows_what_the_daemon_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"daemon": {"version": "1", "counters": {"decisions": 3}, "snapshot_age_seconds": None}, "x": "\x1b[2J"}
    daemon = FakeDaemon(tmp_path / "energyd.sock", Message("ok", {"json": json.dumps(document)}))
    assert main(["status"]) == 0
    daemon.close()
    assert capsys.readouterr().out.splitlines() == [
        "daemon:",
        "  version: 1",
        "  counters:",
        "    decisions: 3",
        "  snapshot age seconds: none",
        "x: \\x1b[2J",
    ]


def test_decisions_are_listed_one_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:

    records = (
        decision_record(make_decision(), make_request(name=HOSTILE_NAME)),
        decision_record(make_decision("d0000002", message=""), make_request()),
    )
    daemon = FakeDaemon(tmp_path / "energyd.sock", Message("ok", {"json": encode_record(records)}))
    assert main(["decisions"]) == 0
    daemon.close()
    lines = capsys.readouterr().out.splitlines()
    heading, _, first, second = lines
    assert heading.split() == ["Decided", "at", "Job", "User", "Name", "Mode", "Decision", "Id"]
    assert "a100 at 1275 of 1410 MHz" in first
    assert "The policy chose this setting. The clock was kept high enough for the allowed slowdown." in second
    assert all(letter.isprintable() for line in lines for letter in line)
