import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric
from test_verbs import ALICE, ROOT, Desk

from slurm_energy.daemon.metrics.counts import FILE_NAME, DecisionCounts, load_counts, save_counts
from slurm_energy.daemon.metrics.families import MAX_PARTITIONS, OTHERS, families
from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import ClusterName, NodeName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.domain.node_status import NodeStatus, ReceivedStatus, SpoolStatus
from slurm_energy.errors import PermissionRefused
from slurm_energy.resources import shared_directory
from slurm_energy.wire.codec import Message

LABELS = {"version", "policy", "policy_version", "partition", "clock", "mode", "reason", "event", "le", "node"}
QUERY = Message("query", {"what": "metrics"})


def node(number: int) -> ReceivedStatus:
    status = NodeStatus(
        cluster=ClusterName("lab"),
        node=NodeName(f"gpu{number:03d}"),
        sent_at_seconds=100.0,
        boot_id="b",
        hook_version="1",
        interpreter="python",
        spool=SpoolStatus(path="/var/spool", waiting_reports=number, oldest_waiting_seconds=12.5),
        problems=("one",),
        driver_problem="two",
    )
    return ReceivedStatus(received_at_seconds=101.0, status=status)


def document(partitions: int = 2) -> dict[str, Any]:
    counts = DecisionCounts()
    for reason in Reason:
        counts.decided("balanced", [reason], 0.0004)
    counts.decided("saver", [], 3.0)
    names = [f"p{number:03d}" for number in range(partitions)]
    return {
        "version": "0.1.0",
        "policy": "oracle",
        "policy_version": "1",
        "started_at_seconds": 50.0,
        "snapshot_age_seconds": 1.0,
        "jobs": 3,
        "gpu_nodes": 4,
        "journal_waiting": 5,
        "journal_waiting_bytes": 6,
        "journal_dropped": 7,
        "decisions": counts.document({f"request {number}": number for number in range(20)}),
        "store": {
            "problem": "",
            "energy": {
                name: {"gpu_joules": 1e6 - number, "readings": 8, "unknown_readings": 1}
                for number, name in enumerate(names)
            },
            "running_gpus": {name: {"default": 2, "lowered": 1} for name in names},
        },
    }


def samples(found: list[Metric]) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(one.name, tuple(one.labels.values())): one.value for metric in found for one in metric.samples}


def test_a_scrape_of_256_nodes_and_20_partitions_has_fewer_than_2000_series_and_no_label_of_a_user() -> None:
    found = list(families(document(20), [node(number) for number in range(256)]))
    assert len([one for metric in found for one in metric.samples]) < 2000
    assert {label for metric in found for one in metric.samples for label in one.labels} <= LABELS


def test_what_the_daemon_and_its_nodes_say_is_what_a_scrape_shows() -> None:
    found = samples(list(families(document(), [node(3)])))
    assert found["slurm_energy_up", ()] == 1.0
    assert found["slurm_energy_gpu_energy_joules_total", ("p001",)] == 1e6 - 1
    assert found["slurm_energy_gpu_unknown_readings_total", ("p000",)] == 1
    assert found["slurm_energy_running_gpus", ("p000", "lowered")] == 1
    assert found["slurm_energy_decisions_total", ("saver",)] == 1
    assert found["slurm_energy_decision_reasons_total", (str(Reason.POLICY),)] == 1
    assert found["slurm_energy_decision_seconds_bucket", ("0.0005",)] == len(Reason)
    assert found["slurm_energy_decision_seconds_bucket", ("+Inf",)] == len(Reason) + 1
    assert found["slurm_energy_spool_waiting_reports", ("gpu003",)] == 3
    assert found["slurm_energy_node_problems", ("gpu003",)] == 2


def test_without_the_daemon_it_is_down_and_the_nodes_are_still_shown() -> None:
    found = samples(list(families(None, [node(3)])))
    assert found["slurm_energy_up", ()] == 0.0
    assert found["slurm_energy_node_seen_seconds", ("gpu003",)] == 101.0
    assert ("slurm_energy_database_up", ()) not in found


def test_partitions_over_the_limit_are_one_and_lose_no_joule() -> None:
    rows = document(MAX_PARTITIONS + 10)
    found = samples(list(families(rows, [])))
    energy = {labels[0]: value for (name, labels), value in found.items() if name.endswith("gpu_energy_joules_total")}
    assert len(energy) == MAX_PARTITIONS + 1 and OTHERS in energy
    assert sum(energy.values()) == sum(row["gpu_joules"] for row in rows["store"]["energy"].values())


@pytest.mark.parametrize("name", ["grafana/slurm-energy.json", "prometheus/slurm-energy.rules.yml"])
def test_every_query_of_dashboard_and_rules_asks_for_a_metric_and_a_label_that_there_are(name: str) -> None:
    text = (shared_directory("templates") / name).read_text()
    known = {one.name for metric in families(document(), [node(1)]) for one in metric.samples}
    asked = set(re.findall(r"\bslurm_energy_\w+", text))
    assert asked and asked <= known
    grouped = {label for part in re.findall(r"by \(([\w, ]+)\)", text) for label in part.split(", ")}
    assert grouped | set(re.findall(r"\{(\w+)=~", text)) | set(re.findall(r"\$labels\.(\w+)", text)) <= LABELS


def test_the_dashboard_has_what_grafana_needs_to_import_it() -> None:
    board = json.loads((shared_directory("templates") / "grafana/slurm-energy.json").read_text())
    assert board["schemaVersion"] >= 36 and board["uid"] and board["title"]
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and panel["targets"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_counts_go_on_after_an_orderly_restart_and_begin_at_zero_after_a_kill(tmp_path: Path) -> None:
    first = load_counts(tmp_path)
    first.decided("balanced", ["policy"], 0.0004)
    save_counts(tmp_path, first, {"requests": 2})
    second = load_counts(tmp_path)
    second.decided("balanced", ["policy"], 0.0004)
    whole = second.document({"requests": 1})
    assert (
        whole["modes"] == {"balanced": 2} and whole["reasons"] == {"policy": 2} and whole["events"] == {"requests": 3}
    )
    assert sum(second.buckets) == 2
    assert load_counts(tmp_path).document({})["modes"] == {}, "the second one was killed"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "buckets": [1]}', '{"format": 1, "buckets": 3}'])
def test_a_damaged_file_of_counts_is_zero(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert load_counts(tmp_path).document({})["modes"] == {}


def test_metrics_are_for_root_and_hold_the_decisions_that_were_made(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(PermissionRefused):
        asyncio.run(desk.verbs.answer(QUERY, ALICE))
    desk.state.decision_counts.decided(EnergyMode.SAVER, ["policy"], 0.001)
    reply = asyncio.run(desk.verbs.answer(QUERY, ROOT)).reply
    assert isinstance(reply, Message)
    found = samples(list(families(json.loads(reply.fields["json"]), [])))
    assert found["slurm_energy_decisions_total", ("saver",)] == 1
    assert found["slurm_energy_database_up", ()] == 1.0


def test_metrics_without_the_recorder_say_that_the_database_is_down(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.recorder.away = True
    reply = asyncio.run(desk.verbs.answer(QUERY, ROOT)).reply
    assert isinstance(reply, Message)
    found = samples(list(families(json.loads(reply.fields["json"]), [])))
    assert found["slurm_energy_database_up", ()] == 0.0 and found["slurm_energy_up", ()] == 1.0
