"""The columns of one job worked out by themselves, to compare with what the graph holds."""

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.cluster import JobState
from slurm_energy.graph.job_features import (
    MOVING_COLUMNS,
    TASK_SCALER,
    QueueFacts,
    job_figures,
    moving_columns,
    still_row,
    time_figures,
)


def task_vector(job: JobState, now_seconds: float, facts: QueueFacts) -> NDArray[np.float32]:
    """Return the columns of a job that is pending or runs, [TASK]."""
    figures = job_figures(job)
    queue = (
        figures.priority,
        facts.user_shares.get(job.user_id, 0.0),
        facts.critical_path_seconds.get(job.job_id, figures.estimate_seconds),
        float(facts.dependents.get(job.job_id, 0)),
    )
    vector: NDArray[np.float32] = TASK_SCALER.scaled([still_row(job, figures)])[0]
    vector[MOVING_COLUMNS] = moving_columns(
        np.array([time_figures(figures)]), np.array([queue]), now_seconds, facts.highest_priority
    )[0]
    return vector
