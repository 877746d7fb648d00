"""Node reports over TCP, proven by a shared key."""

import json
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from daemon_support import KEY, FakeSlurm, RunningDaemon, free_port, make_job, running_daemon, start_daemon, wait_until
from daemon_support import write_config as write_daemon_config
from store_samples import make_gpu

from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.ids import ClusterName, JobId, NodeName
from slurm_energy.domain.node_status import NodeStatus, SpoolStatus
from slurm_energy.wire.authentication import sign
from slurm_energy.wire.codec import Message, decode, encode
from slurm_energy.wire.node_status import decode_received, encode_status_batch
from slurm_energy.wire.report import encode_batch, encode_report


def make_report(job_id: int, node: str = "n1", gpu: int = 0, **changes: Any) -> dict[str, object]:
    now = time.time()
    report = NodeReport(
        cluster=ClusterName("lab"),
        job_id=JobId(job_id),
        restart_count=0,
        node=NodeName(node),
        user_id=1000,
        partition="a100",
        decision_id=None,
        started_at_seconds=now - 100.0,
        ended_at_seconds=now,
        time_scale=1.0,
        gpus=(make_gpu(gpu),),
    )
    return {**encode_report(report), **changes}


def send(daemon: RunningDaemon, message: Message) -> Message:
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=120) as connection:
        connection.sendall(encode(message))
        reply = b""
        while chunk := connection.recv(65_536):
            reply += chunk
        return decode(reply)


def signed(reports: Sequence[object], key: str = KEY) -> Message:
    return sign(encode_batch(reports).encode(), key=key.encode())


def joules(daemon: RunningDaemon) -> float | None:
    value: float | None = daemon.query("report-job")["record"]["total"]["gpu"]["joules"]
    return value


def test_an_acknowledged_report_is_in_the_database_once_however_often_it_is_sent(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        daemon.slurm.set_jobs([make_job(7, job_state="RUNNING", start_time=int(time.time()) - 100, nodes="n1")])
        report = make_report(7)
        for _ in range(3):
            assert send(daemon, signed([report])).fields == {"accepted": "1"}
        wait_until(lambda: joules(daemon) == 20_000.25, "energy", daemon)
        wait_until(
            lambda: daemon.query("report-job")["record"]["jobs"][0]["submit_time_known"],
            "the job's submit time",
            daemon,
        )
        assert joules(daemon) == 20_000.25
        assert daemon.query("report-job")["record"]["total"]["jobs"] == 1


def test_fifty_epilogs_at_once_are_all_stored(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with ThreadPoolExecutor(8) as threads:
            replies = list(threads.map(lambda n: send(daemon, signed([make_report(n, gpu=n)])), range(1, 51)))
        assert [reply.verb for reply in replies] == ["ok"] * 50
        wait_until(lambda: joules(daemon) == 50 * 20_000.25, "all energy", daemon)


def test_a_malformed_report_is_refused_for_good_and_an_unproven_one_may_come_again(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        absurd = make_report(7)
        absurd["job_id"] = -1
        assert send(daemon, signed([absurd])).verb == "refused"
        assert send(daemon, sign(b"[]", key=KEY.encode())).verb == "refused"
        assert send(daemon, Message("decide", {"uid": "0"})).verb == "refused"
        wrong_key = send(daemon, signed([make_report(7)], key="f" * 32))
        assert (wrong_key.verb, "signature is wrong" in wrong_key.fields["reason"]) == ("error", True)
        message = signed([make_report(7)])
        assert send(daemon, message).verb == "ok"
        assert send(daemon, message).verb == "error"  # the same nonce: a copy on its way, not the node
        forged = Message("report", {**message.fields, "body": message.fields["body"].replace("20000.25", "1.0")})
        assert send(daemon, forged).verb == "error"
        assert send(daemon, Message("report", {"auth": "munge", "credential": "MUNGE:x:"})).verb == "error"
        assert "Traceback" not in daemon.log


def test_a_report_acknowledged_right_before_a_crash_is_not_lost(tmp_path: Path) -> None:
    slurm, port = FakeSlurm(tmp_path / "slurm"), free_port()
    config = write_daemon_config(tmp_path, slurm, port)
    first = start_daemon(tmp_path, slurm, port, config)
    assert send(first, signed([make_report(7)])).verb == "ok"
    first.process.kill()
    first.process.wait()
    second = start_daemon(tmp_path, slurm, port, config)
    try:
        wait_until(lambda: joules(second) == 20_000.25, "energy", second)
    finally:
        assert second.stop() == 0


def test_while_the_database_is_away_reports_are_taken_and_stored_later(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        wait_until(lambda: daemon.query("decisions")["record"] == [], "a database", daemon)
        wait_until(lambda: "database created" in daemon.log, "a database", daemon)
        database = daemon.database_path
        away = database.with_name("away.sqlite")
        holder = lock_database(database)
        try:
            assert send(daemon, signed([make_report(7)])).verb == "ok"
            assert daemon.decide().verb == "ok"
            wait_until(lambda: "journal waits for the database" in daemon.log, "complaint", daemon)
        finally:
            holder.rollback()
            holder.close()
        assert not away.exists()
        wait_until(lambda: joules(daemon) == 20_000.25, "energy", daemon)
        wait_until(lambda: len(daemon.query("decisions")["record"]) == 1, "decision", daemon)


def lock_database(path: Path) -> Any:
    """Return a connection that holds SQLite's write lock."""
    import sqlite3

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_a_large_batch_is_taken_and_an_endless_message_is_not(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        batch = [make_report(number, gpu=number) for number in range(1, 501)]
        assert send(daemon, signed(batch)).fields == {"accepted": "500"}
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=120) as connection:
            sent = connection.send(b"slurm-energy/1 report\nbody=")
            try:
                while sent < 20 * 1024 * 1024:
                    sent += connection.send(b"x" * 65_536)
                reply = connection.recv(4096)
            except OSError:
                reply = b""
        assert sent < 20 * 1024 * 1024 or b"over 2097152 bytes" in reply
        assert daemon.decide().verb == "ok"
        wait_until(lambda: joules(daemon) == 500 * 20_000.25, "all energy", daemon)
        assert json.dumps(daemon.query("status"))


def test_a_nodes_status_is_kept_when_it_is_authenticated_and_who_is_not_is_named(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        status = NodeStatus(
            cluster=ClusterName("lab"),
            node=NodeName("n1"),
            sent_at_seconds=time.time(),
            boot_id="b",
            hook_version="1",
            interpreter="/p",
            spool=SpoolStatus(path="/s"),
        )
        body = encode_status_batch(status).encode()
        kept, turned_away = tmp_path / "state" / "nodes" / "n1.json", tmp_path / "state" / "turned-away.json"
        assert send(daemon, sign(body, key=b"f" * 32)).verb == "error"
        assert not kept.exists()
        wait_until(turned_away.exists, "a list of who was turned away", daemon)
        assert "signature is wrong" in json.loads(turned_away.read_text())["127.0.0.1"]["reason"]
        absurd = body.replace(b'"node":"n1"', b'"node":"../n1"')
        assert send(daemon, sign(absurd, key=KEY.encode())).verb == "refused"
        assert send(daemon, sign(body, key=KEY.encode())).fields == {"accepted": "0"}
        assert decode_received(kept.read_bytes()).status == status
        assert json.loads(turned_away.read_text()) == {}
        assert sorted(path.name for path in kept.parent.iterdir()) == ["n1.json"]
        nodes = daemon.query("status")["nodes"]
        assert set(nodes) == {"with_gpus", "reporting", "stopped_reporting", "never_reported"}
        assert daemon.decide().verb == "ok"
