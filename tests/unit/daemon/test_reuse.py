"""Which decisions the plugin may give again, and what the daemon makes of one that it has given."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from policy_parts import NODE, PARTITION, Baseline

from slurm_energy.config import Config, PolicyConfig, ScriptConfig
from slurm_energy.daemon.decide import create_decider
from slurm_energy.daemon.doors.callers import Peer
from slurm_energy.daemon.doors.plugin import SlurmVerbs
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.daemon.recorder.entries import DecisionEntryLine, JournalQueue, decode_entry
from slurm_energy.daemon.recorder.journal import JournalReader, JournalWriter
from slurm_energy.daemon.reuse import KEPT_SECONDS, MAX_KEPT, NAME_BITS, REUSE_MILLISECONDS, ReusableDecisions
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus
from slurm_energy.domain.decision import PolicyAnswer, Reason
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, PartitionName
from slurm_energy.domain.plain import to_plain
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.estimation.run_time import EndedRun, RunTimeModel
from slurm_energy.policy.base import Case
from slurm_energy.policy.oracle import OraclePolicy
from slurm_energy.wire.codec import Message, decode, encode
from slurm_energy.wire.messages import decision_reply

ROOT = Peer(process_id=1, user_id=0, privileged=True)
ALICE = Peer(process_id=2, user_id=1000, privileged=False)
LIMIT_SECONDS = 3600.0
ONE_GPU = {"uid": "1000", "name": "train", "tres_per_node": "gres:gpu:1", "time_limit": "60"}
NEW_ID = "fedcba9876543210"
OTHER_PARTITION = replace(PARTITION, name=PartitionName("other"), is_default=False)


class Prices:
    """Stands for a policy of prices that answers in the daemon itself."""

    name, version = "gnn", "1"

    def decide(self, *_asked: Case) -> PolicyAnswer:
        return PolicyAnswer()


def cluster(*, gpus: int = 4, age_seconds: float = 1.0, more: bool = False) -> ClusterSnapshot:
    node = replace(NODE, gpus=(NodeGpus(slurm_type="a100", count=gpus),), memory_mib=64_000.0)
    return ClusterSnapshot(
        cluster=ClusterName("lab"),
        taken_at_seconds=time.time() - age_seconds,
        partitions=(PARTITION, *((OTHER_PARTITION,) if more else ())),
        nodes=(node,),
    )


class Desk:
    """What the plugin speaks to, without a process."""

    def __init__(self, directory: Path) -> None:
        config = replace(Config(), policy=PolicyConfig(name="oracle", min_saving_per_slowdown=0.0))
        self.directory = directory
        self.state = DaemonState(
            config=config,
            decider=create_decider(config),
            journal=JournalQueue(JournalWriter(directory, "daemon")),
            recorder=SimpleNamespace(),  # nobody asks it here
            privileged=frozenset({0}),
            snapshot=cluster(),
        )
        self.link = SlurmVerbs(self.state)

    def ask(self, verb: str, fields: dict[str, str], peer: Peer = ROOT) -> Message:
        reply, afterwards = self.link.answer_now(encode(Message(verb, fields)), peer)
        if afterwards is not None:
            afterwards()
        return decode(reply)

    def decide(self, **fields: str) -> Message:
        reply = self.ask("decide", {**ONE_GPU, **fields})
        assert reply.verb == "ok", reply
        return reply

    def reusable(self, **fields: str) -> bool:
        return "reuse_milliseconds" in self.decide(**fields).fields

    def recorded(self) -> list[DecisionEntryLine]:
        asyncio.run(self.state.journal.flush())
        entries = [decode_entry(line.text) for line in JournalReader(self.directory, "daemon").read(100)]
        return [entry for entry in entries if isinstance(entry, DecisionEntryLine)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_decision_on_clocks_alone_may_be_given_again_for_a_second(desk: Desk) -> None:
    reply = desk.decide()
    assert "clocks=a100-sxm4-80gb:" in reply.fields["entry"]
    assert reply.fields["reuse_milliseconds"] == str(REUSE_MILLISECONDS) == "1000"


@pytest.mark.parametrize(
    "fields",
    [
        {"energy_mode": "off"},
        {"energy_mode": "observe"},
        {"tres_per_node": ""},
        {"partition": "a40"},
        {"tres_freq": "gpu:low"},
        {"dependency": "afterok:7"},
        {"held": "1"},
        {"array": "1-4"},
        {"energy_max_slowdown": "3"},
    ],
)
def test_what_does_not_depend_on_the_moment_may_be_given_again(desk: Desk, fields: dict[str, str]) -> None:
    assert desk.reusable(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"energy_deadline": "2099-01-01T00:00"},
        {"slurm_deadline": "4070908800"},
        {"begin_time": "4070908800"},
        {"partition": "nowhere"},
        {"min_nodes": "many"},
        {"energy_mode": "fast"},
        {"tres_per_node": "gres:gpu:a40:x"},
        {"energy_mode": "off", "energy_deadline": "2099-01-01T00:00"},
    ],
)
def test_what_depends_on_the_moment_or_was_not_understood_is_decided_each_time(
    desk: Desk, fields: dict[str, str]
) -> None:
    assert not desk.reusable(**fields)


@pytest.mark.parametrize("snapshot", [None, cluster(age_seconds=1e6)])
def test_without_a_fresh_picture_of_the_cluster_nothing_is_given_again(
    desk: Desk, snapshot: ClusterSnapshot | None
) -> None:
    desk.state.snapshot = snapshot
    assert not desk.reusable()


def test_a_picture_that_will_be_too_old_within_the_second_is_not_relied_on(desk: Desk) -> None:
    oldest = desk.state.config.daemon.snapshot_max_age_seconds
    desk.state.snapshot = cluster(age_seconds=oldest - 0.5)
    assert not desk.reusable()
    desk.state.snapshot = cluster(age_seconds=oldest - 10.0)
    assert desk.reusable()


def test_a_job_that_could_be_sent_elsewhere_is_decided_each_time(desk: Desk) -> None:
    desk.state.snapshot = cluster(more=True)
    config = replace(desk.state.config, routing=replace(desk.state.config.routing, open=True))
    desk.state.config, desk.state.decider = config, create_decider(config)
    assert not desk.reusable()
    assert desk.reusable(partition="a40")


@pytest.mark.parametrize(
    ("reason", "reusable"),
    [
        (Reason.POLICY, True),
        (Reason.POLICY_TIMEOUT, False),
        (Reason.POLICY_LOADING, False),
        (Reason.POLICY_ERROR, False),
        (Reason.STALE_SNAPSHOT, False),
    ],
)
def test_a_reason_that_passes_is_not_given_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, reason: Reason, reusable: bool
) -> None:
    monkeypatch.setattr(OraclePolicy, "decide", lambda *_asked: PolicyAnswer(reasons=(reason,)))
    assert desk.reusable() == reusable


def test_a_decision_on_nodes_is_made_each_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    node = replace(NODE, features=("fast",), memory_mib=64_000.0)
    desk.state.snapshot = replace(cluster(), nodes=(node,))
    config = replace(desk.state.config, routing=replace(desk.state.config.routing, node_hints=True))
    desk.state.config, desk.state.decider = config, create_decider(config)
    monkeypatch.setattr(OraclePolicy, "decide", lambda *_asked: PolicyAnswer(prefer="fast"))
    reply = desk.decide()
    assert reply.fields["prefer"] == "fast"
    assert "reuse_milliseconds" not in reply.fields


def with_remote_policy(desk: Desk, gpus: int) -> RemotePolicy:
    policy = RemotePolicy("gnn", Baseline(), timeout_seconds=0.01, max_age_seconds=60.0)
    desk.state.decider = desk.state.decider.with_policy(policy)
    desk.state.snapshot = cluster(gpus=gpus)
    return policy


@pytest.mark.parametrize(
    ("gpus", "fields", "reusable"),
    [
        (4, {}, False),  # such jobs fill the partition, and then it has another price
        (4, {"held": "1"}, True),
        (4, {"tres_per_node": "gres:gpu:5"}, True),
        (1024, {}, True),
        (1024, {"tres_per_node": "gres:gpu:8"}, False),
        (1024, {"array": "1-4"}, False),
    ],
)
def test_at_prices_a_decision_is_given_again_while_equal_jobs_cannot_fill_the_partition(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, gpus: int, fields: dict[str, str], reusable: bool
) -> None:
    policy = with_remote_policy(desk, gpus)
    monkeypatch.setattr(policy, "_detached", Prices())
    monkeypatch.setattr(policy, "_detached_at_seconds", time.time())
    assert desk.reusable(**fields) == reusable


def test_what_a_policy_in_another_process_or_one_that_nobody_knows_answers_is_not_given_again(desk: Desk) -> None:
    with_remote_policy(desk, 1024)
    assert not desk.reusable()
    desk.state.decider = desk.state.decider.with_policy(Prices())
    assert not desk.reusable()


def reused(base: str, new: str = NEW_ID) -> dict[str, str]:
    return {**ONE_GPU, "base_decision_id": base, "decision_id": new}


def test_a_decision_given_again_is_recorded_claimed_and_counted_as_one_of_its_own(desk: Desk) -> None:
    base = desk.decide().fields["decision_id"]
    assert desk.ask("reused", reused(base)) == Message("ok", {"decision_id": NEW_ID})
    first, second = desk.recorded()
    assert (first.decision.decision_id, second.decision.decision_id) == (base, NEW_ID)
    assert second.decision.clocks == first.decision.clocks != ()
    assert second.decision.decided_at_seconds > first.decision.decided_at_seconds
    assert second.job == replace(first.job, submitted_at_seconds=second.decision.decided_at_seconds)
    assert desk.state.claims.unseen_by(desk.state.snapshot) == {PARTITION.name: 2.0}
    assert {name: desk.state.counters[name] for name in ("decisions", "decisions reused")} == {
        "decisions": 2,
        "decisions reused": 1,
    }


def test_a_decision_given_again_under_another_name_is_recorded_under_that_name(desk: Desk) -> None:
    base = desk.decide().fields["decision_id"]
    assert desk.ask("reused", {**reused(base), "name": "other"}).verb == "ok"
    first, second = desk.recorded()
    assert (first.job.name, second.job.name) == ("train", "other")
    assert second.decision.clocks == first.decision.clocks


def bits_of(names: str) -> set[int]:
    value = int.from_bytes(bytes.fromhex(names), "little")
    return {bit for bit in range(NAME_BITS) if value >> bit & 1}


def worked_out(desk: Desk, **fields: str) -> Message:
    """Return a reply that is worked out, and not that on a like job."""
    desk.state.reusable = ReusableDecisions()
    return desk.decide(**fields)


def names_with_runs(desk: Desk) -> set[int]:
    return bits_of(worked_out(desk).fields["reuse_names"])


def test_the_plugin_learns_which_names_of_the_user_have_runs(desk: Desk) -> None:
    known = desk.state.names_with_runs
    assert names_with_runs(desk) == set()
    known.add("runtimes", [(1000, "123456789"), (1001, "theirs")], first=True, last=True)
    known.add("clocks", [(1000, "a")], first=True, last=True)
    assert names_with_runs(desk) == {0xCBF43926 % NAME_BITS, 0xE8B7BE43 % NAME_BITS}
    known.add("runtimes", [(1000, "b")], first=False, last=True)
    assert len(names_with_runs(desk)) == 3
    known.add("runtimes", [], first=True, last=True)
    assert names_with_runs(desk) == {0xE8B7BE43 % NAME_BITS}


def test_names_of_a_table_that_comes_in_parts_count_from_the_first_to_the_last(desk: Desk) -> None:
    known = desk.state.names_with_runs
    known.add("work", [(1000, "a")], first=True, last=True)
    known.add("work", [(1000, "b")], first=True, last=False)
    assert len(names_with_runs(desk)) == 2, "the table before is in use until the new one is whole"
    known.add("work", [(1000, "c")], first=False, last=True)
    assert len(names_with_runs(desk)) == 2, "of the new one alone"


def test_an_answer_that_rests_on_a_name_or_a_script_is_for_no_other_name(desk: Desk) -> None:
    assert "reuse_names" not in worked_out(desk, name="").fields
    assert "reuse_names" not in worked_out(desk, script="v=1;model=bert").fields
    desk.state.names_with_runs.add("work", [(1000, "train")], first=True, last=True)
    assert "reuse_names" not in worked_out(desk).fields
    assert "reuse_names" in worked_out(desk, name="other").fields
    desk.state.names_with_runs.add("work", [(1000, f"n{number}") for number in range(2000)], first=True, last=True)
    assert "reuse_names" not in worked_out(desk, name="other").fields, "most names have a bit"


def test_a_daemon_that_did_not_make_the_decision_records_the_job_all_the_same(desk: Desk) -> None:
    assert desk.ask("reused", reused("0123456789abcdef")).verb == "ok"
    (line,) = desk.recorded()
    assert line.decision.decision_id == NEW_ID
    assert (line.job.user_id, line.job.name, line.job.gpu_count) == (1000, "train", 1)
    assert any("given again from 0123456789abcdef" in note for note in line.decision.notes)


def test_only_slurm_and_root_may_tell_of_decisions(desk: Desk) -> None:
    base = desk.decide().fields["decision_id"]
    assert desk.ask("reused", reused(base), ALICE).verb == "refused"
    assert len(desk.recorded()) == 1


@pytest.mark.parametrize(
    "fields", [{}, reused("x"), reused("0123456789abcdef", "No id"), reused("0123456789abcdef", "")]
)
def test_a_malformed_word_of_a_decision_records_nothing(desk: Desk, fields: dict[str, str]) -> None:
    assert desk.ask("reused", fields).verb != "ok"
    assert desk.recorded() == []


def test_what_is_remembered_is_bounded_and_forgotten(desk: Desk) -> None:
    base = desk.decide().fields["decision_id"]
    kept = desk.state.reusable
    one = kept._kept[DecisionId(base)]
    for number in range(MAX_KEPT + 5):
        decision = replace(one.decided.decision, decision_id=DecisionId(f"decision{number}"))
        kept.keep(replace(one.decided, decision=decision), {"name": "x", "uid": str(number)}, one.basis, b"", 100.0)
    assert len(kept._kept) == len(kept._last) == MAX_KEPT
    assert kept.again(DecisionId("decision4"), DecisionId(NEW_ID), "x", 1.0, 100.0) is None
    assert kept.again(DecisionId("decision5"), DecisionId(NEW_ID), "x", 1.0, 100.0) is not None
    assert kept.again(DecisionId("decision5"), DecisionId(NEW_ID), "x", 1.0, 100.0 + KEPT_SECONDS) is None
    kept.keep(one.decided, ONE_GPU, one.basis, b"", 100.0 + KEPT_SECONDS)
    assert set(kept._kept) == {DecisionId(base)}
    assert set(kept._last.values()) == {DecisionId(base)}


LIKE = "decisions as on a like job"


def test_a_job_that_differs_in_its_name_alone_gets_the_same_decision_as_one_of_its_own(desk: Desk) -> None:
    one, other = desk.decide(), desk.decide(name="other")
    assert desk.state.counters[LIKE] == 1
    first, second = desk.recorded()
    assert (first.job.name, second.job.name) == ("train", "other")
    assert second.decision.decision_id == other.fields["decision_id"] != one.fields["decision_id"]
    assert second.decision.decided_at_seconds == second.job.submitted_at_seconds > first.decision.decided_at_seconds
    assert second.decision.snapshot_age_seconds is not None and first.decision.snapshot_age_seconds is not None
    assert second.decision.snapshot_age_seconds > first.decision.snapshot_age_seconds
    own = {"decision_id", "decided_at_seconds", "snapshot_age_seconds"}
    was, now = to_plain(first.decision), to_plain(second.decision)
    assert {name for name in was if was[name] != now[name]} == own
    assert other.fields["entry"] == one.fields["entry"].replace(one.fields["decision_id"], other.fields["decision_id"])
    assert other.fields["admin_comment"] == f"energy:{other.fields['decision_id']}"


def test_a_decision_holds_no_longer_for_being_given_to_like_jobs(desk: Desk) -> None:
    base = DecisionId(desk.decide().fields["decision_id"])
    kept, one = desk.state.reusable, desk.state.reusable._kept[base]
    basis = lambda _user_id, _name, _script: one.basis  # noqa: E731  # the clock alone is looked at here
    found = kept.like({**ONE_GPU, "name": "other"}, basis, one.until - 0.25)
    assert found is not None
    assert found.milliseconds in {249, 250}
    decided, fields = found.decided(time.time()), {**ONE_GPU, "name": "other"}
    desk.state.reusable.keep(decided, fields, one.basis, found.reply(), one.until - 0.25, found.milliseconds)
    assert kept.like({**ONE_GPU, "name": "third"}, basis, one.until + 0.001) is None
    assert kept.like({**ONE_GPU, "name": "third"}, basis, one.until - 0.0005) is None


def test_the_reply_on_a_like_job_is_that_of_its_own_decision(desk: Desk) -> None:
    first = desk.decide()
    one = desk.state.reusable._kept[DecisionId(first.fields["decision_id"])]
    found = desk.state.reusable.like({**ONE_GPU, "name": "other"}, lambda *_: one.basis, one.until - 0.25)
    assert found is not None
    decided = found.decided(time.time())
    names = first.fields["reuse_names"]
    assert found.reply() == encode(
        decision_reply(decided.decision, decided.entry, reuse_milliseconds=found.milliseconds, reuse_names=names)
    )


@pytest.mark.parametrize(
    "fields", [{"time_limit": "61"}, {"uid": "1001"}, {"partition": "a100"}, {"tres_per_node": "gres:gpu:2"}]
)
def test_any_other_difference_is_decided_anew(desk: Desk, fields: dict[str, str]) -> None:
    desk.decide()
    desk.decide(name="other", **fields)
    assert desk.state.counters[LIKE] == 0


def test_whose_earlier_runs_are_known_by_name_is_decided_anew(desk: Desk) -> None:
    desk.decide()
    runtime = RunTimeModel().of_runs([EndedRun(user=1000, name="known", seconds=60.0)])
    desk.state.history = JobHistory(runtimes={(1000, "known"): runtime})
    known = desk.decide(name="known")
    assert desk.state.counters[LIKE] == 0
    assert desk.recorded()[-1].decision.estimate == runtime.estimate(LIMIT_SECONDS)
    desk.decide(name="unknown")
    assert desk.state.counters[LIKE] == 0, f"the last one, {known.fields['decision_id']}, rests on runs of its name"


def test_whose_name_has_a_clock_that_was_learned_is_decided_anew(desk: Desk) -> None:
    desk.decide()
    clock = LearnedClock(
        sm_clock_mhz=1110, default_clock_mhz=1410, slowdown=0.02, error=0.003, energy_change=-0.2, runs=1
    )
    desk.state.history = JobHistory(clocks={(1000, "known"): {GpuTypeName("a100-sxm4-80gb"): clock}})
    desk.decide(name="known")
    assert desk.state.counters[LIKE] == 0


@pytest.mark.parametrize("change", ["snapshot", "policy", "groups", "user name"])
def test_when_anything_changes_that_a_decision_rests_on_it_is_made_anew(desk: Desk, change: str) -> None:
    desk.decide()
    state = desk.state
    match change:
        case "snapshot":
            state.snapshot = cluster()
        case "policy":
            state.decider = create_decider(state.config)
        case "groups":
            state.user_groups[1000] = frozenset({"users"})
        case _:
            state.user_names = {1000: "alice"}
    desk.decide(name="other")
    assert state.counters[LIKE] == 0
    desk.decide(name="third")
    assert state.counters[LIKE] == 1


def test_what_must_be_decided_each_time_is_not_given_to_like_jobs(desk: Desk) -> None:
    for name in ("one", "other"):
        desk.decide(name=name, slurm_deadline="4070908800")
    assert desk.state.counters[LIKE] == 0


def test_features_of_a_script_are_recorded_and_a_forged_form_is_left_out_and_said(desk: Desk) -> None:
    desk.decide(script="v=1;programs=python;model=bert")
    desk.decide(script="v=1;model=../../etc", name="forged")
    good, bad = desk.recorded()
    assert good.job.script == ScriptFeatures(programs=("python",), model="bert")
    assert bad.job.script is None
    assert any(note.startswith("script 'v=1;model=../../etc' cannot be read") for note in bad.decision.notes)


def test_where_the_site_does_not_read_scripts_what_is_sent_is_not_taken(desk: Desk) -> None:
    desk.state.config = replace(desk.state.config, script=ScriptConfig(read="off"))
    desk.decide(script="v=1;model=bert")
    assert desk.recorded()[0].job.script is None


def test_a_like_job_with_another_script_is_decided_anew(desk: Desk) -> None:
    desk.decide(script="v=1;model=bert")
    desk.decide(script="v=1;model=vgg16", name="other")
    assert desk.state.counters[LIKE] == 0
    desk.decide(script="v=1;model=bert", name="other")
    assert desk.state.counters[LIKE] == 1


def test_runs_of_the_same_script_speak_for_a_name_that_says_nothing(desk: Desk) -> None:
    script = ScriptFeatures(model="bert")
    runtime = RunTimeModel().of_runs([EndedRun(user=1000, name="train", seconds=60.0)] * 7)
    desk.state.history = JobHistory(runtimes={(1000, job_group("train", script.key)): runtime})
    desk.decide(script=script.encode(), name="train_lr0.1_seed3")
    desk.decide(script="v=1;model=vgg16", name="train_lr0.1_seed3")
    known, unknown = desk.recorded()
    assert known.decision.estimate == runtime.estimate(LIMIT_SECONDS)
    assert unknown.decision.estimate != known.decision.estimate
