"""The newest decision of a job at its start: fetched where one may be known, else what travels in the job."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from node_bench import DECISION, Bench, entry

from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.ids import JobId
from slurm_energy.domain.job import EnergyMode
from slurm_energy.node import newest
from slurm_energy.node.newest import entry_of_job, newest_entry
from slurm_energy.node.prolog import run_prolog
from slurm_energy.wire.authentication import ReplayGuard, newest_mac, verify
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
                    fields["mac"] = newest_mac(self._key, self.asked[-1].fields["nonce"], fields["entry"])
                if self.entry is not None:
                    connection.sendall(encode(Message("ok", fields)))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=5)


@pytest.fixture
def daemon() -> Iterator[Answering]:
    answering = Answering()
    yield answering
    answering.close()


def carried(**changes: object) -> DecisionEntry:
    return replace(DecisionEntry.decode(entry()), may_change=True, **changes)  # type: ignore[arg-type]


def fetched(bench: Bench, address: str, own: DecisionEntry) -> tuple[DecisionEntry, list[str]]:
    settings, events = bench.context().settings, list[str]()
    settings = replace(settings, node=replace(settings.node, daemon_address=address))
    return newest_entry(own, settings, events), events


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
    settings = replace(context.settings, node=replace(context.settings.node, daemon_address=daemon.address))
    context = replace(context, settings=settings)
    run_prolog(context, replace(bench.hook(7, "0", own.encode()), on_one_node=False))
    assert (daemon.asked, bench.locks()[0]) == ([], (210, 1275))
    run_prolog(context, replace(bench.hook(8, "1", entry()), on_one_node=True))
    assert daemon.asked == []
    run_prolog(context, replace(bench.hook(9, "2", own.encode()), on_one_node=True))
    assert (len(daemon.asked), bench.locks()[2]) == (1, (210, 1200))


def by_number(bench: Bench, daemon: Answering, key: Path) -> tuple[DecisionEntry | None, list[str]]:
    settings, events = bench.context().settings, list[str]()
    node = replace(settings.node, daemon_address=daemon.address, authentication="hmac", hmac_key_path=str(key))
    return entry_of_job(JobId(7), replace(settings, node=node), events), events


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


@pytest.fixture
def signing() -> Iterator[Answering]:
    answering = Answering(KEY)
    yield answering
    answering.close()


def test_a_node_whose_jobs_carry_nothing_asks_by_number_and_proves_itself(
    tmp_path: Path, signing: Answering, key_file: Path
) -> None:
    signing.entry = entry()
    found, events = by_number(Bench(tmp_path), signing, key_file)
    assert (found, events) == (DecisionEntry.decode(entry()), [])
    asked = signing.asked[0]
    asked = Message("report", dict(asked.fields))
    assert verify(asked, key=KEY, replay=ReplayGuard()).body == b"newest 7"


@pytest.mark.parametrize("answer", ["", "nothing that can be read", None])
def test_a_node_that_is_told_nothing_of_use_leaves_the_clock(
    tmp_path: Path, signing: Answering, key_file: Path, answer: str | None
) -> None:
    signing.entry = answer
    found, events = by_number(Bench(tmp_path), signing, key_file)
    assert found is None
    assert bool(events) == (answer != "")


def test_an_answer_with_another_key_is_not_taken(tmp_path: Path, daemon: Answering, key_file: Path) -> None:
    daemon.entry = entry()
    found, events = by_number(Bench(tmp_path), daemon, key_file)
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
