"""A real cluster on which no policy was chosen: the network that comes with the package decides a job."""

import pytest
from energy_lab import await_reports, story, submit_decided, until
from lab_fixtures import StartLab

from slurm_energy.domain.report import DecisionRecord
from slurm_energy.lab.jobs import wait_for
from slurm_energy.policy.automatic import shipped_folder
from slurm_energy.policy.checkpoint_files import check_files

pytestmark = pytest.mark.lab


def test_a_new_cluster_is_served_by_the_shipped_network(new_lab: StartLab) -> None:
    lab = new_lab(energy=True, settings={"policy": {}})
    log = lab.layout.log / "energyd.log"
    until("policy at its first snapshot", lambda: "policy at snapshot" in log.read_text())
    job_id = submit_decided(lab, ["-p", "a100", "--gres=gpu:2", "-t", "60"], wrap="true")

    def decided() -> DecisionRecord | None:
        record = story(lab, job_id)
        return None if record is None else record.decision

    decision = until("decision", decided)
    assert (decision.policy, decision.policy_version) == ("gnn", check_files(shipped_folder()).version)
    assert "POLICY" in {reason.code for reason in decision.reasons}
    assert decision.details.options[0].partition == "a100"
    wait_for(lab, job_id, {"COMPLETED"})
    asked = {gpu.asked_clock_mhz for report in await_reports(lab, job_id) for gpu in report.gpus}
    assert asked == {choice.sm_clock_mhz for choice in decision.clocks} != set()
