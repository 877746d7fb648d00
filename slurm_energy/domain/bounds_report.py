"""Reports by user that are not of energy: how much longer jobs ran than allowed, and what named partitions cost."""

from dataclasses import dataclass
from typing import Literal

from slurm_energy.domain.ids import ClusterName

MEASURED_FROM = "where Slurm would have started the job, at the default clock"
TOLERANCE = 0.005
"""Half a point: a bound that is met to the last digit is met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownGroup:
    """Completed jobs of one user that had a decision."""

    user: str
    jobs: int
    known_jobs: int
    """Those of which a slowdown is known: measured, or predicted."""
    measured_jobs: int
    """Those whose lower clock was measured in the job itself, beside its default clock."""
    beyond_jobs: int
    """Those that the clock or the place of their decision took beyond the bound that held for them."""
    mean_slowdown: float | None
    """As a ratio, over `known_jobs`."""
    moved_jobs: int = 0
    """Others that are beyond it only since Slurm started them elsewhere by itself; the decision did not name the place,
    or was only observed."""

    @property
    def beyond_share(self) -> float | None:
        """Share of the known jobs that were beyond their bound."""
        return self.beyond_jobs / self.known_jobs if self.known_jobs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownReport:
    """How much longer jobs ran than where Slurm would have started them."""

    cluster: ClusterName
    groups: tuple[SlowdownGroup, ...]
    total: SlowdownGroup
    measured_from: str = MEASURED_FROM
    format: Literal[1] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGroup:
    """What one user's named partitions cost."""

    user: str
    named_jobs: int
    """Jobs with energy reports that named a partition and could have had something in another one."""
    opened_jobs: int
    """Jobs whose named partition was a preference."""
    left_joules: float
    """Measured energy of `named_jobs` times the share that another partition was predicted to save."""
    unknown_jobs: int
    """Those of them whose energy is not known as a whole, or whose offer cannot be read: they are not in the sum."""
    free_elsewhere_jobs: int
    """Those of them for which no room was seen in the named partition, while another one had some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReport:
    """What jobs that named a partition left unused."""

    cluster: ClusterName
    groups: tuple[OpenGroup, ...]
    total: OpenGroup
    format: Literal[1] = 1
