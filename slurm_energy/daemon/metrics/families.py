"""The metrics by name: what the daemon and the nodes say of themselves as Prometheus's families.

No user, account or job name is a label: a label holds a partition, a node, a mode, a reason or a kind of event.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from slurm_energy.config import Config
from slurm_energy.daemon.doors.reports import FOLDER
from slurm_energy.daemon.metrics.counts import BUCKET_SECONDS
from slurm_energy.domain.node_status import ReceivedStatus
from slurm_energy.errors import SlurmEnergyError, WireError
from slurm_energy.wire.client import exchange
from slurm_energy.wire.codec import Message
from slurm_energy.wire.fields import loads
from slurm_energy.wire.node_status import decode_received

ASK_SECONDS = 10.0
MAX_REPLY_BYTES = 1_048_576
MAX_NODES = 400
MAX_PARTITIONS = 64
OTHERS = "(others)"
"""Partitions over the limit together; a limit keeps a scrape below 2,000 series."""

Document = Mapping[str, Any]


class DaemonCollector(Collector):
    """Asks the daemon and looks at what nodes sent, at each scrape."""

    def __init__(self, config: Config) -> None:
        """Keep the settings; nothing is asked before the first scrape."""
        self._socket = Path(config.daemon.socket_path)
        self._folder = Path(config.daemon.state_directory) / FOLDER

    def collect(self) -> Iterator[Metric]:
        """Yield every family; of a daemon that does not answer, that it is down."""
        try:
            reply = exchange(self._socket, Message("query", {"what": "metrics"}), ASK_SECONDS)
            if reply.verb != "ok":
                raise WireError(reply.fields.get("reason", reply.verb))
            document = loads(reply.fields["json"].encode(), "metrics", MAX_REPLY_BYTES)
        except (SlurmEnergyError, KeyError):
            document = None
        yield from families(document if isinstance(document, dict) else None, node_statuses(self._folder))


def node_statuses(folder: Path) -> list[ReceivedStatus]:
    """Return what each node sent last; files that cannot be read are left out."""
    found: list[ReceivedStatus] = []
    with contextlib.suppress(OSError):
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.name[0] != ".")
        for path in paths[:MAX_NODES]:
            with contextlib.suppress(OSError, WireError):
                found.append(decode_received(path.read_bytes()))
    return found


def families(document: Document | None, nodes: Sequence[ReceivedStatus]) -> Iterator[Metric]:
    """Yield the families of one scrape.

    Args:
        document: The daemon's answer to the query `metrics`, None where it gives none.
        nodes: What nodes sent last.
    """
    yield _gauge("up", "Whether the daemon answers.", 0.0 if document is None else 1.0)
    if document is not None:
        yield from _daemon(document)
        yield from _decisions(document["decisions"])
        yield from _store(document["store"])
    yield from _nodes(nodes)


def _daemon(document: Document) -> Iterator[Metric]:
    names = ("version", "policy", "policy_version")
    info = GaugeMetricFamily("slurm_energy_info", "Release and policy in force; always 1.", labels=names)
    info.add_metric([str(document[name]) for name in names], 1.0)
    yield info
    yield _gauge("start_time_seconds", "When the daemon started, Unix time.", document["started_at_seconds"])
    if document["snapshot_age_seconds"] is not None:
        yield _gauge("snapshot_age_seconds", "Age of what is known of the cluster.", document["snapshot_age_seconds"])
        yield _gauge("jobs", "Jobs in Slurm's memory.", document["jobs"])
        yield _gauge("gpu_nodes", "Nodes with GPUs.", document["gpu_nodes"])
    yield from _power(document.get("power"))
    yield _gauge("journal_waiting_entries", "Entries that are in memory only.", document["journal_waiting"])
    yield _gauge("journal_waiting_bytes", "Of the journal, not in the database yet.", document["journal_waiting_bytes"])
    dropped = CounterMetricFamily("slurm_energy_journal_dropped", "Decisions lost because the disk was full.")
    dropped.add_metric([], document["journal_dropped"])
    yield dropped


def _power(power: Document | None) -> Iterator[Metric]:
    if power is None:
        return
    if power["budget_watts"] is not None:
        yield _gauge("power_budget_watts", "What GPUs of running jobs may draw together.", power["budget_watts"])
    yield _gauge("running_gpu_watts", "What they draw, as far as nodes state it.", power["drawn_watts"])
    yield _gauge("jobs_lowered", "Running jobs whose clock gives way to the power budget.", power["lowered"])


def _decisions(counts: Document) -> Iterator[Metric]:
    for name, label, text in (
        ("decisions", "mode", "Decisions by mode of the job."),
        ("decision_reasons", "reason", "Reasons of decisions; a decision has several."),
        ("events", "event", "Requests, reports and what else the daemon counts."),
    ):
        family = CounterMetricFamily(f"slurm_energy_{name}", text, labels=[label])
        for value, number in sorted(counts["modes" if name == "decisions" else label + "s"].items()):
            family.add_metric([value], number)
        yield family
    total, buckets = 0, []
    for end, number in zip((*map(str, BUCKET_SECONDS), "+Inf"), counts["buckets"], strict=True):
        total += number
        buckets.append((end, float(total)))
    seconds = HistogramMetricFamily("slurm_energy_decision_seconds", "Time from a submission's request to its answer.")
    seconds.add_metric([], buckets, counts["seconds"])
    yield seconds


def _store(store: Document) -> Iterator[Metric]:
    yield _gauge("database_up", "Whether the database answers and takes what is recorded.", float(not store["problem"]))
    energy = _folded(store["energy"], "gpu_joules")
    for column, name, text in (
        ("gpu_joules", "gpu_energy_joules", "Energy of GPUs in jobs that a node has reported, by partition."),
        ("readings", "gpu_readings", "Readings of GPUs in reports."),
        ("unknown_readings", "gpu_unknown_readings", "Readings whose energy is not known."),
    ):
        family = CounterMetricFamily(f"slurm_energy_{name}", text, labels=["partition"])
        for partition, sums in energy.items():
            family.add_metric([partition], sums[column])
        yield family
    text = "GPUs of running jobs, by whether a clock under the default was decided for the job."
    running = GaugeMetricFamily("slurm_energy_running_gpus", text, labels=["partition", "clock"])
    for partition, sums in _folded(store["running_gpus"], "default").items():
        for clock in ("default", "lowered"):
            running.add_metric([partition, clock], sums[clock])
    yield running


def _folded(rows: Mapping[str, Mapping[str, float]], order: str) -> dict[str, dict[str, float]]:
    """Return the rows of the largest partitions, and those of all others as one."""
    names = sorted(rows, key=lambda name: (-rows[name][order], name))
    found = {name: dict(rows[name]) for name in names[:MAX_PARTITIONS]}
    for name in names[MAX_PARTITIONS:]:
        one = found.setdefault(OTHERS, dict.fromkeys(rows[name], 0.0))
        for column, value in rows[name].items():
            one[column] += value
    return found


def _nodes(nodes: Sequence[ReceivedStatus]) -> Iterator[Metric]:
    seen = GaugeMetricFamily("slurm_energy_node_seen_seconds", "When a node was heard of last.", labels=["node"])
    waiting = GaugeMetricFamily("slurm_energy_spool_waiting_reports", "Reports in a node's spool.", labels=["node"])
    oldest = GaugeMetricFamily("slurm_energy_spool_oldest_seconds", "Age of the oldest of them.", labels=["node"])
    problems = GaugeMetricFamily("slurm_energy_node_problems", "Problems that a node names.", labels=["node"])
    for received in nodes:
        name, spool = received.status.node, received.status.spool
        seen.add_metric([name], received.received_at_seconds)
        waiting.add_metric([name], spool.waiting_reports)
        oldest.add_metric([name], spool.oldest_waiting_seconds or 0.0)
        problems.add_metric([name], len(received.status.problems) + (received.status.driver_problem is not None))
    yield from (seen, waiting, oldest, problems)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"slurm_energy_{name}", text)
    family.add_metric([], value)
    return family
