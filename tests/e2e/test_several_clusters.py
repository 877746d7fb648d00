"""Two clusters under one slurmdbd: energy-sbatch sends a job to the cheaper one, and joules stay apart."""

import json
import os
import re
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest
from energy_lab import await_reports, until, workload
from lab_fixtures import EXACT, PATIENT, lab_spec, release_root, require_lab

from slurm_energy.lab.cluster import Lab, PartitionSpec, start_lab
from slurm_energy.lab.jobs import wait_for

pytestmark = pytest.mark.lab

PARTITIONS = (PartitionSpec(name="a100", nodes=1, gpus_per_node=2),)
REPORT_PORTS = (8470, 8471)
JOB = ("--gres=gpu:1", "--time=10", "--partition=a100")


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Lab, Lab]]:
    """The dear cluster, whose building takes half as much again, and a cheap one; users log in on the dear one."""
    require_lab(accounting=True, energy=True)
    if release_root() is not None:
        pytest.skip("two labs share a network on this machine's own root alone")
    names = f"dear-{os.getpid()}", f"cheap-{os.getpid()}"
    addresses = {name.replace("-", "_"): f"127.0.0.1:{port}" for name, port in zip(names, REPORT_PORTS, strict=True)}
    common = {"partitions": PARTITIONS, "plugin_settings": PATIENT}
    several = {"addresses": addresses, "names": list(addresses), "deadline_seconds": 20.0}
    settings = [EXACT | {"clusters": several, "facility": {"pue": pue}} for pue in (1.5, 1.0)]
    dear_spec = lab_spec(name=names[0], accounting=True, settings=settings[0], **common)
    with start_lab(dear_spec, owned=True) as dear:
        cheap_spec = lab_spec(name=names[1], beside=names[0], settings=settings[1], **common)
        with start_lab(cheap_spec, owned=True) as cheap:
            yield dear, cheap


def submit(lab: Lab, *words: str) -> CompletedProcess[str]:
    return lab.run(["energy-sbatch", *words, "--wrap", workload(40.0)], user="alice", check=True, timeout=120)


def number_on(lab: Lab, done: CompletedProcess[str]) -> int:
    found = re.fullmatch(rf"Submitted batch job (\d+) on cluster {lab.spec.cluster_name}\n", done.stdout)
    assert found is not None, (done.stdout, done.stderr)
    return int(found.group(1))


def test_jobs_go_to_the_cheaper_cluster_and_their_joules_stay_under_its_name(pair: tuple[Lab, Lab]) -> None:
    dear, cheap = pair
    here, there = dear.spec.cluster_name, cheap.spec.cluster_name
    assert {here, there} <= set(
        dear.run(["sacctmgr", "-nP", "show", "cluster", "format=cluster"], check=True).stdout.split()
    )

    table = json.loads(submit(dear, "--energy-dry-run", "--json", *JOB).stdout)
    assert [offer["cluster"] for offer in table["offers"]] == [there, here], table
    cheap_offer, dear_offer = table["offers"]
    assert dear_offer["joules"] == pytest.approx(1.5 * cheap_offer["joules"])

    done = submit(dear, *JOB)
    sent = number_on(cheap, done)
    assert f"cluster {there}: " in done.stderr and f"next {here}" in done.stderr

    cheap.stop_daemon()
    done = submit(dear, *JOB)
    kept = number_on(dear, done)
    assert f"left out: {there}: no daemon answers" in done.stderr
    own = number_on(cheap, submit(dear, f"--clusters={there}", *JOB))
    cheap.start_daemon()

    wait_for(cheap, sent), wait_for(cheap, own), wait_for(dear, kept)
    for lab, jobs in ((cheap, (sent, own)), (dear, (kept,))):
        for job in jobs:
            (report,) = await_reports(lab, job)
            assert report.cluster == lab.spec.cluster_name
            assert [gpu.joules is not None and gpu.joules > 0.0 for gpu in report.gpus] == [True]
        rows = until("jobs in the report", lambda lab=lab, jobs=jobs: _groups(lab, len(jobs)))  # type: ignore[misc]
        assert list(rows) == [lab.spec.cluster_name]


def _groups(lab: Lab, jobs: int) -> dict[str, object]:
    """Return the report by cluster once it has so many jobs with energy."""
    said = lab.run(["slurm-energy", "report", "cluster", "--json"], check=True).stdout
    groups = {row["group"]: row for row in json.loads(said)["groups"]}
    return groups if sum(row["jobs"] for row in groups.values()) == jobs else {}


def test_the_option_stands_in_a_script_that_plain_sbatch_takes_too(pair: tuple[Lab, Lab]) -> None:
    dear, cheap = pair
    script = f"#!/bin/sh\n#SBATCH --energy-clusters={cheap.spec.cluster_name} --energy-data=1GB@far\n{workload(10.0)}\n"
    done = dear.run(["energy-sbatch", *JOB], user="alice", input=script, check=True, timeout=120)
    number_on(cheap, done)
    assert " + data 6.75 kJ" in done.stderr
    plain = dear.run(["sbatch", *JOB], user="alice", input=script, check=True)
    assert re.fullmatch(r"Submitted batch job \d+\n", plain.stdout)
    assert "--energy-clusters has no effect here: submit with energy-sbatch" in plain.stderr


def test_doctor_knows_how_each_cluster_is(pair: tuple[Lab, Lab]) -> None:
    dear, cheap = pair
    said = json.loads(dear.run(["slurm-energy", "doctor", "--json"], timeout=120).stdout)
    found = [(row["verdict"], row["found"]) for row in said if row["subject"] == "several clusters"]
    assert [verdict for verdict, _ in found] == ["ok", "ok", "ok"], found
    assert any(cheap.spec.cluster_name in words and "its clock fits" in words for _, words in found)


def test_a_federation_is_restricted_to_the_chosen_cluster(pair: tuple[Lab, Lab]) -> None:
    dear, cheap = pair
    both = f"{dear.spec.cluster_name},{cheap.spec.cluster_name}"
    dear.run(["sacctmgr", "-i", "add", "federation", "fed", f"clusters={both}"], check=True)
    until("the federation", lambda: cheap.spec.cluster_name in dear.run(["scontrol", "show", "fed"]).stdout)
    job = number_on(cheap, submit(dear, *JOB))
    shown = cheap.run(["scontrol", "show", "job", str(job)], check=True).stdout
    siblings = re.search(r"FedViableSiblings=(\S+)", shown)
    assert siblings is not None and siblings.group(1) == cheap.spec.cluster_name, shown
    wait_for(cheap, job)
    dear.run(["sacctmgr", "-i", "delete", "federation", "fed"], check=True)


def test_without_slurmdbd_the_job_goes_to_the_local_cluster(pair: tuple[Lab, Lab]) -> None:
    dear, _cheap = pair
    dear._service("stop", "slurmdbd")
    done = submit(dear, *JOB)
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout), (done.stdout, done.stderr)
    assert "sbatch was run for the local one" in done.stderr
