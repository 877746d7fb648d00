"""The conversion only: pyslurm itself needs a Slurm 25.11 with headers, which these tests do not have."""

from types import SimpleNamespace
from typing import Any

import pytest

from slurm_energy.domain.cluster import NodeGpus
from slurm_energy.errors import SlurmError
from slurm_energy.slurm.json_client import CommandSettings, JsonReader
from slurm_energy.slurm.pyslurm_client import PyslurmReader


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
    """Slurm's commands, which know no partition and no switch."""

    def _text(self, *command: str) -> str:
        return ""


def reader(jobs: list[Any], nodes: list[Any]) -> PyslurmReader:
    def collection(items: list[Any]) -> SimpleNamespace:
        return SimpleNamespace(load=lambda: dict(enumerate(items)))

    module = SimpleNamespace(Jobs=collection(jobs), Nodes=collection(nodes), RPCError=FakeRPCError)
    return PyslurmReader(module, Commands(CommandSettings(), {}))


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
