import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from node_bench import Bench, entry

from slurm_energy.config import NodeConfig
from slurm_energy.domain.node_status import STATUS_INTERVAL_SECONDS, NodeStatus
from slurm_energy.errors import AuthenticationError, DaemonUnavailable, SlurmEnergyError, SpoolError, WireError
from slurm_energy.node import status
from slurm_energy.node.context import HookContext
from slurm_energy.node.flush import MIN_INTERVAL_SECONDS, run_flush, run_flush_soon, spread_seconds
from slurm_energy.node.hooks import run_epilog, run_prolog
from slurm_energy.node.spool import Spool
from slurm_energy.node.status import note_repair
from slurm_energy.wire.authentication import ReplayGuard, verify
from slurm_energy.wire.codec import Message, decode, encode
from slurm_energy.wire.node_status import decode_delivery

KEY = b"0123456789abcdef0123456789abcdef"


Answer = Callable[[list[int]], Message | bytes]


class Daemon:
    """Takes one request a connection and answers what the test says."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.job_ids: list[list[int]] = []
        self.statuses: list[NodeStatus] = []
        self._replay = ReplayGuard()
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
                while chunk := connection.recv(65_536):
                    raw += chunk
                delivery = decode_delivery(verify(decode(raw), key=KEY, replay=self._replay).body)
                numbers: list[int] = [report.job_id for report in delivery.batch.reports]
                if delivery.status is None:
                    self.batch = delivery.batch
                    self.job_ids.append(numbers)
                else:
                    self.statuses.append(delivery.status)
                answer = self._answer(numbers)
                connection.sendall(answer if isinstance(answer, bytes) else encode(answer))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    key = tmp_path / "report.key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    return Bench(tmp_path, node=node(tmp_path, ""))


def node(tmp_path: Path, address: str) -> NodeConfig:
    return NodeConfig(
        spool_directory=str(tmp_path / "spool"),
        log_path="",
        daemon_address=address,
        authentication="hmac",
        hmac_key_path=str(tmp_path / "report.key"),
    )


def with_reports(bench: Bench, tmp_path: Path, count: int, answer: Answer) -> Daemon:
    for job_id in range(1, count + 1):
        run_prolog(bench.context(), bench.hook(job_id, "0", entry()))
        bench.clock.advance(1)
        run_epilog(bench.context(), bench.hook(job_id, "0"))
    daemon = Daemon(answer)
    bench.node = node(tmp_path, daemon.address)
    return daemon


def accept(job_ids: list[int]) -> Message:
    return Message("ok", {"accepted": str(len(job_ids))})


def test_acknowledged_reports_leave_the_spool(bench: Bench, tmp_path: Path) -> None:
    daemon = with_reports(bench, tmp_path, 3, accept)
    assert run_flush(bench.context())
    assert daemon.job_ids == [[1, 2, 3]]
    assert bench.reports() == []
    assert run_flush(bench.context())
    assert len(daemon.job_ids) == 1


def test_closed_jobs_are_gone_for_good_before_their_reports_go(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_reports(bench, tmp_path, 2, accept)
    waiting: list[int] = []
    monkeypatch.setattr(Spool, "settle", lambda spool: waiting.append(len(spool.waiting_reports())))
    assert run_flush(bench.context())
    assert waiting[0] == 2
    assert bench.reports() == []


def test_reports_tell_how_long_ago_their_jobs_started_whatever_the_wall_clock_says(
    bench: Bench, tmp_path: Path
) -> None:
    daemon = with_reports(bench, tmp_path, 2, accept)
    bench.clock.advance(98)
    bench.clock.now -= 1e6  # somebody sets it back
    assert run_flush(bench.context())
    assert daemon.batch.ages_seconds == (100.0, 99.0)
    assert daemon.batch.sent_at_seconds == bench.clock.now


def test_reports_of_an_earlier_boot_tell_no_age(bench: Bench, tmp_path: Path) -> None:
    daemon = with_reports(bench, tmp_path, 1, accept)
    bench.boot_id = "boot-2"
    assert run_flush(bench.context())
    assert daemon.batch.ages_seconds == (None,)


@pytest.mark.parametrize("step", [-1e6, 1e6])
def test_a_clock_that_is_set_during_a_job_does_not_change_how_long_the_job_took(bench: Bench, step: float) -> None:
    run_prolog(bench.context(), bench.hook(1, "0", entry()))
    bench.clock.advance(100)
    bench.clock.now += step
    run_epilog(bench.context(), bench.hook(1, "0"))
    (report,) = bench.reports()
    assert report.ended_at_seconds - report.started_at_seconds == pytest.approx(100.0)


def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_with_several_daemons_the_first_that_takes_reports_gets_them(bench: Bench, tmp_path: Path) -> None:
    second = with_reports(bench, tmp_path, 3, accept)
    full = Daemon(lambda _job_ids: Message("error", {"reason": "disk is full"}))
    third = Daemon(accept)
    bench.node = node(tmp_path, f"{nobody()}, {full.address},{second.address},{third.address}")
    assert run_flush(bench.context())
    assert (full.job_ids, second.job_ids, third.job_ids) == ([[1, 2, 3]], [[1, 2, 3]], [])
    assert bench.reports() == []


def test_a_report_that_one_of_several_daemons_refuses_is_not_given_to_the_next(bench: Bench, tmp_path: Path) -> None:
    refusal = Message("refused", {"reason": "malformed"})
    first = with_reports(bench, tmp_path, 1, lambda job_ids: refusal if job_ids else accept(job_ids))
    second = Daemon(accept)
    bench.node = node(tmp_path, f"{first.address},{second.address}")
    assert run_flush(bench.context())
    assert second.job_ids == []


def test_when_none_of_several_daemons_takes_reports_they_stay(bench: Bench, tmp_path: Path) -> None:
    with_reports(bench, tmp_path, 1, accept).close()
    bench.node = node(tmp_path, f"{nobody()},{nobody()}")
    with pytest.raises(DaemonUnavailable):
        run_flush(bench.context())
    assert len(bench.reports()) == 1


def test_only_the_refused_report_is_put_aside(bench: Bench, tmp_path: Path) -> None:
    def answer(job_ids: list[int]) -> Message:
        return Message("refused", {"reason": "report 2 is malformed"}) if 2 in job_ids else accept(job_ids)

    daemon = with_reports(bench, tmp_path, 3, answer)
    assert run_flush(bench.context())
    assert daemon.job_ids == [[1, 2, 3], [1], [2], [3]]
    assert bench.reports() == []
    assert [path.name.partition("-")[0] for path in bench.spool.rejected.iterdir()] == ["2"]


@pytest.mark.parametrize(
    "answer",
    [
        Message("error", {"reason": "disk is full"}),
        Message("ok", {"accepted": "1"}),
        Message("ok", {}),
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"slurm-energy/1 ok\naccepted=2\n",
        b"",
        b"\xff" * 100_000,
    ],
)
def test_any_other_answer_keeps_the_reports(bench: Bench, tmp_path: Path, answer: Message | bytes) -> None:
    with_reports(bench, tmp_path, 2, lambda job_ids: answer)
    with pytest.raises((SlurmEnergyError, WireError)):
        run_flush(bench.context())
    assert len(bench.reports()) == 2
    assert list(bench.spool.rejected.iterdir()) == []


def test_absent_daemon_keeps_the_reports(bench: Bench, tmp_path: Path) -> None:
    daemon = with_reports(bench, tmp_path, 2, accept)
    daemon.close()
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    bench.node = node(tmp_path, address)
    with pytest.raises(DaemonUnavailable, match="no daemon answers"):
        run_flush(bench.context())
    assert len(bench.reports()) == 2


def test_reports_wait_when_no_daemon_is_configured(bench: Bench, tmp_path: Path) -> None:
    with_reports(bench, tmp_path, 1, accept)
    bench.node = node(tmp_path, "")
    assert not run_flush(bench.context())
    assert len(bench.reports()) == 1


def test_report_that_cannot_be_read_stops_no_other(bench: Bench, tmp_path: Path) -> None:
    daemon = with_reports(bench, tmp_path, 2, accept)
    (bench.spool.reports / "1-0-9.json").write_bytes(b'{"job_id": ')
    (bench.spool.reports / "1-0-8.json").write_bytes(b"[" * 50_000)
    assert run_flush(bench.context())
    assert daemon.job_ids == [[1, 2]]
    assert len(list(bench.spool.rejected.iterdir())) == 2


def test_two_flushes_do_not_send_twice(bench: Bench, tmp_path: Path) -> None:
    daemon = with_reports(bench, tmp_path, 1, accept)
    with bench.spool.try_flush_lock() as held:
        assert held
        assert run_flush(bench.context())
    assert daemon.job_ids == []


def test_many_reports_go_in_bounded_batches(bench: Bench, tmp_path: Path) -> None:
    daemon = with_reports(bench, tmp_path, 1, accept)
    original = next(iter(bench.spool.reports.iterdir())).read_bytes()
    for job_id in range(2, 451):
        text = original.replace(b'"job_id":1,', f'"job_id":{job_id},'.encode())
        (bench.spool.reports / f"{job_id}-0-1.json").write_bytes(text)
    assert run_flush(bench.context())
    assert max(len(batch) for batch in daemon.job_ids) <= 200
    assert sorted(job_id for batch in daemon.job_ids for job_id in batch) == list(range(1, 451))


def test_missing_key_keeps_the_reports(bench: Bench, tmp_path: Path) -> None:
    with_reports(bench, tmp_path, 1, accept)
    (tmp_path / "report.key").unlink()
    with pytest.raises(AuthenticationError, match="cannot be read"):
        run_flush(bench.context())
    assert len(bench.reports()) == 1


def test_a_node_without_reports_tells_how_it_is_once_in_a_while_and_at_each_change(
    bench: Bench, tmp_path: Path
) -> None:
    daemon = with_reports(bench, tmp_path, 0, accept)
    for _ in range(3):
        assert run_flush(bench.context())
        bench.clock.advance(60)
    assert len(daemon.statuses) == 1
    bench.clock.advance(STATUS_INTERVAL_SECONDS)
    assert run_flush(bench.context())
    assert len(daemon.statuses) == 2
    note_repair(bench.context(), clean=False, said=["GPU-1: clock not restored"])
    assert run_flush(bench.context())
    assert [status.repair_said for status in daemon.statuses] == [(), (), ("GPU-1: clock not restored",)]
    assert [len(status.gpus or ()) for status in daemon.statuses] == [0, 0, 4]


def test_a_status_that_was_not_taken_is_told_again(bench: Bench, tmp_path: Path) -> None:
    daemon = with_reports(bench, tmp_path, 0, lambda job_ids: Message("error", {"reason": "disk is full"}))
    for _ in range(2):
        assert not run_flush(bench.context())
    assert len(daemon.statuses) == 2
    assert "disk is full" in bench.lines[-1]


def test_a_node_whose_spool_cannot_be_used_says_so(bench: Bench, tmp_path: Path) -> None:
    daemon = with_reports(bench, tmp_path, 0, accept)
    bench.spool.root.write_text("a file where a folder should be")
    with pytest.raises(SpoolError):
        run_flush(bench.context())
    assert any("cannot be created" in problem for problem in daemon.statuses[0].problems)


def ended(bench: Bench, job_id: int) -> None:
    run_prolog(bench.context(), bench.hook(job_id))
    run_epilog(bench.context(), bench.hook(job_id))


def test_the_epilog_starts_the_delivery_of_its_report(bench: Bench, tmp_path: Path) -> None:
    ended(bench, 1)
    assert bench.flushes == 0  # nobody to deliver to
    bench.node = node(tmp_path, "127.0.0.1:1")
    ended(bench, 2)
    assert bench.flushes == 1
    with bench.spool.try_turn() as turn:
        assert turn is not None
        ended(bench, 4)  # it goes with the delivery that waits
    assert bench.flushes == 1
    run_epilog(bench.context(), bench.hook(3, gpus=""))
    assert bench.flushes == 1


def test_a_report_is_on_its_way_within_the_spread_of_its_job(bench: Bench, tmp_path: Path) -> None:
    daemon = Daemon(accept)
    bench.node = node(tmp_path, daemon.address)
    ended(bench, 1)
    bench.pauses.clear()
    assert run_flush_soon(bench.context(), "n[1-500]", lambda: 0.5)
    assert bench.pauses == [pytest.approx(6.0)]
    assert daemon.job_ids == [[1]]
    daemon.close()


def test_a_node_whose_jobs_end_one_after_the_other_comes_only_now_and_then(bench: Bench, tmp_path: Path) -> None:
    daemon = Daemon(accept)
    bench.node = node(tmp_path, daemon.address)
    run_flush_soon(bench.context(), "n1", lambda: 0.0)
    bench.pauses.clear()
    run_flush_soon(bench.context(), "n1", lambda: 0.0)
    bench.clock.advance(3600.0)
    run_flush_soon(bench.context(), "n1", lambda: 0.0)
    first, second = bench.pauses
    assert (0.0 < first <= MIN_INTERVAL_SECONDS, second) == (True, 0.0)
    daemon.close()


def test_one_process_waits_for_all_reports_of_a_node(bench: Bench, tmp_path: Path) -> None:
    bench.node = node(tmp_path, "127.0.0.1:1")
    bench.spool.prepare()
    with bench.spool.try_turn() as turn:
        assert turn is not None
        assert run_flush_soon(bench.context(), "n1", lambda: 0.9)
    assert bench.pauses == []


@pytest.mark.parametrize(
    ("nodes", "seconds"), [("", 2.0), ("n1", 2.02), ("n[1-100]", 4.0), ("n[1-60000]", 30.0), ("n[", 2.02)]
)
def test_the_nodes_of_a_large_job_come_over_a_longer_time(nodes: str, seconds: float) -> None:
    assert spread_seconds(nodes) == pytest.approx(seconds)


def test_a_delivery_that_an_epilog_asked_for_looks_at_the_node_once_a_minute_and_the_timers_always(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = status.node_status

    def counted(context: HookContext, problems: Sequence[str] = ()) -> NodeStatus:
        nonlocal looks
        looks += 1
        return look(context, problems)

    monkeypatch.setattr(status, "node_status", counted)
    daemon = Daemon(accept)
    bench.node = node(tmp_path, daemon.address)
    seen = []
    for seconds in (0.0, 20.0, 20.0, 30.0, 20.0):
        bench.clock.advance(seconds)
        run_flush_soon(bench.context(), "n1", lambda: 0.0)
        seen.append(looks)
    run_flush(bench.context())
    assert seen == [1, 1, 1, 2, 2]
    assert looks == 3
    assert len(daemon.statuses) == 1  # nothing had changed
    daemon.close()


def test_a_spool_that_cannot_be_used_is_told_at_once(bench: Bench, tmp_path: Path) -> None:
    daemon = Daemon(accept)
    bench.node = node(tmp_path, daemon.address)
    run_flush_soon(bench.context(), "n1", lambda: 0.0)
    bench.spool.reports.rmdir()
    bench.spool.reports.write_text("")
    with pytest.raises(SpoolError):
        run_flush(bench.context(), look_again=False)
    assert len(daemon.statuses) == 2
    daemon.close()
