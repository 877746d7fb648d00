"""What a site's database says for a judgement of a candidate: its ended jobs, its measured runs, and its twin."""

from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import ClusterName
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.store.site_history import ClockedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEvidence:
    """The evidence of one night."""

    cluster: ClusterName
    states: tuple[JobState, ...]
    """Ended jobs with GPUs, in the order of their ends."""
    runs: tuple[ClockedRun, ...]
    """Those of them whose energy and clock are known beyond doubt."""
    split_seconds: float
    """Unix time: the candidate was made from what ended before."""
    now_seconds: float
    world: Path | None
    """File of the site's twin; None where its jobs cannot be replayed."""
    learned_from: Path | None
    """Workload file of the jobs before the split."""
    held_out: Path | None
    """Workload file of jobs that were submitted after it."""
    archive: tuple[Path, ...] = ()
    """Folders of all earlier candidates, the newest first."""
    known: JobHistory = field(default_factory=JobHistory)
    """What the daemon knows of earlier jobs."""
