"""Each job's clock and energy are those of its own GPU, in whatever order Slurm, device files and driver count."""

import json
import os
import shlex
from collections.abc import Iterator

import pytest
from energy_lab import await_reports, locked_clocks, story, submit_decided, until, workload
from lab_fixtures import EXACT, LOW_CLOCKS, PATIENT, StartLab, lab_spec, require_lab

from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import JobId
from slurm_energy.lab.cluster import Lab, start_lab
from slurm_energy.lab.jobs import show_job, wait_for
from slurm_energy.lab.spec import PartitionSpec

pytestmark = pytest.mark.lab

MIXED = PartitionSpec(
    name="mixed",
    nodes=1,
    gpus_per_node=4,
    gpu_types=("a100", "a100", "a40", "a40"),
    gres="gpu:a40:2,gpu:a100:2",
)
WORK = workload(300)
"""Five seconds: what a node draws before and after it is no large part of the job's energy."""


@pytest.fixture(scope="module")
def mixed() -> Iterator[Lab]:
    """A lab of one node with GPUs of two types."""
    require_lab(energy=True)
    spec = lab_spec(
        name=f"mixed-{os.getpid()}",
        partitions=(MIXED,),
        settings=EXACT | {"policy": LOW_CLOCKS},
        plugin_settings=PATIENT,
    )
    with start_lab(spec, owned=True) as running:
        yield running


def loaded(lab: Lab, node: str) -> set[str]:
    """Return the GPUs that a job really uses."""
    with lab.gpu_state(node) as state:
        return {gpu.uuid for gpu in state.gpus if any(load.utilisation > 0 for load in gpu.loads)}


def run_one(lab: Lab, node: str, request: list[str], gpus: int) -> tuple[int, set[str], set[str]]:
    """Run a job until its GPUs are loaded; return its number, and what it loads and what is locked meanwhile."""

    def whole() -> set[str] | None:
        found = loaded(lab, node)
        return found if len(found) >= gpus else None

    job = submit_decided(lab, [*request, "-t", "30", "--energy=saver"], wrap=WORK)
    used = until(f"load of job {job}", whole)
    locked = {uuid for name, uuid in locked_clocks(lab) if name == node}
    wait_for(lab, job, {"COMPLETED"})
    return job, used, locked


def check_own_gpu(lab: Lab, node: str, request: list[str], minors: set[int]) -> None:
    with lab.gpu_state(node) as state:
        expected = {state.by_minor(minor).uuid for minor in minors}
        before = {gpu.uuid: gpu.energy_joules_exact() for gpu in state.gpus}
    job, used, locked = run_one(lab, node, request, len(minors))
    assert (used, locked) == (expected, expected)
    (report,) = await_reports(lab, job)
    assert {gpu.gpu_uuid for gpu in report.gpus} == expected
    with lab.gpu_state(node) as state:
        truth = {gpu.uuid: gpu.energy_joules_exact() - before[gpu.uuid] for gpu in state.gpus}
    for gpu in report.gpus:
        assert gpu.joules is not None and 0.5 * truth[gpu.gpu_uuid] < gpu.joules <= 1.05 * truth[gpu.gpu_uuid]
        assert QualityFlag.GPU_IDENTITY_UNKNOWN not in gpu.flags
    assert not locked_clocks(lab)


def test_types_that_gres_conf_and_slurm_conf_list_in_different_order_reach_their_own_boards(mixed: Lab) -> None:
    check_own_gpu(mixed, "mixed-1", ["-p", "mixed", "--gres=gpu:a40:1"], {2})
    check_own_gpu(mixed, "mixed-1", ["-p", "mixed", "--gres=gpu:a100:2"], {0, 1})


@pytest.mark.parametrize("detected", ["links", "uuids"])
def test_detected_gpus_whose_minors_run_against_the_driver_are_the_jobs_own(new_lab: StartLab, detected: str) -> None:
    spec = PartitionSpec(name="a100", nodes=1, gpus_per_node=4, minor_numbers=(3, 2, 1, 0), detected=detected)  # type: ignore[arg-type]  # one of its words
    lab = new_lab(energy=True, partitions=(spec,))
    check_own_gpu(lab, "a100-1", ["-p", "a100", "--gres=gpu:1"], {3})
    check_own_gpu(lab, "a100-1", ["-p", "a100", "--gres=gpu:3"], {3, 2, 1})
    kept = json.loads((lab.layout.hooks_spool / "a100-1" / "gpu-order.json").read_text())
    assert [file.rpartition("nvidia")[2] for _, file, _ in kept["gpus"]] == ["3", "2", "1", "0"]
    assert kept["ways"] == ["slurmd -G"] and not kept["problem"]


def test_order_that_changed_under_slurmd_sets_nothing_and_says_so_until_slurmd_starts_again(mixed: Lab) -> None:
    lab = mixed
    request = ["-p", "mixed", "--gres=gpu:a40:1"]
    check_own_gpu(lab, "mixed-1", request, {2})
    gres_conf = lab.layout.etc / "gres.conf"
    text = gres_conf.read_text()
    gres_conf.write_text(text.replace("[0-1]", "[x]").replace("[2-3]", "[0-1]").replace("[x]", "[2-3]"))
    job, used, locked = run_one(lab, "mixed-1", request, 1)
    assert len(used) == 1 and not locked
    (report,) = await_reports(lab, job)
    (gpu,) = report.gpus
    assert (gpu.gpu_uuid, gpu.joules) == ("unknown-0", None)
    assert QualityFlag.GPU_IDENTITY_UNKNOWN in gpu.flags
    assert gpu.reason is not None and gpu.reason.startswith("gpu identity unknown: ") and "restart slurmd" in gpu.reason
    told = lab.run(["slurm-energy", "report", "job", str(job)], check=True).stdout
    assert "gpu identity unknown" in " ".join(told.split())
    record = story(lab, job)
    assert record is not None and any("gpu identity unknown" in event for event in record.events)
    gres_conf.write_text(text)
    check_own_gpu(lab, "mixed-1", request, {2})


def test_process_under_a_slurmstepds_name_does_not_keep_a_lost_jobs_clock(new_lab: StartLab) -> None:
    lab = new_lab(energy=True)
    epilog = next((lab.layout.hooks / "epilog.d").glob("*energy*"))
    kept = epilog.read_text()
    epilog.write_text("#!/bin/sh\nexit 0\n")
    lost = submit_decided(lab, ["--gres=gpu:1", "-t", "5"], wrap="true")
    wait_for(lab, lost, {"COMPLETED"})
    title = f"slurmstepd: [{lost}.batch]"
    lab.run(["bash", "-c", f"(exec -a {shlex.quote(title)} sleep 300) >/dev/null 2>&1 &"], user="bob", check=True)
    until("the disguise", lambda: title in lab.run(["ps", "-eo", "args"]).stdout)
    epilog.write_text(kept)
    job = submit_decided(lab, ["--gres=gpu:1", "-t", "30"], wrap=WORK)
    until(f"load of job {job}", lambda: loaded(lab, "a100-1"))
    (report,) = await_reports(lab, lost)
    assert any(f"its GPU was given to job {job}" in event for event in report.events)
    wait_for(lab, job, {"COMPLETED"})
    (own,) = await_reports(lab, job)
    assert QualityFlag.SHARED_GPU not in own.gpus[0].flags and own.gpus[0].joules
    assert show_job(lab, job)["JobState"] == "COMPLETED" and own.job_id == JobId(job)
    assert not locked_clocks(lab)
