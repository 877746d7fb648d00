"""Whole answers of squeue and sinfo at once, as the tests have them; the reader takes them row by row."""

from slurm_energy.domain.cluster import JobState, NodeState
from slurm_energy.slurm.conversion import Converted, convert_rows, rows_of
from slurm_energy.slurm.convert_cluster import convert_node
from slurm_energy.slurm.convert_job import convert_job


def convert_jobs(document: object) -> Converted[JobState]:
    """Return the jobs of an answer of `squeue --json`."""
    return convert_rows(rows_of(document, "jobs"), convert_job)


def convert_nodes(document: object) -> Converted[NodeState]:
    """Return the nodes of an answer of `sinfo --json` or `scontrol show nodes --json`."""
    return convert_rows(rows_of(document, "nodes"), convert_node)
