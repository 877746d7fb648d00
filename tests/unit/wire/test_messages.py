import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.decision import ClockChoice, DecisionEntry, EnergyDecision
from slurm_energy.domain.ids import DecisionId, GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import WireError
from slurm_energy.wire.codec import Message
from slurm_energy.wire.messages import (
    Query,
    SubmittedFields,
    decision_reply,
    json_reply,
    one_line,
    parse_query,
    parse_submitted_job,
)

ID = DecisionId("0123456789abcdef")
A100 = GpuTypeName("a100-sxm4-80gb")


def test_every_field_of_a_job_is_read() -> None:
    fields = {
        "client": "job_submit/22.05.8",
        "uid": "1000",
        "name": "train",
        "account": "acct",
        "qos": "long",
        "partition": "a100,a40",
        "time_limit": "90",
        "min_nodes": "2",
        "max_nodes": "4",
        "num_tasks": "8",
        "ntasks_per_node": "4",
        "cpus_per_task": "2",
        "min_cpus": "16",
        "mem_per_node_mib": "4096",
        "tres_per_node": "gres:gpu:a100:2",
        "tres_freq": "gpu:high",
        "features": "ib",
        "prefer": "nvlink",
        "reservation": "maint",
        "array": "0-9%2",
        "exclusive": "1",
        "energy_mode": "saver",
        "energy_max_slowdown": "7.5",
        "energy_deadline": "tomorrow",
        "energy_quiet": "1",
    }
    assert parse_submitted_job(fields) == SubmittedFields(
        user_id=1000,
        client="job_submit/22.05.8",
        name="train",
        account="acct",
        qos="long",
        partitions=(PartitionName("a100"), PartitionName("a40")),
        time_limit_minutes=90,
        nodes_min=2,
        nodes_max=4,
        tasks=8,
        tasks_per_node=4,
        cpus_per_task=2,
        cpus_min=16,
        memory_per_node_mib=4096,
        tres_per_node="gres:gpu:a100:2",
        tres_frequency="gpu:high",
        features="ib",
        prefer="nvlink",
        reservation="maint",
        array="0-9%2",
        exclusive=True,
        mode=EnergyMode.SAVER,
        max_slowdown=0.075,
        deadline="tomorrow",
        quiet=True,
    )


def test_a_job_with_nothing_but_its_user_is_a_job() -> None:
    assert parse_submitted_job({"uid": "0"}) == SubmittedFields(user_id=0)


@pytest.mark.parametrize("uid", [None, "", "root", "-1", "4294967295", "1e3", "\u0661"])
def test_a_job_without_a_user_is_refused(uid: str | None) -> None:
    with pytest.raises(WireError, match="uid"):
        parse_submitted_job({} if uid is None else {"uid": uid})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("energy_mode", "turbo"),
        ("energy_max_slowdown", "-5"),
        ("energy_max_slowdown", "nan"),
        ("energy_max_slowdown", "1e9"),
        ("time_limit", "-1"),
        ("min_nodes", "99999999999999999999999"),
        ("partition", "a100;rm -rf"),
    ],
)
def test_a_value_that_cannot_be_read_is_left_out_and_told(key: str, value: str) -> None:
    job = parse_submitted_job({"uid": "1000", key: value})
    assert job.complaints == (f"{key} {value[:40]!r} cannot be read and is left out",)
    assert SubmittedFields(user_id=1000, complaints=job.complaints) == job


@pytest.mark.parametrize("text", ["infinite", "0"])
def test_no_limit_is_no_limit(text: str) -> None:
    assert parse_submitted_job({"uid": "1", "time_limit": text}).time_limit_minutes is None


def test_a_hostile_name_is_kept_but_for_what_no_database_takes() -> None:
    name = "x; $(id)\n\x1b[31m<b>'\"\x00\udcff"
    assert parse_submitted_job({"uid": "1", "name": name}).name == "x; $(id)\n\x1b[31m<b>'\"\ufffd\ufffd"


@given(st.dictionaries(st.sampled_from(["uid", "name", "time_limit", "partition", "energy_mode"]), st.text()))
def test_any_fields_are_a_job_or_our_own_error(fields: dict[str, str]) -> None:
    with contextlib.suppress(WireError):
        assert parse_submitted_job(fields).user_id == int(fields["uid"])


def decision(**fields: object) -> EnergyDecision:
    clock = ClockChoice(
        gpu_type=A100,
        sm_clock_mhz=1275,
        default_clock_mhz=1410,
        predicted_slowdown=0.05,
        predicted_energy_change=-0.13,
    )
    values: dict[str, object] = {
        "decision_id": ID,
        "policy": "oracle",
        "policy_version": "1",
        "mode": EnergyMode.BALANCED,
        "decided_at_seconds": 1.0,
        "clocks": (clock,),
        "message": "a100 at 1275 of 1410 MHz",
        "announcement": "a lower GPU clock",
        **fields,
    }
    return EnergyDecision(**values)  # type: ignore[arg-type]  # each test gives fields of the right type


ENTRY = DecisionEntry(decision_id=ID, mode=EnergyMode.BALANCED, clocks_mhz={A100: 1275}, time_limit_minutes=60)


def test_a_decision_becomes_the_reply_of_the_protocol() -> None:
    assert decision_reply(decision(partitions=(PartitionName("a100"), PartitionName("a40"))), ENTRY) == Message(
        "ok",
        {
            "decision_id": "0123456789abcdef",
            "entry": "v=1;id=0123456789abcdef;mode=balanced;clocks=a100-sxm4-80gb:1275;limit=60",
            "admin_comment": "energy:0123456789abcdef",
            "partition": "a100,a40",
            "message": "a lower GPU clock",
        },
    )


def test_energy_sbatch_gets_the_line_with_figures() -> None:
    assert decision_reply(decision(), ENTRY, explained=True).fields["message"] == "a100 at 1275 of 1410 MHz"
    assert parse_submitted_job({"uid": "1", "submit_uid": "1", "energy_explain": "1"}).explain


def test_a_decision_that_changes_nothing_still_carries_its_entry() -> None:
    entry = DecisionEntry(decision_id=ID, mode=EnergyMode.OFF)
    reply = decision_reply(decision(mode=EnergyMode.OFF, clocks=(), message="", announcement=""), entry)
    assert reply.fields == {
        "decision_id": "0123456789abcdef",
        "entry": "v=1;id=0123456789abcdef;mode=off",
        "admin_comment": "energy:0123456789abcdef",
    }


def test_the_line_of_a_job_that_stays_goes_with_a_partition_alone() -> None:
    lines: dict[str, object] = {
        "message": "a40 first",
        "message_in_place": "a100 at 1275",
        "announcement": "another choice of partition",
        "announcement_in_place": "a lower GPU clock",
    }
    moved = decision(partitions=(PartitionName("a40"),), **lines)
    for explained, shown in (
        (True, ("message", "message_in_place")),
        (False, ("announcement", "announcement_in_place")),
    ):
        fields = decision_reply(moved, ENTRY, explained=explained).fields
        assert (fields["message"], fields["message_in_place"]) == tuple(lines[name] for name in shown)
        assert "message_in_place" not in decision_reply(decision(**lines), ENTRY, explained=explained).fields


def test_a_preferred_feature_is_sent_as_it_is() -> None:
    assert decision_reply(decision(prefer="rack:3"), ENTRY).fields["prefer"] == "rack:3"


def test_that_a_named_partition_is_a_preference_goes_with_a_partition_alone() -> None:
    moved = decision(partitions=(PartitionName("a40"),))
    assert "open" not in decision_reply(moved, ENTRY).fields
    assert decision_reply(replace(moved, opens=True), ENTRY).fields["open"] == "1"
    assert "open" not in decision_reply(decision(opens=True), ENTRY).fields


def test_whether_a_user_leaves_his_partition_open_is_read_and_nothing_else_is_taken_for_it() -> None:
    read = {text: parse_submitted_job({"uid": "1", "energy_open": text}).open for text in ("on", "off", "maybe", "")}
    assert read == {"on": True, "off": False, "maybe": None, "": None}


def test_a_partition_name_that_the_plugin_could_misread_is_not_sent() -> None:
    assert "partition" not in decision_reply(decision(partitions=(PartitionName("a b"),)), ENTRY).fields


def test_a_message_is_one_line_of_bounded_length() -> None:
    assert one_line("a\nb\x1b[31m\u2028c ") == "a b [31m c"
    assert len(one_line("€" * 400).encode()) <= 512


def test_figures_that_json_lacks_are_not_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        json_reply({"x": float("nan")})
    assert json.loads(json_reply({"name": "x\n"}).fields["json"]) == {"name": "x\n"}


def test_a_query_is_read() -> None:
    fields = {"what": "report-user", "user": "alice", "since": "1000", "until": "2000.5", "cluster": "lab"}
    assert parse_query(fields) == Query(
        subject="report-user", user_name="alice", since_seconds=1000.0, until_seconds=2000.5, cluster="lab"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"what": "drop table"},
        {"what": "explain", "job": "x"},
        {"what": "decisions", "since": "nan"},
        {"what": "decisions", "until": "-1"},
        {"what": "explain", "job": "4294967296"},
    ],
)
def test_a_query_that_cannot_be_read_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(WireError):
        parse_query(fields)
