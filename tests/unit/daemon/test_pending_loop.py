"""The daemon's loop over waiting jobs: what it may send, what it does without the right, and what it never breaks."""

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policy_factory import NOW, ids, make_config, make_job
from test_pending_jobs import FIELDS, decider, snapshot, waiting

from slurm_energy.config import Config
from slurm_energy.daemon.decide import Decided, Known
from slurm_energy.daemon.pending import loop as loop_module
from slurm_energy.daemon.pending import updates
from slurm_energy.daemon.pending.loop import PendingLoop
from slurm_energy.daemon.recorder.entries import DAEMON_STREAM, JournalQueue
from slurm_energy.daemon.recorder.journal import JournalWriter
from slurm_energy.daemon.state import DaemonState


class Nobody:
    """Answers no question."""

    async def query(self, query: Any, only_user_id: int | None) -> list[bytes]:
        raise AssertionError(f"asked {query} for {only_user_id}")


class Sent:
    """Stands for scontrol: keeps what it is asked, and says what a test wants."""

    calls: list[tuple[int, list[str]]]
    says: Any = ""
    others: frozenset[int] = frozenset()
    """Jobs that their users have changed."""

    def __init__(self, config: Config) -> None:
        del config

    async def unchanged(self, jobs: dict[int, Any]) -> frozenset[int]:
        return frozenset(jobs) - frozenset(Sent.others)

    async def update(self, user_id: int, lines: list[str]) -> str:
        Sent.calls.append((user_id, list(lines)))
        if isinstance(Sent.says, Exception):
            raise Sent.says
        return str(Sent.says)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> type[Sent]:
    Sent.calls, Sent.says, Sent.others = [], "", frozenset()
    monkeypatch.setattr(loop_module, "JobUpdater", Sent)
    monkeypatch.setattr(loop_module, "missing_right", lambda _config: "")
    monkeypatch.setattr(time, "time", lambda: NOW + 60.0)
    return Sent


def make_state(tmp_path: Path, jobs: int = 1, **routing: Any) -> tuple[DaemonState, list[Decided]]:
    base = make_config(routing_open=True, less_gpu_memory=True, max_slowdown=0.9)
    config = replace(base, routing=replace(base.routing, redecide="on", redecide_seconds=0.0, **routing))
    state = DaemonState(
        config=config,
        decider=decider(config),
        journal=JournalQueue(JournalWriter(tmp_path, DAEMON_STREAM)),
        recorder=Nobody(),
        privileged=frozenset({0}),
    )
    full, source, decided = snapshot(), ids(), []
    for _ in range(jobs):
        one = decider().decide_request(make_job(4, time_limit_minutes=60.0), Known(snapshot=full), NOW)
        one = replace(one, decision=replace(one.decision, decision_id=source()))
        assert state.tracked.add(one, FIELDS, full)
        decided.append(one)
    return state, decided


def shown(decided: list[Decided], seconds: float, **changes: Any) -> Any:
    jobs = [
        waiting(one, job_id=number, user_id=1000 + number % 2, partitions=("a100",))
        for number, one in enumerate(decided, start=1)
    ]
    return snapshot(*jobs, seconds=seconds, **changes)


def rounds(state: DaemonState, *snapshots: Any) -> PendingLoop:
    running = PendingLoop(state)

    async def all_rounds() -> None:
        for one in snapshots:
            state.snapshot = one
            await running._round(one)  # one turn of the loop, without its clock

    asyncio.run(all_rounds())
    return running


def test_updates_go_to_slurm_in_their_owners_names(tmp_path: Path, sent: type[Sent]) -> None:
    state, decided = make_state(tmp_path)
    rounds(state, shown(decided, 58), shown(decided, 59, a40_free=True))
    assert sent.calls == [(1001, ["JobId=1 Partition=a40,a100"])]
    assert state.counters["updates of waiting jobs sent"] == 1
    assert state.counters["waiting jobs: changed"] == 1, "it may have ended by the next snapshot"
    moved = replace(
        shown(decided, 62, a40_free=True), jobs=(waiting(decided[0], job_id=1, partitions=("a40", "a100")),)
    )
    rounds(state, moved)
    assert state.counters["waiting jobs: changed"] == 1, "recorded once"


def test_without_the_right_nothing_is_sent_and_it_is_said(
    tmp_path: Path, sent: type[Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "missing_right", lambda _config: "the daemon runs as uid 999")
    state, decided = make_state(tmp_path)
    rounds(state, shown(decided, 58), shown(decided, 59, a40_free=True))
    assert sent.calls == []
    assert state.redecide_note == "the daemon runs as uid 999"


def test_a_denial_of_slurm_stops_updates_until_a_reload(tmp_path: Path, sent: type[Sent]) -> None:
    sent.says = "slurm_update error: User id is missing"
    state, decided = make_state(tmp_path)
    running = rounds(state, shown(decided, 58), shown(decided, 59, a40_free=True))
    assert "denied" in running._note()
    state.config = replace(state.config)
    assert running._note() == ""


def test_a_denial_of_one_users_job_is_that_jobs_own(tmp_path: Path, sent: type[Sent]) -> None:
    sent.says = "slurm_update error: Access/permission denied"
    state, decided = make_state(tmp_path)
    running = rounds(state, shown(decided, 58), shown(decided, 59, a40_free=True))
    assert sent.calls
    assert running._note() == "", "its longer limit may be over its partition's"
    for user_id in (2001, 2002):
        running._note_denial(user_id, sent.says)
    assert "denied" in running._note(), "three users, and none was allowed"
    allowed = PendingLoop(state)
    allowed._has_changed = True
    for user_id in range(9):
        allowed._note_denial(user_id, sent.says)
    assert allowed._note() == ""


def test_what_is_not_sent_after_a_denial_is_not_recorded_as_changed(tmp_path: Path, sent: type[Sent]) -> None:
    state, decided = make_state(tmp_path)
    running = PendingLoop(state)
    running._denied_for = state.config

    async def all_rounds() -> None:
        await running._round(shown(decided, 58))
        state.redecide_note = ""
        running._note = lambda: ""  # type: ignore[method-assign]  # denied while the updates were on their way
        await running._round(shown(decided, 59, a40_free=True))

    asyncio.run(all_rounds())
    assert sent.calls == []
    assert state.counters["waiting jobs: changed"] == 0
    assert state.counters["updates of waiting jobs not sent"] == 1
    (job,) = state.tracked.jobs.values()
    assert job.attempt is None


def test_a_job_that_its_user_changed_since_the_snapshot_is_not_changed_over(tmp_path: Path, sent: type[Sent]) -> None:
    state, decided = make_state(tmp_path)
    sent.others = frozenset({1})
    rounds(state, shown(decided, 58), shown(decided, 59, a40_free=True))
    assert sent.calls == []
    (job,) = state.tracked.jobs.values()
    assert (job.attempt, job.changes) == (None, 0)


@pytest.mark.parametrize("trouble", [OSError("no scontrol"), TimeoutError()])
def test_a_scontrol_that_fails_or_hangs_leaves_jobs_to_the_next_snapshot(
    tmp_path: Path, sent: type[Sent], trouble: Exception
) -> None:
    sent.says = trouble
    state, decided = make_state(tmp_path)
    rounds(state, shown(decided, 58), shown(decided, 59, a40_free=True))
    (job,) = state.tracked.jobs.values()
    assert job.attempt is not None
    late = isinstance(trouble, TimeoutError)
    assert job.attempt.ended_at_seconds == NOW + (180.0 if late else 60.0), "slurmctld may carry it out late"
    assert job.attempt.may_come_late is late


def test_no_more_updates_are_sent_than_the_site_allows_in_a_minute(tmp_path: Path, sent: type[Sent]) -> None:
    state, _ = make_state(tmp_path, jobs=1, redecide_per_minute=1)
    running = PendingLoop(state)
    assert running._allowance(1) == 1
    running._budget -= 1.0
    assert running._allowance(1) == 0


def test_the_service_user_must_be_slurms_or_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(updates, "user_id_of", lambda _name: 64030)
    assert "must run as SlurmUser" in updates.missing_right(Config())
    for user_id in (0, 64030):
        monkeypatch.setattr(os, "geteuid", lambda user_id=user_id: user_id)
        assert updates.missing_right(Config()) == ""
