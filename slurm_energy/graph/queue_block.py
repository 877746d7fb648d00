"""Jobs of the queue as a block: their columns, dependencies and partitions."""

import numpy as np

from slurm_energy.domain.cluster import JobDependency
from slurm_energy.domain.ids import JobId
from slurm_energy.graph.blocks import Indices, QueueBlock
from slurm_energy.graph.job_table import JobTable
from slurm_energy.graph.scaling import Scaler, raw
from slurm_energy.graph.schema import DEPENDS
from slurm_energy.graph.wait_table import WaitTable

DEPENDS_SCALER = Scaler(DEPENDS)


def queue_block(jobs: JobTable, waits: WaitTable, slots: Indices) -> QueueBlock:
    """Return jobs in the order of the slots, with the dependencies between them and the partitions they wait for."""
    local = np.full(jobs.store.capacity, -1, dtype=np.int64)
    local[slots] = np.arange(len(slots))
    edges: list[tuple[int, int]] = []
    rows: list[tuple[float, float, float]] = []
    for place, job in enumerate(jobs.store["job"][slots].tolist()):
        for dependency in jobs.dependencies.needs(JobId(job)):
            needed = jobs.entries[dependency.job_id].slot
            if needed >= 0 and local[needed] >= 0:
                edges.append((int(local[needed]), place))
                rows.append(_depends_row(dependency))
    chosen = np.flatnonzero(local[waits.task] >= 0)
    order = chosen[np.argsort(local[waits.task[chosen]], kind="stable")]
    return QueueBlock(
        task_x=jobs.store["x"][slots],
        depends_index=np.array(edges, dtype=np.int64).reshape(-1, 2).T,
        depends_x=DEPENDS_SCALER.scaled(rows),
        wait_task=local[waits.task[order]],
        wait_partition=waits.partition[order],
        wait_x=waits.x[order],
    )


def _depends_row(dependency: JobDependency) -> tuple[float, float, float]:
    data = raw(dependency.data_gib)
    return data, float(np.isfinite(data)), float(dependency.needs_success)
