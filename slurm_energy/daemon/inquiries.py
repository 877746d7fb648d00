"""What people, monitors and nodes ask the daemon: whether it is there, its state, its metrics, and what is recorded."""

import asyncio
import json
import time
from pathlib import Path

from slurm_energy import __version__
from slurm_energy.daemon.doors.callers import Peer
from slurm_energy.daemon.doors.power import read_power_status
from slurm_energy.daemon.doors.reports import nodes_summary
from slurm_energy.daemon.recorder.entries import STREAMS
from slurm_energy.daemon.recorder.journal import journal_directory, waiting_bytes
from slurm_energy.daemon.state import DaemonState
from slurm_energy.daemon.uncarried import NONE_SUBMITTED
from slurm_energy.domain.ids import parse_decision_id, parse_job_id
from slurm_energy.errors import DaemonUnavailable, PermissionRefused
from slurm_energy.wire.codec import Message, decode
from slurm_energy.wire.messages import Query, json_reply, parse_query


class Inquiries:
    """Answers from the daemon's state, and from its recorder."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state

    async def query(self, message: Message, peer: Peer) -> Message | list[bytes]:
        """Return the answer to a question about records, the daemon's state or its metrics."""
        query = parse_query(message.fields)
        recorder = self._state.recorder
        if query.subject == "metrics":
            return await self._metrics(query, peer)
        if query.subject != "status":
            return await recorder.query(query, None if peer.privileged else peer.user_id)
        if not peer.privileged:
            return json_reply({"daemon": self._status()})
        try:
            reply = decode(b"".join(await recorder.query(query, None)))
            store = json.loads(reply.fields["json"]) if reply.verb == "ok" else {"error": reply.fields["reason"]}
        except DaemonUnavailable as error:
            store = {"error": str(error)}
        folder = Path(self._state.config.daemon.state_directory)
        # A look at thousands of files, in a thread: no submission waits for it.
        nodes = await asyncio.to_thread(nodes_summary, folder, self._state.snapshot, time.time())
        return json_reply({"daemon": self._status(), "nodes": nodes, "store": store})

    async def _metrics(self, query: Query, peer: Peer) -> Message:
        if not peer.privileged:
            raise PermissionRefused("metrics are shown to root and SlurmUser only")
        state = self._state
        try:
            reply = decode(b"".join(await state.recorder.query(query, None)))
            store = json.loads(reply.fields["json"]) if reply.verb == "ok" else {"problem": reply.fields["reason"]}
        except DaemonUnavailable as error:
            store = {"problem": str(error)}
        snapshot = state.snapshot
        document = {
            "version": __version__,
            "policy": state.decider.policy.name,
            "policy_version": state.decider.policy.version,
            "started_at_seconds": time.time() - state.uptime_seconds,
            "snapshot_age_seconds": state.snapshot_age_seconds(time.time()),
            "jobs": 0 if snapshot is None else len(snapshot.jobs),
            "gpu_nodes": 0 if snapshot is None else sum(bool(node.gpus) for node in snapshot.nodes),
            "journal_waiting": state.journal.waiting,
            "journal_waiting_bytes": waiting_bytes(journal_directory(state.config), STREAMS),
            "journal_dropped": state.journal.dropped,
            "power": read_power_status(Path(state.config.daemon.state_directory)),
            "decisions": state.decision_counts.document(state.counters),
            "store": {"problem": "", "energy": {}, "running_gpus": {}} | store,
        }
        return json_reply(document)

    async def newest(self, message: Message, peer: Peer) -> Message:
        """Return the newest entry of a decision for the node on which its job starts; none where the job's own is."""
        state, fields = self._state, message.fields
        if "job_id" not in fields:
            entry = state.tracked.newer_entry(parse_decision_id(fields.get("decision_id", "")))
            return Message("ok", {} if entry is None else {"entry": entry.encode()})
        if not peer.privileged:
            raise PermissionRefused(f"uid {peer.user_id} may not ask by a job's number: only its node may")
        decision_id = await state.uncarried.decision_of(parse_job_id(fields["job_id"]), state.snapshot)
        if decision_id is None:
            return Message("ok", {} if state.uncarried.entries else {"note": NONE_SUBMITTED})
        entry = state.tracked.newer_entry(decision_id) or state.uncarried.entries.get(decision_id)
        return Message("ok", {} if entry is None else {"entry": entry.encode()})

    def ping(self) -> Message:
        """Return who answers, for how long, and on how old a snapshot."""
        age = self._state.snapshot_age_seconds(time.time())
        fields = {
            "version": __version__,
            "policy": self._state.decider.policy.name,
            "uptime_seconds": f"{self._state.uptime_seconds:.1f}",
        }
        if self._state.policy_process is not None:
            fields["policy_process"] = self._state.policy_process
        if age is not None:
            fields["snapshot_age_seconds"] = f"{age:.1f}"
        return Message("ok", fields)

    def _status(self) -> dict[str, object]:
        state = self._state
        directory = journal_directory(state.config)
        return {
            "version": __version__,
            "policy": state.decider.policy.name,
            "policy_version": state.decider.policy.version,
            "policy_process": state.policy_process,
            "policy_note": state.policy_note or None,
            "policy_champion": state.candidates.live.champion_id or None,
            "policy_challenger": state.candidates.live.challenger_id or None,
            "policy_stage": None if state.candidates.live.stage is None else state.candidates.live.stage.value,
            "policy_trouble": state.candidates.trouble or None,
            "uptime_seconds": round(state.uptime_seconds, 1),
            "snapshot_age_seconds": state.snapshot_age_seconds(time.time()),
            "snapshot_jobs": None if state.snapshot is None else len(state.snapshot.jobs),
            "snapshot_nodes": None if state.snapshot is None else len(state.snapshot.nodes),
            "reader": state.reader or None,
            "reader_note": state.reader_crash or state.reader_note or None,
            "mean_slowdown": _mean_slowdown(state),
            "power_budget": _power_budget(state),
            "redecide": state.config.routing.redecide,
            "redecide_note": state.redecide_note or None,
            "tracked_jobs": len(state.tracked.jobs),
            "snapshot_rows_skipped": dict(state.skipped_rows) or None,
            "journal_waiting": state.journal.waiting,
            "journal_waiting_bytes_on_disk": waiting_bytes(directory, STREAMS),
            "journal_dropped": state.journal.dropped,
            "counters": dict(state.counters),
        }


def _power_budget(state: DaemonState) -> dict[str, object] | None:
    """Return the power budget and what running jobs draw; None where there is none."""
    power = state.config.power
    if not power.budget_watts and not power.budget_series:
        return None
    found = read_power_status(Path(state.config.daemon.state_directory))
    if found is None:
        return {"note": "no node has stated a job's power: is node.follow_power_budget set, and node.daemon_address?"}
    return {
        "budget_watts": found.get("budget_watts"),
        "running_gpus_watts": found.get("drawn_watts"),
        "over_with_lowest_clocks_watts": found.get("missing_watts"),
        "lowered": f"{found.get('lowered')} of {found.get('jobs')} jobs",
        "seconds_ago": round(time.time() - float(str(found.get("at_seconds", 0.0))), 1),
        "problem": found.get("problem") or None,
    }


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else round(100.0 * ratio, 2)


def _mean_slowdown(state: DaemonState) -> dict[str, float | int | str | None] | None:
    """Return how clocks keep a bound that is held in the mean; None where each job keeps it or nothing is known."""
    clocks = state.history.site_clocks
    if clocks is None:
        return None
    bound = state.config.policy.max_slowdown
    return {
        "bound_percent": 100.0 * bound,
        "used_percent": _percent(clocks.used.slowdown),
        "used_is": "mostly measured" if clocks.used.is_measured else "mostly predicted",
        "used_jobs": clocks.used.jobs,
        "measured_percent": _percent(clocks.used.measured_slowdown),
        "measured_jobs": clocks.used.measured_jobs,
        "planned_percent": round(100.0 * clocks.expected_slowdown, 2),
        "planned_doubt_percent": round(100.0 * clocks.slowdown_doubt, 2),
        "price_watts": round(clocks.price(bound), 1),
        "runs": clocks.runs,
    }
