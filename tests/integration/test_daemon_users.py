"""What another user than root and SlurmUser gets to see, by the kernel's word on who he is."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from daemon_support import RunningDaemon, make_job, running_daemon, wait_until

from slurm_energy.wire.codec import Message, decode, encode

ALICE, BOB = 60_001, 60_002

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    """A daemon in a folder that everybody may enter, with one ended job of each user."""
    directory = Path(tempfile.mkdtemp(prefix="energyd-users-"))
    directory.chmod(0o755)
    try:
        with running_daemon(directory) as running:
            now = int(time.time())
            ended = {"job_state": "COMPLETED", "start_time": now - 90, "end_time": now - 30, "nodes": "n1"}
            jobs = [
                make_job(1, user_id=ALICE, user_name="alice", **ended),
                make_job(2, user_id=BOB, user_name="bob", **ended),
            ]
            running.slurm.set_jobs(jobs)
            wait_until(lambda: running.query("report-job")["record"]["total"]["jobs"] == 2, "both jobs", running)
            yield running
    finally:
        shutil.rmtree(directory)


def ask_as(user_id: int, daemon: RunningDaemon, verb: str, fields: Mapping[str, str]) -> Message:
    """Return the reply that a process of this user gets."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user_id)
            os.setuid(user_id)
            os.write(writable, encode(daemon.ask(verb, fields)))
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        reply = pipe.read()
    os.waitpid(child, 0)
    return decode(reply)


def test_a_user_may_not_ask_for_decisions(daemon: RunningDaemon) -> None:
    reply = ask_as(ALICE, daemon, "decide", {"uid": "0", "tres_per_node": "gres:gpu:1"})
    assert (reply.verb, "may not ask for decisions" in reply.fields["reason"]) == ("refused", True)


def test_a_user_sees_his_own_job_and_learns_nothing_of_others(daemon: RunningDaemon) -> None:
    assert ask_as(ALICE, daemon, "query", {"what": "explain", "job": "1"}).verb == "ok"
    of_another = ask_as(ALICE, daemon, "query", {"what": "explain", "job": "2"})
    of_nobody = ask_as(ALICE, daemon, "query", {"what": "explain", "job": "99"})
    assert of_another.verb == of_nobody.verb == "refused"
    assert of_another.fields["reason"].replace("2", "N") == of_nobody.fields["reason"].replace("99", "N")


@pytest.mark.parametrize("what", ["report-job", "report-user", "report-partition"])
def test_a_users_report_holds_his_own_jobs_only(daemon: RunningDaemon, what: str) -> None:
    reply = ask_as(BOB, daemon, "query", {"what": what})
    assert '"jobs":1,' in reply.fields["json"]
    assert "alice" not in reply.fields["json"]
    other = ask_as(BOB, daemon, "query", {"what": what, "user": "alice"})
    assert '"jobs":0,' in other.fields["json"]


def test_root_sees_everybody(daemon: RunningDaemon) -> None:
    assert daemon.query("report-user")["record"]["total"]["jobs"] == 2
    assert daemon.ask("query", {"what": "explain", "job": "2"}).verb == "ok"
