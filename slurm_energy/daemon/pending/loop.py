"""The daemon's part that decides waiting jobs again: after each new snapshot, a job at a time between two answers."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from slurm_energy.daemon.decide import Known
from slurm_energy.daemon.pending.round import JobUpdate, RoundResult, look_at_pending, sent_change
from slurm_energy.daemon.pending.updates import (
    MAX_AT_ONCE,
    MAX_LINES,
    JobUpdater,
    is_denied,
    is_right_missing,
    missing_right,
)
from slurm_energy.daemon.recorder.entries import change_line
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import DecisionChange
from slurm_energy.domain.ids import JobId, PartitionName
from slurm_energy.domain.job import JobRequest

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often it is looked whether there is a new snapshot."""
SLICE_SECONDS = 0.002
"""Of deciding, after which submissions are answered."""
MINUTE_SECONDS = 60.0
LATE_UPDATE_SECONDS = 120.0
"""After a scontrol that gave no answer in time: slurmctld may still carry out what it was sent."""
MAX_DENIED_USERS = 3
"""Denied for jobs of so many users, and never allowed, an update is one that this process may not make."""


class PendingLoop:
    """Decides waiting jobs again while the daemon runs; what fails leaves every job as it is."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._seen: ClusterSnapshot | None = None
        self._budget_at_seconds = time.monotonic()
        self._budget = float(state.config.routing.redecide_per_minute)
        self._denied_for: object = None
        """Configuration with which Slurm denied updates: it is not asked again before a reload."""
        self._denied_users: set[int] = set()
        self._counted_for: object = None
        """Configuration for which the users above are counted."""
        self._has_changed = False
        """Whether Slurm has made an update."""

    async def run(self) -> None:
        """Look after each snapshot, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            state = self._state
            if state.config.routing.redecide == "off":
                state.tracked.jobs.clear()
                state.redecide_note = ""
                continue
            snapshot = state.snapshot
            if snapshot is None or snapshot is self._seen or state.draining:
                continue
            self._seen = snapshot
            try:
                await self._round(snapshot)
            except Exception as error:  # jobs are as they were; the daemon's answers must not stop
                state.counters["looks at waiting jobs failed"] += 1
                logger.error("waiting jobs not decided again error=%s", error, exc_info=error)

    async def _round(self, snapshot: ClusterSnapshot) -> None:
        state, began = self._state, time.monotonic()
        settings = state.config.routing
        state.redecide_note = self._note()
        result = RoundResult()
        champion = state.candidates.champion
        serving = state.decider if champion is None or champion.decider is None else champion.decider
        decider = serving.without_trace(snapshot)
        most = 0 if state.redecide_note else self._allowance(settings.redecide_per_minute)
        steps = look_at_pending(state.tracked, snapshot, decider, self._known, settings, most, time.time(), result)
        slice_began = time.monotonic()
        for _ in steps:
            if time.monotonic() - slice_began >= SLICE_SECONDS:
                await asyncio.sleep(SLICE_SECONDS / 4.0)
                slice_began = time.monotonic()
        self._record(result.changes)
        if result.updates:
            self._budget -= len(result.updates)
            await self._send(result.updates)
        if result.decided:
            state.counters["waiting jobs decided again"] += result.decided
            logger.info(
                "waiting jobs decided again jobs=%d updates=%d changes=%d seconds=%.2f",
                result.decided,
                len(result.updates),
                len(result.changes),
                time.monotonic() - began,
            )

    def _record(self, changes: Sequence[DecisionChange]) -> None:
        for change in changes:
            self._state.counters[f"waiting jobs: {change.outcome}"] += 1
            self._has_changed = self._has_changed or change.outcome == "changed"
            self._state.journal.append(partial(change_line, change))

    def _note(self) -> str:
        if self._state.config.routing.redecide != "on":
            return ""
        if self._denied_for is self._state.config:
            return "Slurm denied the daemon a change of a waiting job (scontrol --uid): see its log; nothing is changed"
        return missing_right(self._state.config)

    def _allowance(self, per_minute: int) -> int:
        """Return how many updates may be sent now."""
        now = time.monotonic()
        grown = (now - self._budget_at_seconds) * per_minute / MINUTE_SECONDS
        self._budget = min(float(per_minute), self._budget + grown)
        self._budget_at_seconds = now
        return int(self._budget)

    async def _send(self, updates: list[JobUpdate]) -> None:
        """Send updates, several of a user together; what becomes of them the next snapshot shows."""
        updater, places = JobUpdater(self._state.config), asyncio.Semaphore(MAX_AT_ONCE)
        by_user: dict[int, list[JobUpdate]] = {}
        for update in updates:
            by_user.setdefault(update.user_id, []).append(update)
        parts = [
            several[begin : begin + MAX_LINES]
            for several in by_user.values()
            for begin in range(0, len(several), MAX_LINES)
        ]
        await asyncio.gather(*(self._send_part(updater, part, places) for part in parts))

    async def _send_part(self, updater: JobUpdater, part: list[JobUpdate], places: asyncio.Semaphore) -> None:
        async with places:
            part = await self._still_right(updater, part)
            if part:
                await self._update(updater, part)

    async def _still_right(self, updater: JobUpdater, part: list[JobUpdate]) -> list[JobUpdate]:
        """Return the updates of jobs that are still as they were decided on; the others are given up, unsent."""
        state, why, same = self._state, "", frozenset[JobId]()
        if self._denied_for is state.config:
            why = "not sent: Slurm denied updates before"
        else:
            try:
                same = await updater.unchanged({one.job_id: one.job for one in part})
            except (OSError, TimeoutError, ValueError) as error:
                why = f"not sent: squeue gave no answer: {str(error) or 'it took too long'}"
        unsent = [one for one in part if one.job_id not in same]
        for one in unsent:
            one.job.attempt = None  # the job is as it was, or the next snapshot shows what else it is
        if unsent:
            state.counters["updates of waiting jobs not sent"] += len(unsent)
            why = why or "not sent: the jobs have been changed, or have started, since the last snapshot"
            logger.info("updates of waiting jobs user_id=%d jobs=%d said=%.400s", part[0].user_id, len(unsent), why)
        return [one for one in part if one.job_id in same]

    async def _update(self, updater: JobUpdater, part: list[JobUpdate]) -> None:
        state, user_id, said, is_late = self._state, part[0].user_id, "", False
        try:
            said = await updater.update(user_id, [one.text for one in part])
        except (OSError, TimeoutError, ValueError) as error:
            is_late = isinstance(error, TimeoutError)
            said = str(error) or "scontrol gave no answer in time"
        state.counters["updates of waiting jobs sent"] += len(part)
        now = time.time()
        for one in part:
            # It may start, and end, before the next snapshot: without a complaint it counts as made.
            change = None if said else sent_change(one.job, now)
            if change is not None:
                self._record([change])
            if one.job.attempt is not None:
                ended = now + LATE_UPDATE_SECONDS if is_late else now
                one.job.attempt = replace(one.job.attempt, ended_at_seconds=ended, may_come_late=is_late)
        if said:
            logger.warning("updates of waiting jobs user_id=%d said=%.400s", user_id, said)
        self._note_denial(user_id, said)

    def _note_denial(self, user_id: int, said: str) -> None:
        """Stop asking where this process has no right; a denial of one job may be for what that job asks."""
        config = self._state.config
        if self._counted_for is not config:
            self._counted_for, self._denied_users = config, set()
        if is_denied(said):
            self._denied_users.add(user_id)
        denied = not self._has_changed and len(self._denied_users) >= MAX_DENIED_USERS
        if is_right_missing(said) or denied:
            self._denied_for = config

    def _known(self, snapshot: ClusterSnapshot, job: JobRequest, claimed: Mapping[PartitionName, float]) -> Known:
        state = self._state
        known = Known(
            snapshot=snapshot,
            claimed_gpus=dict(claimed),
            history=state.history,
            user=state.known_user(job.user_id),
        )
        champion = state.candidates.champion
        return known if champion is None else champion.known(known)
