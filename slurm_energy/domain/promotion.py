"""How a candidate policy becomes the live one: its stage, who moved it and why, and which policy decided a job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from slurm_energy.domain.ids import GpuTypeName

TOO_SLOW = "it was too slow and is not asked any more"
"""Error of the answers of a challenger that was cut off."""
CONFIGURED = ""
"""Stands in the place of a candidate's id for the policy that the site's configuration names."""


class Stage(Enum):
    """Where a candidate is on its way."""

    CANDIDATE = "candidate"
    """Made, and not looked at by jobs."""
    SHADOW = "shadow"
    """Decides beside the live policy; its decisions are compared and never applied."""
    CANARY = "canary"
    """Decides the jobs of a share of the users."""
    ACTIVE = "active"
    """Decides all jobs."""
    RETIRED = "retired"
    """Was active, and another took its place."""
    REJECTED = "rejected"
    """Stopped before it was active, or taken back because it was worse."""


NEXT_STAGES: Mapping[Stage, frozenset[Stage]] = {
    Stage.CANDIDATE: frozenset({Stage.SHADOW, Stage.REJECTED}),
    Stage.SHADOW: frozenset({Stage.CANARY, Stage.REJECTED}),
    Stage.CANARY: frozenset({Stage.ACTIVE, Stage.REJECTED}),
    Stage.ACTIVE: frozenset({Stage.RETIRED, Stage.REJECTED}),
    Stage.RETIRED: frozenset({Stage.ACTIVE, Stage.REJECTED}),
    Stage.REJECTED: frozenset({Stage.SHADOW}),
}
"""Moves that are made; every other is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePolicy:
    """The one row that says which policies of a cluster decide now."""

    champion_id: str = CONFIGURED
    challenger_id: str = ""
    """Candidate in shadow or canary; empty for none."""
    stage: Stage | None = None
    """Of the challenger."""
    canary_share: float = 0.0
    """Of the users, whose jobs the challenger decides."""
    paused: bool = False
    """Whether no candidate gets farther; one that is worse is taken back anyway."""
    since_seconds: float = 0.0
    """When the challenger came to its stage."""
    generation: int = 0
    """Rises with each change."""
    champion_folder: str = ""
    challenger_folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEvent:
    """One line of a cluster's history of policies; never changed, never removed."""

    candidate_id: str
    at_seconds: float
    before: Stage | None
    after: Stage | None
    """The same as before: a note, such as the gate's score sheet or an administrator's verdict."""
    actor: str
    """Login name, or `slurm-energyd`."""
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowAnswer:
    """What a challenger would have decided, where that differs."""

    clocks_mhz: Mapping[GpuTypeName, int] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    error: str = ""
    """Why it gave no answer of its own."""
    milliseconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Which policy decided a job, how likely that was, and what the other one said."""

    candidate_id: str
    """That decided; empty for the configured policy."""
    challenger_id: str
    stage: Stage
    probability: float
    """That this policy decides a job: what learning from the log divides by."""
    milliseconds: float
    """That the decision took."""
    differs: bool | None = None
    """In shadow: whether the challenger would have decided otherwise."""
    shadow: ShadowAnswer | None = None
