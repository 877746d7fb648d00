"""A training on two nodes of a real Slurm: one network from two ranks; stopped by a signal, it goes on by itself."""

import csv
import time
from pathlib import Path

import pytest
import torch
from energy_lab import until
from lab_fixtures import StartLab

from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import show_job, submit, wait_for
from slurm_energy.learning.training_state import read_state
from slurm_energy.policy.gnn.checkpoint import read_checkpoint
from slurm_energy.reporting.templates import render

pytestmark = pytest.mark.lab

ROUNDS = 6
CONFIG = f"""
[training]
algorithm = "chsac"
world = "lab"
rounds = {ROUNDS}
save_every_rounds = 1
[network]
hidden = 12
heads = 3
device_layers = 1
task_layers = 1
top_layers = 1
chebyshev_order = 2
pooled_vertices = 1
quantiles = 4
[episodes]
hours = 0.3
[learner]
batch_size = 8
warm_up_transitions = 4
updates_per_transition = 0.2
"""
NODES = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
# All nodes of the laboratory are one host, and its name is not the nodes'.
HERE = {"MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def two_nodes(new_lab: StartLab) -> Lab:
    lab = new_lab(partitions=(PartitionSpec(name="a100", nodes=2, gpus_per_node=1),))
    home = lab.layout.home("alice")
    (home / "train.toml").write_text(CONFIG)
    (home / "train.sbatch").write_text(render("sbatch/train.sbatch.j2", {}))
    return lab


def start(lab: Lab) -> int:
    return submit(lab, [*NODES, "-o", "out.txt", "train.sbatch", "train.toml", "made"], env=HERE)


def rounds_of(folder: Path) -> list[str]:
    path = folder / "log.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [row["round"] for row in csv.DictReader(file)]


def check_made(folder: Path, said: str) -> None:
    assert rounds_of(folder) == [str(number) for number in range(1, ROUNDS + 1)], said
    last = read_checkpoint(folder / "last")
    assert last.metadata.version == f"chsac-seed0-round{ROUNDS}"
    first, second = read_state(folder).learners
    for name, tensor in first["critics"].items():
        assert torch.equal(tensor, second["critics"][name])
    assert not torch.equal(first["replay"]["figures"], second["replay"]["figures"])
    assert any(torch.equal(tensor, one) for tensor in last.tensors.values() for one in first["critics"].values())


def test_two_ranks_on_two_nodes_train_one_network(two_nodes: Lab) -> None:
    job = start(two_nodes)
    home = two_nodes.layout.home("alice")

    wait_for(two_nodes, job, {"COMPLETED"}, timeout=300)

    said = (home / "out.txt").read_text()
    check_made(home / "made", said)
    assert said.count("checkpoint made/last") == 1


def test_a_training_that_slurm_stops_is_queued_again_and_goes_on(two_nodes: Lab) -> None:
    job = start(two_nodes)
    home = two_nodes.layout.home("alice")
    until("first round", lambda: rounds_of(home / "made"), 150.0)

    two_nodes.run(["scancel", "--signal=TERM", str(job)], user="alice", check=True)
    until(
        "an end of the first run", lambda: show_job(two_nodes, job)["JobState"] not in {"RUNNING", "COMPLETING"}, 100.0
    )
    assert show_job(two_nodes, job)["JobState"] == "PENDING", (home / "out.txt").read_text()
    done = rounds_of(home / "made")
    assert 1 <= len(done) < ROUNDS
    time.sleep(1.0)
    two_nodes.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)  # Slurm would wait two minutes
    wait_for(two_nodes, job, {"COMPLETED", "FAILED"}, timeout=300)

    said = (home / "out.txt").read_text()
    assert show_job(two_nodes, job)["JobState"] == "COMPLETED", said
    assert f"stopped after round {len(done)} of {ROUNDS}; resume with: slurm-energy train --resume made" in said
    check_made(home / "made", said)
