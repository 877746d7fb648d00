"""The tables of candidate policies: what was made, what became of it, which one is live, and which one decided a job.

The row of the live policy is the only one that changes. Events and assignments are only ever added.
"""

from typing import Any

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from slurm_energy.store.tables import TABLE_OPTIONS, Base, RowId
from slurm_energy.store.types import BoundedText, FiniteDouble, JsonText, LongText, UnixSeconds


class PolicyCandidateRow(Base):
    """A candidate as it was made; written once."""

    __tablename__ = "policy_candidate"
    __table_args__ = (Index(None, "cluster", "made_at_seconds"), TABLE_OPTIONS)

    candidate_id: Mapped[str] = mapped_column(BoundedText(64), primary_key=True)
    cluster: Mapped[str] = mapped_column(BoundedText(64))
    made_at_seconds: Mapped[float] = mapped_column(UnixSeconds)
    parent_id: Mapped[str] = mapped_column(BoundedText(64))
    """Candidate that was live then; empty for the configured policy."""
    folder: Mapped[str] = mapped_column(BoundedText(1024))
    document: Mapped[dict[str, Any]] = mapped_column(JsonText)
    """Its data, seeds, parts and figures."""


class LivePolicyRow(Base):
    """Which policies decide a cluster's jobs now."""

    __tablename__ = "live_policy"
    __table_args__ = (
        CheckConstraint("canary_share BETWEEN 0 AND 1", name="canary_share_is_share"),
        TABLE_OPTIONS,
    )

    cluster: Mapped[str] = mapped_column(BoundedText(64), primary_key=True)
    generation: Mapped[int] = mapped_column(BigInteger)
    """Rises with each change: who read an older one changes nothing."""
    champion_id: Mapped[str] = mapped_column(BoundedText(64))
    """Empty for the configured policy."""
    challenger_id: Mapped[str] = mapped_column(BoundedText(64))
    """Empty for none."""
    stage: Mapped[str | None] = mapped_column(String(16))
    """Of the challenger."""
    canary_share: Mapped[float] = mapped_column(FiniteDouble)
    paused: Mapped[bool] = mapped_column(Boolean)
    since_seconds: Mapped[float] = mapped_column(UnixSeconds)


class PolicyEventRow(Base):
    """One line of the history: who did what to a candidate, when, why and on which evidence; only ever added."""

    __tablename__ = "policy_event"
    __table_args__ = (Index(None, "cluster", "candidate_id"), TABLE_OPTIONS)

    row_id: Mapped[int] = mapped_column(RowId, primary_key=True)
    cluster: Mapped[str] = mapped_column(BoundedText(64))
    candidate_id: Mapped[str] = mapped_column(BoundedText(64))
    """Empty for the configured policy."""
    at_seconds: Mapped[float] = mapped_column(UnixSeconds)
    stage_before: Mapped[str | None] = mapped_column(String(16))
    stage_after: Mapped[str | None] = mapped_column(String(16))
    """The same as before where nothing moved."""
    actor: Mapped[str] = mapped_column(BoundedText(255))
    reason: Mapped[str] = mapped_column(LongText)
    evidence: Mapped[dict[str, Any]] = mapped_column(JsonText)


class PolicyAssignmentRow(Base):
    """Which policy decided a submission while a challenger was there; written once."""

    __tablename__ = "policy_assignment"
    __table_args__ = (
        CheckConstraint("probability > 0 AND probability <= 1", name="probability_is_share"),
        Index(None, "cluster", "challenger_id", "decided_at_seconds"),
        TABLE_OPTIONS,
    )

    decision_id: Mapped[str] = mapped_column(BoundedText(64), primary_key=True)
    cluster: Mapped[str] = mapped_column(BoundedText(64))
    decided_at_seconds: Mapped[float] = mapped_column(UnixSeconds)
    candidate_id: Mapped[str] = mapped_column(BoundedText(64))
    """That decided; empty for the configured policy."""
    challenger_id: Mapped[str] = mapped_column(BoundedText(64))
    """Candidate in shadow or canary then; empty for none."""
    stage: Mapped[str] = mapped_column(String(16))
    """Of the challenger; `active` where there was none."""
    probability: Mapped[float] = mapped_column(FiniteDouble)
    """That this policy decides a submission of any user."""
    milliseconds: Mapped[float] = mapped_column(FiniteDouble)
    differs: Mapped[bool | None] = mapped_column(Boolean)
    """In shadow: whether the challenger would have decided otherwise."""
    shadow: Mapped[dict[str, Any] | None] = mapped_column(JsonText)
    """What it would have decided, where that differs."""
