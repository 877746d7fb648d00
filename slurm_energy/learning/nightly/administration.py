"""What administrators do with candidates: promote, take back, pause, say what they think, pack away."""

import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import LivePolicy, PolicyEvent, Stage
from slurm_energy.errors import CandidateError, PolicyError
from slurm_energy.learning.nightly.sequential import CanaryReport
from slurm_energy.learning.nightly.stages import APPROVE, GATE, RATE, REJECT, canary_report, shadow_evidence
from slurm_energy.policy.candidate import candidates_folder, read_candidate
from slurm_energy.store.promotion import (
    candidate_folder,
    candidate_rows,
    earlier_champions,
    find_candidate,
    live_policy,
    move_candidate,
    note_on_candidate,
    pause_promotion,
    policy_events,
    stage_of,
)
from slurm_energy.store.promotion.outcomes import ShadowCounts
from slurm_energy.store.schema import check_version
from slurm_energy.store.session import Engine, Session, open_engine, run_in_transaction, store_session

_BY_PROMOTE: Mapping[Stage, Stage] = {
    Stage.CANDIDATE: Stage.SHADOW,
    Stage.SHADOW: Stage.CANARY,
    Stage.CANARY: Stage.ACTIVE,
    Stage.RETIRED: Stage.ACTIVE,
    Stage.REJECTED: Stage.SHADOW,
}
ARCHIVE_FOLDER = "archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateLine:
    """A candidate in a list."""

    candidate_id: str
    stage: Stage | None
    made_at_seconds: float
    parts: tuple[str, ...]
    passed: bool | None
    """The gate; None where it was not judged."""
    value: float | None
    """Of the score sheet."""
    last: str
    """Why it is where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateStory:
    """Everything that is known of a candidate."""

    line: CandidateLine
    parent_id: str
    """Candidate that was live when it was made; empty for the configured policy."""
    folder: str
    document: Mapping[str, Any]
    events: tuple[PolicyEvent, ...]
    sheet: Mapping[str, Any] | None
    """The gate's, newest."""
    live: LivePolicy
    shadow: ShadowCounts | None
    """Where it is in shadow."""
    canary: CanaryReport | None
    """Where it is in canary."""


class CandidateDesk:
    """The candidates of one cluster, for the length of one command."""

    def __init__(self, config: Config, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self._cluster = ClusterName(config.cluster.name)

    def lines(self) -> list[CandidateLine]:
        """Return the candidates, the newest first."""
        with store_session(self._engine, read_only=True) as session:
            return [self._line(session, row.candidate_id) for row in candidate_rows(session, self._cluster)]

    def live(self) -> LivePolicy:
        """Return which policies decide now."""
        with store_session(self._engine, read_only=True) as session:
            return live_policy(session, self._cluster)

    def story(self, candidate_id: str) -> CandidateStory:
        """Return everything that is known of a candidate.

        Raises:
            PolicyError: there is none of that id.
        """
        with store_session(self._engine, read_only=True) as session:
            row = find_candidate(session, self._cluster, candidate_id)
            live = live_policy(session, self._cluster)
            is_challenger = live.challenger_id == candidate_id
            events = tuple(policy_events(session, self._cluster, candidate_id))
            sheet = next((event.evidence for event in reversed(events) if event.reason == GATE), None)
            return CandidateStory(
                line=self._line(session, candidate_id),
                parent_id=row.parent_id,
                folder=row.folder,
                document=row.document,
                events=events,
                sheet=sheet,
                live=live,
                shadow=shadow_evidence(session, self._cluster, self._config, live)
                if is_challenger and live.stage is Stage.SHADOW
                else None,
                canary=canary_report(session, self._cluster, self._config, live)
                if is_challenger and live.stage is Stage.CANARY
                else None,
            )

    def promote(self, candidate_id: str, actor: str, comment: str) -> Stage:
        """Bring a candidate one stage farther; return the stage that it has now.

        Raises:
            PolicyError: it cannot get farther, or its files cannot be used.
        """
        reason = comment or "by hand"

        def step(session: Session) -> Stage:
            row = find_candidate(session, self._cluster, candidate_id)
            before = stage_of(session, self._cluster, candidate_id)
            after = None if before is None else _BY_PROMOTE.get(before)
            if after is None:
                raise PolicyError(f"candidate {candidate_id} is {before.value if before else 'unknown'} already")
            found = read_candidate(Path(row.folder))
            if found.curves_file is not None or found.network is not None:
                raise CandidateError(
                    f"candidate {candidate_id} has curves or a network of its own, which cannot answer beside others: "
                    "name them in policy.curves_file or policy.checkpoint"
                )
            move_candidate(
                session,
                self._cluster,
                candidate_id,
                after,
                at_seconds=time.time(),
                actor=actor,
                reason=reason,
                canary_share=self._config.nightly.canary_share,
            )
            return after

        return run_in_transaction(self._engine, step)

    def roll_back(self, candidate_id: str, actor: str, comment: str) -> LivePolicy:
        """Take a candidate back, whatever its stage; return which policies decide from now on.

        In place of the champion the one before it decides again; one whose files cannot be used is passed over.

        Args:
            candidate_id: Empty for the challenger, else the champion.
            actor: Who does it.
            comment: Why.

        Raises:
            PolicyError: nothing can be taken back.
        """

        def step(session: Session) -> LivePolicy:
            live = live_policy(session, self._cluster)
            chosen = candidate_id or live.challenger_id or live.champion_id
            if not chosen:
                raise PolicyError("the configured policy alone decides: there is nothing to take back")
            return self._taken_back(session, chosen, actor, comment or "taken back by hand")

        return run_in_transaction(self._engine, step)

    def pause(self, actor: str, *, paused: bool) -> bool:
        """Let no candidate get farther, or let them again; return whether that changed anything."""
        return run_in_transaction(
            self._engine,
            lambda session: pause_promotion(session, self._cluster, paused=paused, at_seconds=time.time(), actor=actor),
        )

    def say(self, candidate_id: str, word: str, actor: str, comment: str, rating: int | None = None) -> None:
        """Keep what a person says of a candidate; a rejection takes it back.

        Args:
            candidate_id: The candidate.
            word: `approve`, `reject` or `rate`.
            actor: Who says it.
            comment: Why.
            rating: From 1 (bad) to 5 (good), with `rate`.

        Raises:
            PolicyError: there is no such candidate.
        """
        if word not in (APPROVE, REJECT, RATE):
            raise PolicyError(f"{word[:20]!r} is none of {APPROVE}, {REJECT} and {RATE}")
        evidence = {"comment": comment, **({} if rating is None else {"rating": rating})}

        def step(session: Session) -> None:
            note_on_candidate(
                session,
                self._cluster,
                candidate_id,
                at_seconds=time.time(),
                actor=actor,
                reason=word,
                evidence=evidence,
            )
            stage = stage_of(session, self._cluster, candidate_id)
            if word == REJECT and stage in (Stage.CANDIDATE, Stage.SHADOW, Stage.CANARY, Stage.ACTIVE, Stage.RETIRED):
                self._taken_back(session, candidate_id, actor, comment or "rejected by hand")

        run_in_transaction(self._engine, step)

    def archive(self, candidate_ids: Sequence[str]) -> list[Path]:
        """Pack folders of candidates away; without ids those beyond `nightly.keep`. Return the packed files.

        Raises:
            PolicyError: one decides jobs or would after a rollback, or is not known.
            CandidateError: a folder cannot be packed.
        """
        with store_session(self._engine, read_only=True) as session:
            live = live_policy(session, self._cluster)
            in_use = {live.champion_id, live.challenger_id}
            needed = set(earlier_champions(session, self._cluster, live.champion_id))
            rows = candidate_rows(session, self._cluster)
            if candidate_ids:
                rows = [find_candidate(session, self._cluster, one) for one in candidate_ids]
                busy = [row.candidate_id for row in rows if row.candidate_id in in_use]
                if busy:
                    raise PolicyError(f"candidate {busy[0]} decides jobs: take it back first with policy rollback")
                kept = [row.candidate_id for row in rows if row.candidate_id in needed]
                if kept:
                    raise PolicyError(
                        f"candidate {kept[0]} decides again after a rollback of {live.champion_id}: reject it first "
                        f"with: slurm-energy policy reject {kept[0]}"
                    )
            else:
                rows = [row for row in rows[self._config.nightly.keep :] if row.candidate_id not in in_use | needed]
            folders = [Path(row.folder) for row in rows]
        return [_packed(folder, candidates_folder(self._config)) for folder in folders if folder.is_dir()]

    def _taken_back(self, session: Session, candidate_id: str, actor: str, reason: str) -> LivePolicy:
        is_champion = live_policy(session, self._cluster).champion_id == candidate_id
        unusable = self._unusable(session, candidate_id) if is_champion else {}
        return move_candidate(
            session,
            self._cluster,
            candidate_id,
            Stage.REJECTED,
            at_seconds=time.time(),
            actor=actor,
            reason="; ".join((reason, *unusable.values())),
            unusable=unusable.keys(),
        )

    def _unusable(self, session: Session, champion_id: str) -> dict[str, str]:
        """Return the champions before this one whose files cannot be used, with why."""
        found: dict[str, str] = {}
        for one in earlier_champions(session, self._cluster, champion_id):
            try:
                read_candidate(Path(candidate_folder(session, one)))
            except CandidateError as error:
                found[one] = f"{one} is passed over: {error}"
            else:
                break
        return found

    def _line(self, session: Session, candidate_id: str) -> CandidateLine:
        row = find_candidate(session, self._cluster, candidate_id)
        events = policy_events(session, self._cluster, candidate_id)
        sheet = next((event.evidence for event in reversed(events) if event.reason == GATE), {})
        moved = next((event for event in reversed(events) if event.before is not event.after), None)
        value = sheet.get("value")
        return CandidateLine(
            candidate_id=candidate_id,
            stage=stage_of(session, self._cluster, candidate_id),
            made_at_seconds=row.made_at_seconds,
            parts=tuple(row.document.get("parts", ())),
            passed=sheet.get("passed"),
            value=value if isinstance(value, int | float) else None,
            last="" if moved is None else f"{moved.reason} ({moved.actor})",
        )


@contextmanager
def candidate_desk(config: Config) -> Iterator[CandidateDesk]:
    """Yield the candidates of the configured cluster.

    Raises:
        StoreError: the database cannot be used, or has another schema.
    """
    engine = open_engine(config.store)
    try:
        check_version(engine)
        yield CandidateDesk(config, engine)
    finally:
        engine.dispose()


def _packed(folder: Path, candidates: Path) -> Path:
    target = candidates / ARCHIVE_FOLDER / f"{folder.name}.tar.gz"
    part = target.with_suffix(".part")
    try:
        target.parent.mkdir(exist_ok=True)
        with tarfile.open(part, "w:gz") as archive:
            archive.add(folder, folder.name)
        part.replace(target)
        shutil.rmtree(folder)
    except OSError as error:
        raise CandidateError(f"{folder} cannot be packed into {target}: {error.strerror or error}") from error
    return target
