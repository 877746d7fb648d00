"""The conversion only: pyslurm itself needs a Slurm 25.11 with headers, which these tests do not have."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_energy.domain.cluster import JobState, NodeGpus
from slurm_energy.domain.ids import JobId
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.conversion import Converted, convert_rows
from slurm_energy.slurm.convert_job import convert_job
from slurm_energy.slurm.json_client import CommandSettings, JsonReader
from slurm_energy.slurm.pyslurm_client import ASK_AGAIN_SECONDS, PyslurmReader, bridged_series, load_pyslurm


class FakeRPCError(Exception):
    """Stands for pyslurm.RPCError."""


def fake_job(**fields: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "id": 7,
        "user_id": 1000,
        "user_name": "alice",
        "name": "train",
        "state": "RUNNING",
        "partition": "a100",
        "submit_time": 1000,
        "start_time": 1100,
        "end_time": 4700,
        "account": None,
        "qos": "normal",
        "array_id": None,
        "array_task_id": None,
        "array_tasks_waiting": None,
        "heterogeneous_id": 0,
        "requeue_count": 0,
        "time_limit": 60,
        "suspend_time": None,
        "pre_suspension_time": None,
        "allocated_nodes": "n1",
        "num_nodes": 1,
        "cpus": 8,
        "priority": 5,
        "exit_code": 0,
        "exit_code_signal": 0,
        "admin_comment": "energy:0123456789abcdef",
        "gres_per_node": {"gpu:a100": 2},
        "layout": {"n1": {"cpu_ids": "0-7", "gres": {"gpu:a100": {"count": 2, "indexes": "0-1"}}, "memory": 512}},
        **fields,
    }
    layout = values.pop("layout")
    return SimpleNamespace(**values, get_resource_layout_per_node=lambda: layout)


def fake_node(**fields: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "name": "n1",
        "partitions": ["a100"],
        "state": "MIXED",
        "total_cpus": 8,
        "allocated_cpus": 2,
        "real_memory": 4000,
        "allocated_memory": 512,
        "configured_gres": {"gpu:a100": 4},
        "active_features": ["ib"],
        "available_features": ["ib"],
        **fields,
    }
    return SimpleNamespace(**values)


class Commands(JsonReader):
    """Slurm's commands, which know no partition and no switch, and of jobs what a test says."""

    def __init__(self, rows: list[object]) -> None:
        super().__init__(CommandSettings(), {})
        self.rows = rows
        self.asked: list[list[int]] = []

    def _text(self, *command: str) -> str:
        return ""

    def read_jobs(self, job_ids: Sequence[JobId] = ()) -> Converted[JobState]:
        self.asked.append([int(job_id) for job_id in job_ids])
        if not self.rows:
            raise SlurmError("squeue: Invalid job id specified")
        return convert_rows(self.rows, convert_job)


def reader(jobs: list[Any], nodes: list[Any], rows: list[object] | None = None, **options: Any) -> PyslurmReader:
    def collection(items: list[Any]) -> SimpleNamespace:
        return SimpleNamespace(load=lambda: dict(enumerate(items)))

    module = SimpleNamespace(Jobs=collection(jobs), Nodes=collection(nodes), RPCError=FakeRPCError)
    return PyslurmReader(module, Commands(rows or []), **options)


def test_objects_of_pyslurm_become_the_same_values_as_rows_of_json() -> None:
    reading = reader([fake_job()], [fake_node()]).read_cluster()
    (job,), (node,) = reading.jobs, reading.nodes
    assert (job.job_id, job.state, job.gpu_count, job.started_at_seconds) == (7, "RUNNING", 2, 1100.0)
    assert (job.ended_at_seconds, job.exit_code, job.array_job_id) == (None, None, None)
    assert job.admin_comment == "energy:0123456789abcdef"
    assert node.features == ("ib",)
    assert reading.skipped == {}


def test_allocated_gpus_of_a_node_are_counted_from_its_running_jobs() -> None:
    layout = {"n1": {"gres": {"gpu:a100": 1}}, "n2": {"gres": {"gpu:a100": 4}}}
    jobs = [fake_job(), fake_job(id=8, layout=layout), fake_job(id=9, state="COMPLETED")]
    (node,) = reader(jobs, [fake_node()]).read_cluster().nodes
    assert node.gpus == (NodeGpus(slurm_type="a100", count=4, allocated=3),)


def test_a_waiting_job_without_a_request_per_node_has_an_unknown_number_of_gpus() -> None:
    job = fake_job(state="PENDING", gres_per_node=None, layout={}, start_time=None)
    assert reader([job], []).read_cluster().jobs[0].gpu_count is None


def test_an_unreadable_gres_costs_only_its_row() -> None:
    reading = reader([], [fake_node(configured_gres=5), fake_node(name="n2")]).read_cluster()
    assert [node.name for node in reading.nodes] == ["n2"]
    assert reading.skipped == {"node: unreadable GRES": 1}


def test_a_silent_slurmctld_is_our_own_error() -> None:
    def fail() -> None:
        raise FakeRPCError("Unable to contact slurm controller")

    silent = reader([], [])
    silent._pyslurm.Jobs.load = fail
    with pytest.raises(SlurmError, match="Unable to contact"):
        silent.read_cluster()


WAITING_ROW = {"job_id": 7, "user_id": 1000, "job_state": "PENDING", "submit_time": 1000, "partition": "a100"}
RUNNING_ROW = WAITING_ROW | {"job_state": "RUNNING", "nodes": "n1", "gres_detail": ["gpu:a100:3(IDX:0-2)"]}


def test_gpus_that_pyslurm_does_not_tell_are_asked_of_squeue_once_for_each_state_and_a_minute() -> None:
    now = [0.0]
    job = fake_job(state="PENDING", gres_per_node=None, layout={}, start_time=None)
    slurm = reader([job], [], [WAITING_ROW | {"tres_per_job": "gres/gpu:a100:3"}], clock=lambda: now[0])
    for _ in range(3):
        (waiting,) = slurm.read_cluster().jobs
        assert (waiting.gpu_count, waiting.gpu_types) == (3, ("a100",))
    assert slurm._commands.asked == [[7]]  # type: ignore[attr-defined]
    now[0] = ASK_AGAIN_SECONDS
    slurm.read_cluster()
    assert len(slurm._commands.asked) == 2, "scontrol update may have changed it"  # type: ignore[attr-defined]


def test_of_one_built_through_bridging_headers_no_layout_is_asked_for() -> None:
    job = fake_job()
    job.get_resource_layout_per_node = None  # a call of it ends the process in 26.05; here it would be a TypeError
    reading = reader([job], [fake_node()], [RUNNING_ROW], layouts=False).read_cluster()
    assert reading.jobs[0].gpu_positions == (("n1", (0, 1, 2)),)
    assert reading.nodes[0].gpus == (NodeGpus(slurm_type="a100", count=4, allocated=3),)


def test_dependencies_sharing_and_array_limits_become_squeues_words() -> None:
    wanted = {"afterok": [3, 4], "after": [], "singleton": False, "satisfy": "any"}
    fields = {"dependencies": wanted, "resource_sharing": "NO", "array_tasks_waiting": "1-5", "array_tasks_parallel": 2}
    job = fake_job(state="PENDING", layout={}, start_time=None, array_id=7, **fields)
    (read,) = reader([job], []).read_cluster().jobs
    assert [item.job_id for item in read.dependencies] == [3, 4]
    assert (read.exclusive, read.array_task) == (True, "1-5%2")


@pytest.mark.parametrize(("series", "slurm"), [("26.05\n", "slurm 25.11.2"), (None, "slurm 26.05.5"), ("26.05", "")])
def test_one_made_for_another_slurm_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, series: str | None, slurm: str
) -> None:
    distribution = tmp_path / "pyslurm-25.11.2.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: pyslurm\nVersion: 25.11.2\n")
    (tmp_path / "pyslurm.py").write_text("raise SystemExit\n")
    if series is not None:
        (distribution / "slurm-series").write_text(series)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert bridged_series() == (series or "").strip()
    with pytest.raises(SlurmError, match="not made for this Slurm"):
        load_pyslurm(slurm)
