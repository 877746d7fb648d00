"""What slurmd makes of Prolog and Epilog on a node that has none of our files."""

import pytest
from energy_lab import drained, until
from lab_fixtures import StartLab

from slurm_energy.cli.installing.slurm_conf import EARLIER_HOOK_PATTERNS, HOOK_PATH, HOOK_PATTERN
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab


def test_our_pattern_runs_the_job_on_a_node_without_our_files(new_lab: StartLab) -> None:
    lab = new_lab(slurm_conf_lines=(f"Prolog={HOOK_PATTERN}", f"Epilog={HOOK_PATTERN}"))
    assert not HOOK_PATH.exists()
    job = submit(lab, ["--gres=gpu:1"], wrap="true")
    wait_for(lab, job, {"COMPLETED"})
    assert drained(lab) == {}


def test_a_pattern_without_a_match_would_have_drained_it(new_lab: StartLab) -> None:
    lab = new_lab(slurm_conf_lines=(f"Prolog={EARLIER_HOOK_PATTERNS[0]}",))
    job = submit(lab, ["--gres=gpu:1"], wrap="true")
    until("drained node", lambda: drained(lab))
    assert show_job(lab, job)["JobState"] != "COMPLETED"
