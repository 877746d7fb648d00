"""A real cluster whose policy is one of the simulated cluster's rules: it names partition and clocks of a real job."""

import pytest
from energy_lab import await_reports, story, submit_decided, until
from lab_fixtures import StartLab

from slurm_energy.domain.report import DecisionRecord
from slurm_energy.lab.cluster import Lab, PartitionSpec
from slurm_energy.lab.jobs import wait_for

pytestmark = pytest.mark.lab

PARTITIONS = (
    PartitionSpec(name="a40", nodes=1, gpus_per_node=4),
    PartitionSpec(name="a100", nodes=1, gpus_per_node=4),
)


def decision_of(lab: Lab, job_id: int) -> DecisionRecord:
    def decided() -> DecisionRecord | None:
        record = story(lab, job_id)
        return None if record is None else record.decision

    return until("decision", decided)


@pytest.mark.parametrize("rule", ["total-cost:V=1", "adaptive-price:V=1"])
def test_a_rule_of_the_simulated_cluster_decides_a_real_job(new_lab: StartLab, rule: str) -> None:
    name, _, settings = rule.partition(":")
    lab = new_lab(
        partitions=PARTITIONS,
        energy=True,
        settings={"policy": {"name": rule, "max_slowdown": 0.2}, "routing": {"open": True}},
    )
    job_id = submit_decided(lab, ["--gres=gpu:1", "-t", "60"], wrap="true")
    decision = decision_of(lab, job_id)
    assert (decision.policy, decision.policy_version) == (name, f"1:{settings}")
    assert decision.partitions == ("a100",), "the default partition's A40 takes more than twice the energy"
    clocks = {str(clock.gpu_type): clock.sm_clock_mhz for clock in decision.clocks}
    assert 210 <= clocks["a100-sxm4-80gb"] < 1410
    wait_for(lab, job_id, {"COMPLETED"})
    asked = {gpu.asked_clock_mhz for report in await_reports(lab, job_id) for gpu in report.gpus}
    assert asked == {clocks["a100-sxm4-80gb"]}
    told = lab.run(["slurm-energy", "explain", str(job_id)], check=True).stdout
    assert f"by {name} 1:{settings}" in told
    assert name != "total-cost" or "least cost: a100 at " in told
