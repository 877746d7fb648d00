"""Start, reload, drain and stop of a real slurm-energyd, and what happens when its parts die."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_support import (
    STOP_SECONDS,
    FakeSlurm,
    RunningDaemon,
    alive,
    answers,
    children_of,
    command_line,
    free_port,
    has_snapshot,
    make_job,
    running_daemon,
    start_daemon,
    wait_until,
    write_config,
)

from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.errors import SlurmEnergyError


@pytest.fixture(scope="module", name="daemon")
def steady_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon for tests that leave it as it is."""
    with running_daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


def test_a_decision_names_a_clock_and_explains_it(daemon: RunningDaemon) -> None:
    reply = daemon.decide(partition="a100")
    entry = DecisionEntry.decode(reply.fields["entry"])
    assert reply.fields["decision_id"] == entry.decision_id
    assert reply.fields["admin_comment"] == f"energy:{entry.decision_id}"
    assert 0 < entry.clocks_mhz["a100-sxm4-80gb"] < 1410  # type: ignore[index]  # a literal of the type's form
    assert entry.time_limit_minutes == 60
    assert "what it saves for this job is not known" in reply.fields["message"]
    assert "--energy=off" in reply.fields["message"]


def test_a_refused_job_is_left_alone_and_its_nodes_know(daemon: RunningDaemon) -> None:
    reply = daemon.decide(energy_mode="off")
    entry = DecisionEntry.decode(reply.fields["entry"])
    assert (entry.mode, entry.clocks_mhz) == ("off", {})
    assert "partition" not in reply.fields


@pytest.mark.alone
def test_sigterm_ends_it_cleanly_with_all_its_children(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        children = children_of(daemon.process.pid)
        assert len(children) == 3
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 5.0
        wait_until(
            lambda: not any(alive(child) for child in children), "end of the children", limit_seconds=STOP_SECONDS
        )
        assert not daemon.socket_path.exists()


def test_children_end_with_a_daemon_that_was_killed(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        children = children_of(daemon.process.pid)
        daemon.process.kill()
        daemon.process.wait()
        wait_until(
            lambda: not any(alive(child) for child in children), "end of the children", limit_seconds=STOP_SECONDS
        )


def test_a_socket_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    slurm, port = FakeSlurm(tmp_path / "slurm"), free_port()
    config = write_config(tmp_path, slurm, port)
    first = start_daemon(tmp_path, slurm, port, config)
    first.process.kill()
    first.process.wait()
    assert first.socket_path.exists()
    second = start_daemon(tmp_path, slurm, port, config)
    assert second.stop() == 0


def test_a_second_daemon_refuses_and_leaves_the_first_alone(daemon: RunningDaemon) -> None:
    second = subprocess.run(
        [sys.executable, "-P", "-m", "slurm_energy.daemon.app", "--config", str(daemon.directory / "energy.toml")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert second.returncode == 1
    assert "another daemon" in second.stderr
    assert "Traceback" not in second.stderr
    assert answers(daemon)


def test_a_good_configuration_is_reloaded_and_a_bad_one_is_not(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        path = tmp_path / "energy.toml"
        good = path.read_text()
        rest = good.split("[policy]")[0]
        path.write_text(rest + '[policy]\nname = "slurm-default"\n')
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: daemon.ask("ping").fields["policy"] == "slurm-default", "reload", daemon)
        path.write_text(rest + '[policy]\nname = "oracle"\ntypo = 1\n')
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "configuration not reloaded" in daemon.log, "complaint", daemon)
        assert "typo" in daemon.log
        path.write_text(rest + '[policy]\nname = "fixed-clock"\nfixed_clocks_mhz = { a100 = 5 }\n')
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "policy.fixed_clocks_mhz.a100 is 5" in daemon.log, "complaint about a clock", daemon)
        assert daemon.ask("ping").fields["policy"] == "slurm-default"
        path.write_text(good)
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: daemon.ask("ping").fields["policy"] == "oracle", "second reload", daemon)


def test_a_changed_interval_reaches_the_snapshot_child(tmp_path: Path) -> None:
    with running_daemon(tmp_path, snapshot_interval_seconds=3600.0) as daemon:
        path = tmp_path / "energy.toml"
        path.write_text(path.read_text().replace("3600.0", "0.1"))
        before = daemon.slurm.calls("squeue")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: daemon.slurm.calls("squeue") > before + 3, "more readings", daemon)


def test_a_reload_brings_reports_and_estimates_what_changed_in_any_section(tmp_path: Path) -> None:
    def recorders() -> list[int]:
        return [pid for pid in children_of(daemon.process.pid) if b"recorder.process" in command_line(pid)]

    with running_daemon(tmp_path) as daemon:
        path = tmp_path / "energy.toml"
        for setting in ("[facility]\npue = 1.5\n", "[gpu_power_limits_watts]\na100 = 400.0\n"):
            (before,) = recorders()
            path.write_text(f"{path.read_text()}\n{setting}")
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: recorders() not in ([], [before]), "a recorder with the new settings", daemon)  # noqa: B023
            wait_until(lambda: len(recorders()) == 1, "the end of the one before", daemon)
            wait_until(lambda: daemon.query("report-job")["record"]["facility"]["pue"] == 1.5, "its reports", daemon)


def test_a_killed_child_is_started_again_while_decisions_go_on(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        for number, program in enumerate((b"snapshot.process", b"recorder.process", b"doors.process"), start=1):
            (child,) = (pid for pid in children_of(daemon.process.pid) if program in command_line(pid))
            daemon.decide()
            os.kill(child, signal.SIGKILL)
            assert daemon.decide().verb == "ok"

            def is_back() -> bool:
                found = [pid for pid in children_of(daemon.process.pid) if program in command_line(pid)]  # noqa: B023
                return len(found) == 1 and found != [child]  # noqa: B023

            wait_until(is_back, "new child", daemon)
            daemon.decide()
            wait_until(lambda: answers(daemon), "an answer to people", daemon)
            wait_until(lambda: len(daemon.query("decisions")["record"]) == 3 * number, "all decisions stored", daemon)  # noqa: B023


def test_with_a_silent_slurm_the_snapshot_ages_and_jobs_go_through_unchanged(tmp_path: Path) -> None:
    with running_daemon(tmp_path, snapshot_max_age_seconds=1.0) as daemon:
        # On a busy machine a snapshot may be older than a second for a while.
        wait_until(lambda: "clocks=" in daemon.decide().fields["entry"], "decision on a fresh snapshot", daemon)
        silent = daemon.slurm.bin_directory / "squeue.new"
        silent.write_text("#!/bin/sh\necho 'Unable to contact' >&2\nexit 1\n")
        silent.chmod(0o755)
        silent.replace(silent.with_suffix(""))  # one that runs just now cannot be written to
        wait_until(lambda: "clocks=" not in daemon.decide().fields["entry"], "stale snapshot", daemon)
        wait_until(lambda: "cluster not read" in daemon.log, "complaint", daemon)
        wait_until(lambda: "STALE_SNAPSHOT" in daemon.log, "the reason", daemon)


def test_a_hundred_submissions_cause_no_slurm_command(tmp_path: Path) -> None:
    with running_daemon(tmp_path, snapshot_interval_seconds=3600.0) as daemon:
        # scontrol twice: partitions, and the topology
        before = [daemon.slurm.calls(name) for name in ("squeue", "sinfo", "scontrol", "sacct")]
        for _ in range(100):
            daemon.decide()
        assert [daemon.slurm.calls(name) for name in ("squeue", "sinfo", "scontrol", "sacct")] == before == [1, 1, 2, 0]


def test_slow_silent_and_malformed_callers_do_not_disturb_others(daemon: RunningDaemon) -> None:
    silent = []
    for number in range(50):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(daemon.socket_path))
        connection.sendall(b"slurm-energy/1 decide\n"[: number % 20])
        silent.append(connection)
    assert daemon.decide().verb == "ok"
    assert raw(daemon, b"GET / HTTP/1.1\r\n\r\nend\n").startswith(b"slurm-energy/1 refused\nreason=message speaks")
    assert b"over 65536 bytes" in raw(daemon, b"slurm-energy/1 ping\n" + b"x" * 70_000)
    assert b"uid" in raw(daemon, b"slurm-energy/1 decide\nend\n")
    assert b"verb" in raw(daemon, b"slurm-energy/1 dance\nend\n")
    assert raw(daemon, b"") == b""
    for connection in silent:
        connection.close()
    assert daemon.decide().verb == "ok"
    assert "Traceback" not in daemon.log


def test_a_silent_caller_is_sent_away_after_a_while(daemon: RunningDaemon) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(daemon.socket_path))
        connection.sendall(b"slurm-energy/1 de")
        connection.settimeout(120)
        assert b"took too long" in connection.recv(4096)


def test_hostile_texts_come_back_from_the_database_as_they_were(daemon: RunningDaemon) -> None:
    name = "x; rm -rf /\n'\"$(id)\x1b[31m<script>%0A"
    daemon.decide(name=name)
    names: list[str] = []

    def stored() -> bool:
        names[:] = [record["asked"]["name"] for record in daemon.query("decisions")["record"]]
        return bool(names) and "rm -rf" in names[0]

    wait_until(stored, "decision stored", daemon)
    assert names[0] == name
    assert "\x1b" not in daemon.log


def test_a_full_journal_disk_does_not_stop_decisions(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        journal, aside = tmp_path / "state" / "journal", tmp_path / "state" / "aside"
        wait_until(lambda: "database created" in daemon.log, "a database", daemon)
        journal.rename(aside)
        journal.write_text("a file where the folder was: every write fails")
        for _ in range(5):
            assert daemon.decide().verb == "ok"
        wait_until(lambda: "journal kept in memory" in daemon.log, "complaint", daemon)
        journal.unlink()
        aside.rename(journal)
        wait_until(lambda: len(daemon.query("decisions")["record"]) == 5, "decisions stored", daemon)


def test_a_decision_whose_submission_slurm_refused_counts_in_no_report(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        refused, accepted = (daemon.decide().fields["decision_id"] for _ in range(2))
        now = int(time.time())
        ended = {"job_state": "COMPLETED", "start_time": now - 90, "end_time": now - 30, "nodes": "n1"}
        daemon.slurm.set_jobs([make_job(7, admin_comment=f"energy:{accepted}", **ended)])
        wait_until(lambda: stored_states(daemon) == ["COMPLETED"], "the job", daemon)
        wait_until(lambda: len(daemon.query("decisions")["record"]) == 2, "both decisions", daemon)
        for what in ("report-job", "report-user", "report-partition"):
            assert daemon.query(what)["record"]["total"]["jobs"] == 1
        assert refused not in {job["decision_id"] for job in daemon.query("report-job")["record"]["jobs"]}


def test_jobs_of_the_queue_are_stored_with_their_decision_even_if_no_node_reports(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        decision_id = daemon.decide().fields["decision_id"]
        row = make_job(7, admin_comment=f"energy:{decision_id}")
        daemon.slurm.set_jobs([row])
        wait_until(lambda: stored_states(daemon) == ["PENDING"], "pending job", daemon)
        started = int(time.time()) - 60
        row.update(job_state="RUNNING", start_time=started, nodes="n1")
        daemon.slurm.set_jobs([row])
        wait_until(lambda: stored_states(daemon) == ["RUNNING"], "running job", daemon)
        row.update(job_state="COMPLETED", end_time=started + 50)
        daemon.slurm.set_jobs([row])
        wait_until(lambda: stored_states(daemon) == ["COMPLETED"], "ended job", daemon)
        explained = daemon.query("explain", job="7")["record"]
        assert explained["decision"]["decision_id"] == decision_id
        assert explained["job"]["gpu"]["joules"] is None
        assert daemon.ask("query", {"what": "explain", "job": "8"}).verb == "refused"


def test_a_job_that_left_slurms_memory_is_closed_through_accounting(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        started = int(time.time()) - 60
        daemon.slurm.set_jobs([make_job(7, job_state="RUNNING", start_time=started, nodes="n1")])
        wait_until(lambda: stored_states(daemon) == ["RUNNING"], "running job", daemon)
        ended = {
            "job_id": 7,
            "user": "alice",
            "name": "job7",
            "state": {"current": ["TIMEOUT"]},
            "time": {"submission": 1_795_800_000, "start": started, "end": started + 30},
        }
        daemon.slurm.set_accounting([ended])
        daemon.slurm.set_jobs([])
        wait_until(lambda: stored_states(daemon) == ["TIMEOUT"], "ended job", daemon)


def test_runs_of_the_past_become_the_estimate_of_the_next(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        now = int(time.time())
        rows = [
            make_job(n, name="train", job_state="COMPLETED", start_time=now - 900, end_time=now - 300, nodes="n1")
            for n in range(1, 4)
        ]
        daemon.slurm.set_jobs(rows)

        def estimated() -> bool:
            daemon.decide()
            records = daemon.query("decisions")["record"]
            estimate = records[0]["estimate"] if records else None
            return bool(estimate and estimate["source"] == "history" and estimate["seconds"] == 600.0)

        wait_until(estimated, "estimate from history", daemon)


@pytest.mark.alone
def test_a_run_that_has_just_ended_is_part_of_the_next_estimate_within_five_seconds(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        now = int(time.time())

        def runs_behind_the_estimate() -> int:
            fields = {"uid": "1000", "name": "train", "tres_per_node": "gres:gpu:1"}
            preview = json.loads(daemon.ask("preview", fields).fields["json"])
            estimate = preview["decision"]["estimate"]
            return int(estimate["runs"]) if estimate and estimate["source"] == "history" else 0

        rows = [make_job(1, name="train", job_state="COMPLETED", start_time=now - 900, end_time=now - 300, nodes="n1")]
        daemon.slurm.set_jobs(rows)
        wait_until(lambda: runs_behind_the_estimate() == 1, "first estimate", daemon)
        for number in (2, 3):
            rows.append({**rows[0], "job_id": number, "end_time": now - 200})
            daemon.slurm.set_jobs(rows)
            began = time.monotonic()
            wait_until(lambda: runs_behind_the_estimate() == number, "corrected estimate", daemon)  # noqa: B023
            assert time.monotonic() - began < 5.0


def test_the_supervisor_hears_of_ready_and_stopping(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(120)
        os.environ["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        try:
            with running_daemon(tmp_path) as daemon:
                assert supervisor.recv(100) == b"READY=1"
                daemon.stop()
                assert supervisor.recv(100) == b"STOPPING=1"
        finally:
            del os.environ["NOTIFY_SOCKET"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[daemon]\nsocket_pathh = 'x'\n", "[daemon] has no 'socket_pathh'; did you mean socket_path?"),
        ("[policy]\nname = 'magic'\n", "magic"),
    ],
)
def test_a_bad_configuration_is_told_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "slurm_energy.daemon.app", "--check-config", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def stored_states(daemon: RunningDaemon) -> list[str]:
    """Return the states of all stored jobs."""
    return [job["state"] for job in daemon.query("report-job")["record"]["jobs"]]


def raw(daemon: RunningDaemon, data: bytes) -> bytes:
    """Return the reply to bytes that are perhaps no message."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(120)
        connection.connect(str(daemon.socket_path))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        reply = b""
        while chunk := connection.recv(65_536):
            reply += chunk
        return reply


def test_a_daemon_that_drains_answers_nobody_new(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        assert has_snapshot(daemon)
        daemon.stop()
        with pytest.raises(SlurmEnergyError, match="is slurm-energyd running"):
            daemon.ask("ping")
