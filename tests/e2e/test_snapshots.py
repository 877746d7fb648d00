"""What is read of a cluster is the same, field by field, whichever release of Slurm says it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from energy_lab import until
from lab_fixtures import RELEASE, StartLab, release_root

from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import submit, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

READ = """
import json, sys
from dataclasses import asdict
from slurm_energy.config import Config, ClusterConfig
from slurm_energy.slurm.reader import create_reader
cluster = ClusterConfig(reader=sys.argv[1], slurmrestd_url=sys.argv[2], slurmrestd_token_path=sys.argv[3])
reader = create_reader(Config(cluster=cluster))
reading = asdict(reader.read_cluster())
print(json.dumps({"reading": reading, "name": reader.name, "note": reader.note}, default=str))
"""
SERVER = """
api=openapi/v0.0.38
ls /usr/lib/*/slurm-wlm/openapi_slurmctld.so >/dev/null 2>&1 && api=openapi/slurmctld
mkdir -p /run/rest && chown nobody /run/rest && cd /run/rest
[ "$1" = local ] || export SLURM_JWT=daemon
PATH=$PATH:/usr/sbin setsid setpriv --reuid nobody --regid nogroup --clear-groups \\
    slurmrestd -s $api -a rest_auth/$1 unix:/run/rest/socket 127.0.0.1:6820 </dev/null >/run/rest/log 2>&1 &
server=$!
until [ -S socket ]; do kill -0 $server || { cat log; exit 1; }; sleep 0.1; done
"""
"""As an ordinary user: slurmrestd refuses root and Slurm's own user."""
KEY = """
mkdir -p /run/rest && cd /run/rest && head -c 32 /dev/urandom > jwt.key
chown "$(scontrol show config | sed -n 's/^SlurmUser *= *\\([^(]*\\).*/\\1/p')" jwt.key && chmod 600 jwt.key
printf 'AuthAltTypes=auth/jwt\\nAuthAltParameters=jwt_key=/run/rest/jwt.key\\n' >> "$SLURM_CONF"
"""
PARTITIONS = (
    PartitionSpec(name="a100", nodes=2, gpus_per_node=4),
    PartitionSpec(name="a40", nodes=1, gpus_per_node=4),
    PartitionSpec(name="v100", nodes=1, gpus_per_node=4),
)
RUNNING = {
    "two-typed": ["-p", "a100", "-w", "a100-1", "--gres=gpu:a100:2"],
    "one-of-job": ["-p", "a40", "--gpus=1", "-c", "2", "--mem=1000"],
    "alone": ["-p", "v100", "--exclusive", "--gres=gpu:1"],
}
WAITING = {
    "waits-alone": ["-p", "a100", "-N", "2", "--exclusive", "--gres=gpu:4"],
    "waits-beside-own": ["-p", "a100", "-N", "2", "--exclusive=user", "--gpus-per-node=4"],
    "held-array": ["-p", "a40", "-H", "--array=1-5%2", "--gpus-per-node=1"],
    "held-per-task": ["-p", "a100", "-H", "-n", "4", "--gpus-per-task=1"],
    "held-per-socket": ["-p", "a100", "-H", "--gpus-per-socket=a100:2", "--sockets-per-node=1"],
    "held-typed": ["-p", "a100,v100", "-H", "--gpus=a100:3", "-t", "1-02:30:00"],
    "held-none": ["-p", "a100", "-H", "-n", "3"],
}
PENDING = {"state": "PENDING", "partitions": ["a100"], "waits_for_room": False}
"""Of a job that waits; jobs differ from this and from `USUAL` by what is said of each."""
USUAL = {
    "user_name": "alice", "time_limit_minutes": 5.0, "gpu_count": 0, "gpu_types": [], "gpu_max_count": None,
    "exclusive": False, "nodes": "", "node_count": 1, "cpus": 1, "array_task": None, "memory_per_node_mib": None,
    "gpu_positions": [], "waits_for_room": True, "blocked_by_limit": False, "account": None, "qos": None,
    "restart_count": 0, "exit_code": None, "suspended_seconds": 0.0, "admin_comment": "", "energy_joules": None,
    "het_job_id": None, "deadline_seconds": None,
}  # fmt: skip
JOBS = {
    "done": {"state": "FAILED", "partitions": ["a40"], "gpu_count": 2, "nodes": "a40-1", "exit_code": 3},
    "two-typed": {
        "state": "RUNNING", "partitions": ["a100"], "gpu_count": 2, "gpu_types": ["a100"], "nodes": "a100-1",
        "gpu_positions": [["a100-1", [0, 1]]],
    },
    "one-of-job": {
        "state": "RUNNING", "partitions": ["a40"], "gpu_count": 1, "gpu_types": ["a40"], "nodes": "a40-1", "cpus": 2,
        "memory_per_node_mib": 1000.0, "gpu_positions": [["a40-1", [0]]],
    },
    "alone": {
        "state": "RUNNING", "partitions": ["v100"], "gpu_count": 4, "gpu_types": ["v100"], "nodes": "v100-1",
        "cpus": 32, "exclusive": True, "gpu_positions": [["v100-1", [0, 1, 2, 3]]],
    },
    "first": PENDING | {"time_limit_minutes": 60.0},
    "waits-alone": PENDING | {"gpu_count": 8, "exclusive": True, "cpus": 2, "node_count": 2, "waits_for_room": True},
    "waits-beside-own": PENDING | {"gpu_count": 8, "cpus": 2, "node_count": 2, "waits_for_room": True},
    "held-array": PENDING | {"partitions": ["a40"], "gpu_count": 1, "array_task": "1-5%2"},
    "held-per-task": PENDING | {"gpu_count": 4, "cpus": 4},
    "held-per-socket": PENDING | {"gpu_count": 2, "gpu_types": ["a100"]},
    "held-typed": PENDING
    | {"partitions": ["a100", "v100"], "gpu_count": 3, "gpu_types": ["a100"], "time_limit_minutes": 1590.0},
    "held-none": PENDING | {"cpus": 3},
    "depends": PENDING,
}  # fmt: skip
NODES = {
    "a100-1": {"state": "MIXED", "cpus_allocated": 1, "gpus": [("a100", 4, 2)]},
    "a100-2": {"state": "IDLE", "cpus_allocated": 0, "gpus": [("a100", 4, 0)]},
    "a40-1": {"state": "MIXED", "cpus_allocated": 2, "gpus": [("a40", 4, 1)]},
    "v100-1": {"state": "ALLOCATED", "cpus_allocated": 32, "gpus": [("v100", 4, 4)]},
}


def shown_node(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is compared of a node; whether a later job is PLANNED on it changes from second to second."""
    assert node["available"]
    assert (node["cpus"], node["memory_mib"]) == (32, 65536.0)
    gpus = [(item["slurm_type"], item["count"], item["allocated"]) for item in node["gpus"]]
    return {"state": node["states"][0], "cpus_allocated": node["cpus_allocated"], "gpus": gpus}


def reading(lab: Lab, reader: str, url: str = "", token: str = "") -> dict[str, Any]:
    """Return what a reader makes of the lab, which it must have read itself."""
    said = json.loads(lab.run(["python3", "-I", "-c", READ, reader, url, token], check=True).stdout)
    assert (said["note"], said["name"]) == ("", reader)
    found: dict[str, Any] = said["reading"]
    return found


def build_pyslurm() -> None:
    """Make pyslurm 25.11 for the root's Slurm 26.05, which takes some minutes once; it must read a real cluster."""
    script = Path(__file__).resolve().parents[2] / "scripts" / "pyslurm-for-root.sh"
    argv = ["sh", str(script), str(release_root()), sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_queue_in_every_form_of_request_is_read_alike(new_lab: StartLab) -> None:
    if RELEASE == "forky":
        build_pyslurm()
    lab = new_lab(partitions=PARTITIONS)
    done = submit(lab, ["-J", "done", "-p", "a40", "--gres=gpu:2", "-t", "5"], wrap="exit 3")
    wait_for(lab, done, {"FAILED"})
    for name, arguments in RUNNING.items():
        wait_for(lab, submit(lab, ["-J", name, "-t", "5", *arguments], wrap="sleep 300"), {"RUNNING"})
    first = submit(lab, ["-J", "first", "-p", "a100", "-H"], wrap="true")
    for name, arguments in {**WAITING, "depends": ["-p", "a100", "-d", f"afterok:{first}"]}.items():
        submit(lab, ["-J", name, "-t", "5", *arguments], wrap="true")
    until("reasons", lambda: "None" not in lab.run(["squeue", "-h", "-t", "PD", "-o", "%r"]).stdout.split())

    read = reading(lab, "commands")
    assert read["skipped"] == {}
    jobs = {job["name"]: job for job in read["jobs"]}
    fields = {**USUAL, "state": "", "partitions": []}
    assert {name: {key: job[key] for key in fields} for name, job in jobs.items()} == {
        name: USUAL | expected for name, expected in JOBS.items()
    }
    assert jobs["depends"]["dependencies"] == [{"job_id": first, "needs_success": True, "data_gib": None}]
    assert {node["name"]: shown_node(node) for node in read["nodes"]} == NODES
    assert [
        (item["name"], item["is_default"], item["up"], item["max_time_minutes"], item["default_time_minutes"])
        for item in read["partitions"]
    ] == [(item.name, item is PARTITIONS[0], True, 1440.0, 60.0) for item in PARTITIONS]

    lab.run(["sh", "-c", SERVER, "sh", "local"], check=True)
    assert reading(lab, "slurmrestd", "unix:/run/rest/socket") == reading(lab, "commands")
    if RELEASE == "forky":
        assert reading(lab, "pyslurm") == reading(lab, "commands")


def test_a_token_opens_slurmrestd_over_a_socket_and_over_tcp(new_lab: StartLab) -> None:
    lab = new_lab()
    lab.run(["sh", "-c", KEY], check=True)
    lab.restart_slurmctld()
    lab.run(["sh", "-c", "umask 077; scontrol token username=slurm lifespan=600 > /run/rest/token"], check=True)
    lab.run(["sh", "-c", SERVER, "sh", "jwt"], check=True)
    submit(lab, ["-p", "a100", "-H", "--gpus=2", "-t", "5"], wrap="true")
    expected = reading(lab, "commands")
    assert len(expected["jobs"]) == 1
    for url in ("unix:/run/rest/socket", "http://127.0.0.1:6820"):
        assert reading(lab, "slurmrestd", url, "/run/rest/token") == expected
