"""What people type, on a real slurmctld: the wrapper, the reports, the doctor."""

import json
from itertools import count
from subprocess import CompletedProcess

import pytest
from energy_lab import await_reports, drained, until, when_decided, workload

from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab

ASKED = ["-p", "a100", "--gres=gpu:1", "-t", "5", "-o", "/dev/null"]


def test_the_wrapper_submits_once_and_leaves_sbatchs_answer_as_it_is(lab: Lab) -> None:
    odd = "echo '$(id)'; a\\\"b; \n true"
    names = (f"odd name {number}\twith $(id)" for number in count())

    def attempt() -> tuple[str, CompletedProcess[str]]:
        name = next(names)
        return name, lab.run(["energy-sbatch", "--parsable", *ASKED, "-J", name, "--wrap", odd], user="alice")

    name, done = when_decided(attempt, lambda made: made[1].returncode != 0 or "energy:" in made[1].stderr)
    assert done.returncode == 0, done.stderr
    job = int(done.stdout)
    assert done.stdout == f"{job}\n"
    assert done.stderr.count("opt out with --energy=off") == 1
    assert lab.run(["squeue", "-h", "-a", "-t", "all", "-n", name, "-o", "%i"]).stdout == f"{job}\n"


def test_a_dry_run_shows_the_decision_and_submits_nothing(lab: Lab) -> None:
    before = lab.run(["squeue", "-h", "-a", "-t", "all", "-o", "%i"], check=True).stdout
    done = lab.run(["energy-sbatch", "--energy-dry-run", *ASKED, "--wrap", "true"], user="alice", check=True)
    assert "1290 of 1410 MHz" in done.stdout + done.stderr
    assert lab.run(["squeue", "-h", "-a", "-t", "all", "-o", "%i"], check=True).stdout == before


def test_the_wrapper_returns_sbatchs_refusal_and_exit_code(lab: Lab) -> None:
    wrong = [*ASKED, "-p", "nosuch", "--wrap", "true"]
    plain = lab.run(["sbatch", *wrong], user="alice")
    wrapped = lab.run(["energy-sbatch", *wrong], user="alice")
    assert plain.returncode == wrapped.returncode != 0
    assert plain.stdout == wrapped.stdout == ""
    assert "invalid partition" in wrapped.stderr


@pytest.mark.parametrize("option", ["--energy=turbo", "--energy-max-slowdown=-3", "--energy-deadline=whenever"])
def test_a_wrong_energy_option_is_sbatchs_own_error_and_submits_nothing(lab: Lab, option: str) -> None:
    done = lab.run(["sbatch", *ASKED, option, "--wrap", "true"], user="alice")
    assert done.returncode != 0
    assert done.stdout == ""
    name, _, value = option.partition("=")
    assert name.removeprefix("--") in done.stderr
    assert value in done.stderr


def test_options_in_a_script_count_and_the_command_line_wins(lab: Lab) -> None:
    script = "#!/bin/sh\n#SBATCH --energy=off\n#SBATCH --gres=gpu:1 -p a100 -t 5 -o /dev/null\ntrue\n"
    off = lab.run(["sbatch"], user="alice", input=script, check=True)
    assert "energy:" not in off.stderr
    saver = when_decided(
        lambda: lab.run(["sbatch", "--energy=saver"], user="alice", input=script, check=True),
        lambda done: "energy:" in done.stderr,
    )
    assert "a100 at 1125 of 1410 MHz" in saver.stderr


def test_the_doctor_finds_the_lab_well(lab: Lab) -> None:
    until("a database", lab.layout.database.exists)
    done = lab.run(
        ["slurm-energy", "doctor", "--json", "--role", "all"], env={"SLURMD_NODENAME": lab.spec.node_names[0]}
    )
    assert [check for check in json.loads(done.stdout) if check["verdict"] == "fail"] == []
    assert done.returncode == 0


def test_reports_add_up_over_users_and_partitions(lab: Lab) -> None:
    for user, partition in (("alice", "a100"), ("bob", "a40")):
        job = submit(lab, ["-p", partition, "--gres=gpu:1", "-t", "5"], wrap=workload(60), user=user)
        wait_for(lab, job, {"COMPLETED"})
        await_reports(lab, job)
        assert show_job(lab, job)["Partition"] == partition
    totals = []
    for kind in ("user", "partition"):
        said = lab.run(["slurm-energy", "report", kind, "--json"], check=True).stdout
        document = json.loads(said)
        record = document.get("record", document)
        assert record["total"]["gpu"]["joules"] == pytest.approx(
            sum(group["gpu"]["joules"] or 0.0 for group in record["groups"])
        )
        totals.append(record["total"]["jobs"])
        table = lab.run(["slurm-energy", "report", kind, "--csv"], check=True).stdout
        assert len(table.splitlines()) >= 1 + len(record["groups"])
    assert totals[0] == totals[1]
    assert drained(lab) == {}
