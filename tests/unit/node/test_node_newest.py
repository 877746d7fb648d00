"""The newest decision of a job at its start: fetched where one may be known, else what travels in the job."""

import socket
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from node_bench import DECISION, Bench, entry

from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.ids import JobId
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import AuthenticationError
from slurm_energy.node import newest
from slurm_energy.node.hooks import run_prolog
from slurm_energy.node.newest import entry_of_job, newest_entry
from slurm_energy.node.settings import HookSettings
from slurm_energy.wire import authentication
from slurm_energy.wire.authentication import ReplayGuard, answer_mac, check_answer, prove_answer, verify
from slurm_energy.wire.codec import Message, decode, encode

KEY = b"k" * 40


class Answering:
    """A daemon that answers every question in one way; None: never."""

    def __init__(self, key: bytes | None = None) -> None:
        self.entry: str | None = ""
        self.asked: list[Message] = []
        self._key = key
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                raw = b""
                while not raw.endswith(b"\nend\n"):
                    raw += connection.recv(4096)
                self.asked.append(decode(raw))
                fields = {"entry": self.entry or ""}
                if self._key is not None:
                    fields["mac"] = answer_mac("newest", self._key, self.asked[-1].fields["nonce"], fields["entry"])
                if self.entry is not None:
                    connection.sendall(encode(Message("ok", fields)))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=5)


@pytest.fixture
def daemon() -> Iterator[Answering]:
    answering = Answering(KEY)
    yield answering
    answering.close()


def carried(**changes: object) -> DecisionEntry:
    return replace(DecisionEntry.decode(entry()), may_change=True, **changes)  # type: ignore[arg-type]


def fetched(bench: Bench, address: str, own: DecisionEntry) -> tuple[DecisionEntry, list[str]]:
    events = list[str]()
    return newest_entry(own, asking(bench, address), events), events


def asking(bench: Bench, address: str) -> HookSettings:
    """Return settings of a node that shares a key with the daemon."""
    settings, key = bench.context().settings, bench.slurm_conf.with_name("shared.key")
    key.write_bytes(KEY)
    key.chmod(0o600)
    node = replace(settings.node, daemon_address=address, authentication="hmac", hmac_key_path=str(key))
    return replace(settings, node=node)


def test_the_newest_entry_of_the_same_decision_is_taken(tmp_path: Path, daemon: Answering) -> None:
    own = carried()
    newer = replace(own, clocks_mhz=dict.fromkeys(own.clocks_mhz, 1200))
    daemon.entry = newer.encode()
    assert fetched(Bench(tmp_path), daemon.address, own) == (newer, [])
    assert daemon.asked[0].fields["decision_id"] == DECISION


def test_without_a_newer_one_the_jobs_own_counts(tmp_path: Path, daemon: Answering) -> None:
    own = carried()
    assert fetched(Bench(tmp_path), daemon.address, own) == (own, [])


@pytest.mark.parametrize("case", ["garbage", "other decision", "other mode"])
def test_an_answer_that_is_not_of_this_decision_is_left_and_said(tmp_path: Path, daemon: Answering, case: str) -> None:
    own = carried()
    daemon.entry = {
        "garbage": "v=1;id=;mode=x",
        "other decision": replace(own, decision_id=type(DECISION)("ffffffffffffffff")).encode(),
        "other mode": replace(own, mode=EnergyMode.SAVER).encode(),
    }[case]
    found, events = fetched(Bench(tmp_path), daemon.address, own)
    assert found == own
    assert len(events) == 1


def test_a_daemon_that_is_away_or_silent_costs_a_moment_and_the_next_one_is_asked(
    tmp_path: Path, daemon: Answering
) -> None:
    own, gone = carried(), socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{gone.getsockname()[1]}"
    gone.close()
    found, events = fetched(Bench(tmp_path), address, own)
    assert (found, len(events)) == (own, 1)
    newer = replace(own, clocks_mhz=dict.fromkeys(own.clocks_mhz, 1200))
    daemon.entry = newer.encode()
    assert fetched(Bench(tmp_path), f"{address},{daemon.address}", own) == (newer, [])
    daemon.entry = None
    found, events = fetched(Bench(tmp_path), daemon.address, own)
    assert (found, len(events)) == (own, 1)


def test_with_a_shared_key_an_unsigned_answer_is_left(tmp_path: Path) -> None:
    key = tmp_path / "report.key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    own = carried()
    newer = replace(own, clocks_mhz=dict.fromkeys(own.clocks_mhz, 1200))
    for signed_with, expected in ((KEY, newer), (None, own), (b"z" * 40, own)):
        daemon = Answering(signed_with)
        daemon.entry = newer.encode()
        settings = Bench(tmp_path).context().settings
        node = replace(settings.node, daemon_address=daemon.address, authentication="hmac", hmac_key_path=str(key))
        assert newest_entry(own, replace(settings, node=node), []) == expected
        daemon.close()


def test_only_a_job_that_says_so_on_one_node_asks(tmp_path: Path, daemon: Answering) -> None:
    own = carried()
    daemon.entry = replace(own, clocks_mhz=dict.fromkeys(own.clocks_mhz, 1200)).encode()
    bench = Bench(tmp_path)
    context = bench.context()
    context = replace(context, settings=asking(bench, daemon.address))
    run_prolog(context, replace(bench.hook(7, "0", own.encode()), on_one_node=False))
    assert (daemon.asked, bench.locks()[0]) == ([], (210, 1275))
    run_prolog(context, replace(bench.hook(8, "1", entry()), on_one_node=True))
    assert daemon.asked == []
    run_prolog(context, replace(bench.hook(9, "2", own.encode()), on_one_node=True))
    assert (len(daemon.asked), bench.locks()[2]) == (1, (210, 1200))


def by_number(bench: Bench, daemon: Answering) -> tuple[DecisionEntry | None, list[str]]:
    events = list[str]()
    return entry_of_job(JobId(7), asking(bench, daemon.address), events), events


class Munge:
    """Stands for munge's tools: a credential names who made it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.user_id = 0
        monkeypatch.setattr(authentication, "_run", self._run)

    def _run(self, tool: str, stdin: bytes, seconds: float = 10.0, options: tuple[str, ...] = ()) -> bytes:
        assert 0.0 < seconds <= 10.0 and not options
        if tool == "munge":
            return b"MUNGE:" + b64encode(b"%d " % self.user_id + stdin) + b":"
        user_id, _, body = b64decode(stdin[6:-1]).partition(b" ")
        return b"STATUS: Success\nUID: somebody (" + user_id + b")\n\n" + body


@pytest.mark.parametrize(("user_id", "is_taken"), [(0, True), (1000, False)])
def test_under_munge_an_answer_counts_only_with_the_daemons_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_id: int, is_taken: bool
) -> None:
    munge, own = Munge(monkeypatch), carried()
    munge.user_id = user_id
    newer = replace(own, clocks_mhz=dict.fromkeys(own.clocks_mhz, 1200))
    reply = Message("ok", {"entry": newer.encode(), **prove_answer("newest", "n" * 32, newer.encode(), None)})
    if is_taken:
        assert check_answer("newest", reply, "n" * 32, None, {0, 64030}, tool_seconds=1.0) == newer.encode()
    with pytest.raises(AuthenticationError, match="another question" if is_taken else "not from the daemon"):
        check_answer("newest", reply, "m" * 32, None, {0, 64030}, tool_seconds=1.0)


def test_whoever_listens_at_the_daemons_port_without_a_credential_sets_no_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Munge(monkeypatch)
    own, impostor = carried(), Answering()
    impostor.entry = replace(own, clocks_mhz=dict.fromkeys(own.clocks_mhz, 210)).encode()
    settings, events = Bench(tmp_path).context().settings, list[str]()
    settings = replace(settings, node=replace(settings.node, daemon_address=impostor.address))
    assert newest_entry(own, settings, events) == own
    assert entry_of_job(JobId(7), settings, events) is None
    impostor.close()
    assert ["credential" in event for event in events] == [True, True]


def test_a_name_that_is_looked_up_for_ever_costs_no_more_than_the_time_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(newest, "ask_daemon", lambda *given: hanging.wait(300.0))
    began = time.monotonic()
    found, events = fetched(Bench(tmp_path), "controller.example:8470", carried())
    hanging.set()
    assert found == carried()
    assert time.monotonic() - began < 150.0
    assert events == ["newest decision not fetched, the job's own counts: no daemon answered within 0.2 s"]


def test_a_node_whose_jobs_carry_nothing_asks_by_number_and_proves_itself(tmp_path: Path, daemon: Answering) -> None:
    daemon.entry = entry()
    found, events = by_number(Bench(tmp_path), daemon)
    assert (found, events) == (DecisionEntry.decode(entry()), [])
    asked = daemon.asked[0]
    asked = Message("report", dict(asked.fields))
    assert verify(asked, key=KEY, replay=ReplayGuard()).body == b"newest 7"


@pytest.mark.parametrize("answer", ["", "nothing that can be read", None])
def test_a_node_that_is_told_nothing_of_use_leaves_the_clock(
    tmp_path: Path, daemon: Answering, answer: str | None
) -> None:
    daemon.entry = answer
    found, events = by_number(Bench(tmp_path), daemon)
    assert found is None
    assert bool(events) == (answer != "")


def test_an_answer_with_another_key_is_not_taken(tmp_path: Path) -> None:
    daemon = Answering(b"z" * 40)
    daemon.entry = entry()
    found, events = by_number(Bench(tmp_path), daemon)
    daemon.close()
    assert found is None
    assert "signature" in events[0]


def test_what_a_job_says_itself_does_not_count_where_its_node_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, told in enumerate((None, DecisionEntry.decode(entry()))):
        bench = Bench(tmp_path / str(number))
        context = bench.context()
        settings = replace(context.settings, node=replace(context.settings.node, fetch_decisions=True))
        monkeypatch.setattr(newest, "entry_of_job", lambda *given, told=told: told)
        run_prolog(replace(context, settings=settings), replace(bench.hook(7, "0", entry()), on_one_node=True))
        assert (bench.gpus[0].lock is None) == (told is None)
