"""The newest entry of a decision, as a node asks a running daemon for it over TCP."""

import socket
from pathlib import Path

from daemon_support import RunningDaemon, has_snapshot, running_daemon, wait_until

from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.wire.codec import Message, decode, encode

NONCE = "0123456789abcdef"


def ask(daemon: RunningDaemon, decision_id: str) -> Message:
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=120) as connection:
        connection.sendall(encode(Message("newest", {"decision_id": decision_id, "nonce": NONCE})))
        connection.shutdown(socket.SHUT_WR)
        reply = b""
        while chunk := connection.recv(65_536):
            reply += chunk
        return decode(reply)


def test_a_node_asks_for_the_newest_entry_and_hears_that_there_is_none(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        wait_until(lambda: has_snapshot(daemon), "snapshot", daemon)
        decided = daemon.decide(uid="1000", partition="a100", tres_per_node="gres:gpu:1", time_limit="60")
        entry = DecisionEntry.decode(decided.fields["entry"])
        assert not entry.may_change, "the site has not switched it on"
        reply = ask(daemon, decided.fields["decision_id"])
        assert (reply.verb, reply.fields.get("entry")) == ("ok", None)
        assert "mac" not in reply.fields, "there is nothing that a node would act on"
        assert ask(daemon, "../../etc/passwd").verb in {"error", "refused"}
        assert ask(daemon, "f" * 16).verb == "ok"
