import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policy_parts import NODE
from policy_parts import snapshot as a40_cluster

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon.decide import create_decider, time_limit_minutes
from slurm_energy.daemon.doors.callers import CostLimit, Peer, RateLimit
from slurm_energy.daemon.doors.plugin import Answer
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.daemon.recorder.entries import DecisionEntryLine, JournalQueue, decode_entry
from slurm_energy.daemon.recorder.journal import JournalReader, JournalWriter
from slurm_energy.daemon.state import DaemonState
from slurm_energy.daemon.verbs import LocalVerbs
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, PartitionState
from slurm_energy.domain.decision import EnergyDecision
from slurm_energy.domain.ids import ClusterName, DecisionId, PartitionName
from slurm_energy.domain.job import EnergyMode, JobRequest
from slurm_energy.errors import DaemonUnavailable, PermissionRefused, WireError
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.wire.codec import Message, decode, encode
from slurm_energy.wire.messages import Query

ROOT = Peer(process_id=1, user_id=0, privileged=True)
ALICE = Peer(process_id=2, user_id=1000, privileged=False)


class FakeRecorder:
    def __init__(self) -> None:
        self.asked: list[tuple[Query, int | None]] = []
        self.away = False

    async def query(self, query: Query, only_user_id: int | None) -> list[bytes]:
        if self.away:
            raise DaemonUnavailable("the recorder is away")
        self.asked.append((query, only_user_id))
        whole = encode(Message("ok", {"json": '{"revision":"0001"}'}))
        return [whole[:7], whole[7:]]


class Desk:
    """Verbs on a state without any process behind it."""

    def __init__(self, directory: Path) -> None:
        config = replace(Config(), policy=PolicyConfig(name="oracle"))
        self.recorder = FakeRecorder()
        self.directory = directory
        self.state = DaemonState(
            config=config,
            decider=create_decider(config),
            journal=JournalQueue(JournalWriter(directory, "daemon")),
            recorder=self.recorder,
            privileged=frozenset({0}),
        )
        self.verbs = LocalVerbs(self.state)

    def ask(self, verb: str, peer: Peer, **fields: str) -> Answer:
        return asyncio.run(self.verbs.answer(Message(verb, fields), peer))

    def reply(self, verb: str, peer: Peer, **fields: str) -> Message:
        reply = self.ask(verb, peer, **fields).reply
        assert isinstance(reply, Message)
        return reply


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_decision_is_journaled_only_after_the_reply(desk: Desk) -> None:
    answer = desk.ask("decide", ROOT, uid="1000", name="train", tres_per_node="gres:gpu:1")
    assert desk.state.journal.waiting == 0
    assert answer.afterwards is not None
    answer.afterwards()
    asyncio.run(desk.state.journal.flush())
    (line,) = JournalReader(desk.directory, "daemon").read(10)
    entry = decode_entry(line.text)
    assert isinstance(entry, DecisionEntryLine)
    assert isinstance(answer.reply, list)
    assert entry.decision.decision_id == decode(b"".join(answer.reply)).fields["decision_id"]
    assert entry.job.name == "train"


def test_only_slurm_and_root_may_ask_for_decisions(desk: Desk) -> None:
    with pytest.raises(PermissionRefused, match="uid 1000 may not ask for decisions"):
        desk.ask("decide", ALICE, uid="1000")


def test_a_preview_is_of_the_caller_himself_and_leaves_no_trace(desk: Desk) -> None:
    answer = desk.ask("preview", ALICE, uid="0", tres_per_node="gres:gpu:1")
    assert answer.afterwards is None
    assert isinstance(answer.reply, Message)
    assert json.loads(answer.reply.fields["json"])["job"]["user_id"] == 1000
    assert desk.state.journal.waiting == 0


def test_previews_move_no_price_of_a_rule_and_submissions_do(desk: Desk) -> None:
    config = replace(Config(), policy=PolicyConfig(name="adaptive-price"))
    full = NodeGpus(slurm_type="a40", count=4, allocated=4)
    desk.state.config, desk.state.decider = config, create_decider(config)
    desk.state.snapshot = replace(a40_cluster(time.time()), nodes=(replace(NODE, gpus=(full,)),))
    rule: Any = desk.state.decider.policy
    for _ in range(3):
        desk.ask("preview", ALICE, tres_per_node="gres:gpu:1")
    assert rule.prices_watts in {(), (0.0,)}
    desk.ask("decide", ROOT, uid="1000", name="train", tres_per_node="gres:gpu:1")
    assert rule.prices_watts == pytest.approx((0.1,))


def test_slurm_may_preview_for_another_user(desk: Desk) -> None:
    assert json.loads(desk.reply("preview", ROOT, uid="1000").fields["json"])["job"]["user_id"] == 1000


def test_people_are_answered_about_their_own_jobs_only(desk: Desk) -> None:
    desk.ask("query", ALICE, what="report-job", job="7")
    desk.ask("query", ROOT, what="report-job", job="7")
    assert [only for _, only in desk.recorder.asked] == [1000, None]


def test_status_tells_an_administrator_of_the_database_and_everybody_of_the_daemon(desk: Desk) -> None:
    assert set(json.loads(desk.reply("query", ALICE, what="status").fields["json"])) == {"daemon"}
    both = json.loads(desk.reply("query", ROOT, what="status").fields["json"])
    assert both["store"] == {"revision": "0001"}
    assert both["daemon"]["policy"] == "oracle"


def test_status_says_why_another_policy_than_the_learned_one_decides(desk: Desk) -> None:
    assert json.loads(desk.reply("query", ALICE, what="status").fields["json"])["daemon"]["policy_note"] is None
    desk.state.policy_note = "torch not installed: policy oracle decides"
    told = json.loads(desk.reply("query", ALICE, what="status").fields["json"])["daemon"]
    assert told["policy_note"] == "torch not installed: policy oracle decides"


def test_status_is_answered_while_the_database_is_away(desk: Desk) -> None:
    desk.recorder.away = True
    assert json.loads(desk.reply("query", ROOT, what="status").fields["json"])["store"] == {
        "error": "the recorder is away"
    }


def test_ping_tells_the_policy_and_no_age_without_a_snapshot(desk: Desk) -> None:
    fields = desk.reply("ping", ALICE).fields
    assert fields["policy"] == "oracle"
    assert not {"snapshot_age_seconds", "policy_process"} & fields.keys()


def test_ping_tells_how_the_process_of_a_learned_policy_is(desk: Desk) -> None:
    learned = RemotePolicy("gnn", OraclePolicy(), timeout_seconds=0.02, max_age_seconds=60.0)
    learned.refused("CheckpointError: no weights")
    desk.state.decider = desk.state.decider.with_policy(learned)
    assert desk.reply("ping", ALICE).fields["policy_process"] == "refused: CheckpointError: no weights"


def test_an_unknown_verb_is_refused_with_the_known_ones(desk: Desk) -> None:
    with pytest.raises(WireError, match="decide, reused, preview, offer, query, newest, ping"):
        desk.ask("report", ROOT)


def test_what_previews_of_one_user_have_cost_is_spent_for_all_users_and_not_for_slurm(desk: Desk) -> None:
    desk.verbs._previews = CostLimit(share=0.0, burst_seconds=1e-9)
    desk.ask("preview", ALICE, tres_per_node="gres:gpu:1")
    for peer in (ALICE, Peer(process_id=3, user_id=1001, privileged=False)):
        with pytest.raises(DaemonUnavailable, match="too many previews"):
            desk.ask("preview", peer)
    desk.ask("preview", ROOT, uid="1000")


def test_a_cost_limit_gives_a_share_of_the_time_back() -> None:
    limit = CostLimit(share=0.1, burst_seconds=1.0)
    assert limit.allows("a", 0.0)
    limit.charge("a", 3.0, 0.0)
    assert [limit.allows("a", 0.0), limit.allows("b", 0.0)] == [False, True]
    assert [limit.allows("a", 19.0), limit.allows("a", 21.0)] == [False, True]
    assert not limit.allows(("b", "a"), 0.0)


def test_a_rate_limit_lets_bursts_through_and_recovers() -> None:
    limit = RateLimit(per_second=2.0, burst=3.0)
    assert [limit.allows(1, 0.0) for _ in range(4)] == [True, True, True, False]
    assert [limit.allows(1, 1.0) for _ in range(3)] == [True, True, False]


def snapshot(*partitions: PartitionState) -> ClusterSnapshot:
    return ClusterSnapshot(cluster=ClusterName("lab"), taken_at_seconds=0.0, partitions=partitions)


@pytest.mark.parametrize(
    ("limit", "partitions", "expected"),
    [
        (90.0, (), 90),
        (0.5, (), 1),
        (None, (), 60),
        (None, ("short", "long"), 30),
        (None, ("endless",), None),
        (None, ("absent",), None),
    ],
)
def test_the_time_limit_in_the_entry_is_the_one_the_job_will_have(
    limit: float | None, partitions: tuple[str, ...], expected: int | None
) -> None:
    known = snapshot(
        PartitionState(name=PartitionName("normal"), is_default=True, up=True, max_time_minutes=60.0),
        PartitionState(
            name=PartitionName("short"), is_default=False, up=True, max_time_minutes=120.0, default_time_minutes=30.0
        ),
        PartitionState(name=PartitionName("long"), is_default=False, up=True, max_time_minutes=600.0),
        PartitionState(name=PartitionName("endless"), is_default=False, up=True),
    )
    names = tuple(PartitionName(name) for name in partitions)
    decision = EnergyDecision(
        decision_id=DecisionId("0123456789abcdef"),
        policy="oracle",
        policy_version="1",
        mode=EnergyMode.BALANCED,
        decided_at_seconds=0.0,
    )
    job = JobRequest(user_id=1, partitions=names, time_limit_minutes=limit)
    assert time_limit_minutes(job, decision, known) == expected
