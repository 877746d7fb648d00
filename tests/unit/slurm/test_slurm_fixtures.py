"""Every answer of real clusters among the measured data."""

import json
from pathlib import Path

import pytest
from measured_data import MEASURED
from slurm_answers import convert_jobs, convert_nodes

from slurm_energy.errors import SlurmError
from slurm_energy.slurm.convert_accounting import convert_accounting

REST = MEASURED / "slurm_rest_fixtures"
CLI = MEASURED / "slurm_cli_fixtures"


def answers(pattern: str, *folders: Path) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.rglob(pattern))]


def name(path: Path) -> str:
    return str(path.relative_to(MEASURED))


def only_tells_an_error(path: Path, key: str) -> bool:
    """Return whether an answer has no rows but an error such as "no such job"."""
    document = json.loads(path.read_text())
    return not isinstance(document, dict) or key not in document or (not document[key] and bool(document["errors"]))


@pytest.mark.parametrize("path", answers("slurm-job*.json", REST) + answers("*squeue_out.json", CLI), ids=name)
def test_every_job_answer_is_read_without_a_lost_row(path: Path) -> None:
    if only_tells_an_error(path, "jobs"):
        with pytest.raises(SlurmError, match="Slurm's answer"):
            convert_jobs(json.loads(path.read_text()))
        return
    result = convert_jobs(json.loads(path.read_text()))
    assert result.skipped == {}
    assert len(result.items) == len(json.loads(path.read_text())["jobs"])
    assert all(job.gpu_count is not None for job in result.items)


@pytest.mark.parametrize("path", answers("slurm-node*.json", REST) + answers("*sinfo_out.json", CLI), ids=name)
def test_every_node_answer_is_read_without_a_lost_row(path: Path) -> None:
    if only_tells_an_error(path, "nodes"):
        with pytest.raises(SlurmError, match="Slurm's answer"):
            convert_nodes(json.loads(path.read_text()))
        return
    result = convert_nodes(json.loads(path.read_text()))
    assert result.skipped == {}
    assert len(result.items) == len(json.loads(path.read_text())["nodes"])


@pytest.mark.parametrize("path", answers("slurmdb-job-*.json", REST), ids=name)
def test_every_accounting_answer_is_read_without_joules_out_of_nothing(path: Path) -> None:
    if only_tells_an_error(path, "jobs"):
        with pytest.raises(SlurmError, match="Slurm's answer"):
            convert_accounting(json.loads(path.read_text()))
        return
    result = convert_accounting(json.loads(path.read_text()))
    assert result.skipped == {}
    assert len(result.items) == len(json.loads(path.read_text())["jobs"])
    assert all(job.energy_joules is None for job in result.items)
