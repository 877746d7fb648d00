"""job_submit/lua on the real slurmctld, with the files that `install --job-submit lua` writes."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from energy_lab import await_reports, drained, locked_clocks, story, submit_decided, until, workload

from slurm_energy.cli.installing.plan import Installation
from slurm_energy.cli.installing.roles import LUA_SCRIPT, InstallOptions
from slurm_energy.config import load_config
from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.job import EnergyMode
from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab

PAGE = Path(__file__).parents[2] / "docs/how-to/update-slurm.md"
ARGUMENTS = ["-p", "a100", "--gres=gpu:1", "-t", "5"]
SITES_OWN = """
function slurm_job_submit(job, partitions, submit_uid)
    if job.name == "forbidden" then return slurm.ERROR end
    job.comment = "seen by the site"
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
"""


def written(lab: Lab) -> dict[str, str]:
    """Return the two scripts as `install` would write them on this controller, with our own in the lab's folder."""
    config = load_config(lab.layout.energy_config, environment={})
    options = InstallOptions(roles=("controller",), job_submit="lua", plugin_directory=lab.layout.plugins)
    files = Installation(config, options, {}).files()
    place = str(lab.layout.etc / "ours.lua")
    return {
        "ours" if item.path == LUA_SCRIPT else "site": item.content.decode().replace(str(LUA_SCRIPT), place)
        for item in files
        if item.path.suffix == ".lua"
    }


@pytest.fixture
def lab(new_lab: Callable[..., Lab]) -> Lab:
    """A lab whose slurmctld has Slurm's own lua plugin and not ours."""
    running = new_lab(
        energy=True, slurm_conf_lines=("JobSubmitPlugins=energy",), settings={"node": {"fetch_decisions": True}}
    )
    scripts = written(running)
    (running.layout.etc / "job_submit.lua").write_text(scripts["site"])
    (running.layout.etc / "ours.lua").write_text(scripts["ours"])
    conf = running.layout.slurm_conf
    conf.write_text(conf.read_text().replace("JobSubmitPlugins=energy", "JobSubmitPlugins=lua"))
    (running.layout.plugins / "job_submit_energy.so").unlink()
    running.restart_slurmctld()
    return running


def test_jobs_are_decided_and_nothing_of_ours_can_stop_slurmctld(lab: Lab) -> None:
    job = submit_decided(lab, ARGUMENTS, wrap="true")
    wait_for(lab, job, {"COMPLETED"})

    (lab.layout.etc / "ours.lua").unlink()
    lab.restart_slurmctld()
    job = submit(lab, ARGUMENTS, wrap="true")
    wait_for(lab, job, {"COMPLETED"})
    assert "AdminComment" not in show_job(lab, job)
    assert drained(lab) == {}


def test_nodes_ask_for_the_clock_that_a_job_cannot_carry_and_take_no_other(lab: Lab) -> None:
    job = submit_decided(lab, ARGUMENTS, wrap=workload(60))
    wait_for(lab, job, {"COMPLETED"})
    decision = until("decision", lambda: story(lab, job)).decision
    assert decision is not None and decision.clocks
    (gpu,) = await_reports(lab, job)[0].gpus
    assert gpu.asked_clock_mhz == gpu.applied_clock_mhz == decision.clocks[0].sm_clock_mhz

    forged = DecisionEntry(
        decision_id=decision.decision_id, mode=EnergyMode.SAVER, clocks_mhz={decision.clocks[0].gpu_type: 705}
    ).encode()
    tried = ["--export", f"ALL,SPANK_ENERGY_DECISION={forged}", *ARGUMENTS, "--energy=off"]
    job = submit(lab, tried, wrap=workload(60))
    wait_for(lab, job, {"COMPLETED"})
    (gpu,) = await_reports(lab, job)[0].gpus
    assert gpu.applied_clock_mhz is None
    assert locked_clocks(lab) == {}
    assert drained(lab) == {}


def test_a_sites_own_script_keeps_its_rules_with_the_lines_of_the_page(lab: Lab) -> None:
    block = re.search(r"```lua\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    chained = block[1].replace(str(LUA_SCRIPT), str(lab.layout.etc / "ours.lua"))
    (lab.layout.etc / "job_submit.lua").write_text(f"{SITES_OWN}{chained}return slurm.SUCCESS\n")
    lab.restart_slurmctld()
    refused = lab.run(["sbatch", *ARGUMENTS, "-J", "forbidden", "--wrap", "true"], user="alice")
    assert refused.returncode != 0

    job = submit_decided(lab, ARGUMENTS, wrap="true")
    assert show_job(lab, job)["Comment"] == "seen by the site"

    (lab.layout.etc / "ours.lua").write_text("this is no Lua")
    lab.restart_slurmctld()
    until("slurmctld", lambda: lab.run(["scontrol", "ping"]).returncode == 0)
    job = submit(lab, ARGUMENTS, wrap="true")
    assert show_job(lab, job)["Comment"] == "seen by the site"
