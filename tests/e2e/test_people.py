"""What people type, on a real slurmctld: the wrapper, the reports, the doctor."""

import json
from itertools import count
from subprocess import CompletedProcess

import pytest
from energy_lab import await_reports, drained, story, submit_decided, until, when_decided, workload

from slurm_energy.domain.report import ExplainRecord, reason_sentence
from slurm_energy.lab.cluster import Lab
from slurm_energy.lab.jobs import show_job, submit, wait_for

pytestmark = pytest.mark.lab


def job_numbers(lab: Lab) -> set[str]:
    return set(lab.run(["squeue", "-h", "-a", "-t", "all", "-o", "%i"], check=True).stdout.split())


ASKED = ["-p", "a100", "--gres=gpu:1", "-t", "5", "-o", "/dev/null"]


def test_the_wrapper_submits_once_and_leaves_sbatchs_answer_as_it_is(lab: Lab) -> None:
    odd = "echo '$(id)'; a\\\"b; \n true"
    names = (f"odd name {number}\twith $(id)" for number in count())

    def attempt() -> tuple[str, CompletedProcess[str]]:
        name = next(names)
        return name, lab.run(["energy-sbatch", "--parsable", *ASKED, "-J", name, "--wrap", odd], user="alice")

    name, done = when_decided(attempt, lambda made: made[1].returncode != 0 or "1290 of 1410 MHz" in made[1].stderr)
    assert done.returncode == 0, done.stderr
    job = int(done.stdout)
    assert done.stdout == f"{job}\n"
    assert done.stderr.count("opt out with --energy=off") == 1
    assert lab.run(["squeue", "-h", "-a", "-t", "all", "-n", name, "-o", "%i"]).stdout == f"{job}\n"


def test_a_dry_run_shows_the_decision_and_submits_nothing(lab: Lab) -> None:
    before = job_numbers(lab)
    done = lab.run(["energy-sbatch", "--energy-dry-run", *ASKED, "--wrap", "true"], user="alice", check=True)
    assert "1290 of 1410 MHz" in done.stdout + done.stderr
    assert job_numbers(lab) == before


def test_features_of_a_script_are_stored_with_the_decision_and_do_not_reach_what_a_job_submits(lab: Lab) -> None:
    inner = "sbatch --parsable -p a100 --gres=gpu:1 -t 5 -o /dev/null --wrap true"
    wrapped = f"env > features.$SLURM_JOB_ID; {inner} > inner.$SLURM_JOB_ID; srun python3 train.py --model vgg16"
    patient = {"SLURM_ENERGY_SCRIPT_TIME_LIMIT_MILLISECONDS": "1000"}

    def attempt() -> tuple[int, ExplainRecord]:
        argv = ["energy-sbatch", "--parsable", *ASKED, "-J", "train_7", "--wrap", wrapped]
        job = int(lab.run(argv, user="alice", env=patient, check=True).stdout)
        return job, until("story", lambda: story(lab, job))

    job, record = when_decided(
        attempt, lambda made: made[1].decision is not None and made[1].decision.asked.script is not None
    )
    assert record.decision is not None and record.decision.asked.script is not None
    script = record.decision.asked.script
    assert (script.programs, script.launchers, script.model) == (("python",), ("srun",), "vgg16")
    wait_for(lab, job)
    seen, number = ((lab.layout.home("alice") / f"{name}.{job}").read_text() for name in ("features", "inner"))
    assert "SLURM_JOB_ID=" in seen and "SCRIPT_FEATURES" not in seen
    nested = until("story", lambda: story(lab, int(number)))
    assert nested.decision is None or nested.decision.asked.script is None
    shown = lab.run(["slurm-energy", "explain", str(job)], user="alice", check=True).stdout
    assert "its script: python under srun, vgg16" in shown


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
        lambda: lab.run(["energy-sbatch", "--energy=saver"], user="alice", input=script, check=True),
        lambda done: "a100 at" in done.stderr,
    )
    assert "a100 at 1230 of 1410 MHz" in saver.stderr


@pytest.mark.parametrize("deadline", ["2020-01-01", "now", "2026-03-01T08:00"])
@pytest.mark.parametrize("command", ["sbatch", "energy-sbatch"])
def test_a_deadline_that_has_passed_is_an_error_wherever_it_stands(lab: Lab, deadline: str, command: str) -> None:
    before = job_numbers(lab)
    given = lab.run([command, *ASKED, f"--energy-deadline={deadline}", "--wrap", "true"], user="alice")
    script = f"#!/bin/sh\n#SBATCH --energy-deadline={deadline}\ntrue\n"
    written = lab.run([command, *ASKED], user="alice", input=script)
    for done in (given, written):
        assert done.returncode != 0
        assert f"--energy-deadline={deadline} has passed: it is 20" in done.stderr
        assert done.stdout == ""
    assert job_numbers(lab) == before


def test_a_deadline_means_the_time_of_the_host_where_it_was_written(lab: Lab) -> None:
    def decided(zone: str) -> float | None:
        argv = ["sbatch", "--parsable", *ASKED, "--energy-deadline=23:59", "--wrap", "true"]
        job = int(lab.run(argv, user="alice", env={"TZ": zone}, check=True).stdout)
        record = until("decision", lambda: story(lab, job))
        return None if record.decision is None else record.decision.asked.options.deadline_seconds

    def both() -> tuple[float | None, float | None]:
        return decided("UTC-3"), decided("UTC+2")

    east, west = when_decided(both, lambda found: None not in found)
    assert east is not None and west is not None
    assert (west - east) % 86_400 == 5 * 3600


def test_a_misspelt_option_is_told_with_what_was_meant(lab: Lab) -> None:
    done = lab.run(["energy-sbatch", *ASKED, "--energy-maxslowdown=5", "--wrap", "true"], user="alice")
    assert done.returncode != 0
    assert "there is no option --energy-maxslowdown: did you mean --energy-max-slowdown?" in done.stderr
    assert "lacks the energy plugin" not in done.stderr


@pytest.mark.parametrize(
    ("option", "code"), [("--energy-max-slowdown=0", "NO_CLOCK_IN_BOUND"), ("--energy=observe", "OBSERVE_ONLY")]
)
def test_what_was_left_as_it_was_is_not_said_to_be_chosen(lab: Lab, option: str, code: str) -> None:
    done = lab.run(["energy-sbatch", "--energy-dry-run", *ASKED, option, "--wrap", "true"], user="alice", check=True)
    assert "The policy chose this setting." not in done.stdout
    assert reason_sentence(code) in done.stdout
    assert "clock:         unchanged" in done.stdout


def test_a_partition_that_does_not_exist_is_named_in_a_dry_run(lab: Lab) -> None:
    asked = [*ASKED, "-p", "nosuch"]
    done = lab.run(["energy-sbatch", "--energy-dry-run", *asked, "--wrap", "true"], user="alice", check=True)
    assert "partition nosuch is not in the picture of the cluster" in done.stdout
    assert "The policy chose this setting." not in done.stdout


def test_observe_says_what_would_have_been(lab: Lab) -> None:
    done = when_decided(
        lambda: lab.run(["energy-sbatch", "--energy=observe", *ASKED, "--wrap", "true"], user="alice", check=True),
        lambda done: "energy-sbatch:" in done.stderr,
    )
    assert "energy-sbatch: would have been: a100 at 1290 of 1410 MHz" in done.stderr


def test_decisions_have_job_numbers_and_filters(lab: Lab) -> None:
    job = submit_decided(lab, [*ASKED], wrap="true")
    until("the job in the list", lambda: str(job) in lab.run(["slurm-energy", "decisions", "--job", str(job)]).stdout)
    mine = lab.run(["slurm-energy", "decisions", "--job", str(job), "--user", "alice", "--since", "1h"], check=True)
    heading, _, row = mine.stdout.splitlines()
    assert heading.split()[:3] == ["Decided", "at", "Job"]
    assert row.split()[2] == str(job)
    assert lab.run(["slurm-energy", "decisions", "--job", str(job), "--user", "bob"], check=True).stdout == ""


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
