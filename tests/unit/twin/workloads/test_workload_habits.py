from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.estimation.job_groups import job_group, name_stem
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.workloads.habits import (
    LONGEST_LIMIT_SECONDS,
    Habit,
    HabitShares,
    batch_script,
    drawn_habits,
    give_habits,
    limit_seconds,
    script_of,
)
from slurm_energy.twin.workloads.registry import create_workload

HABIT = Habit(user="user001", naming="telling", telling="much", limit="round", form=0, generic_name="train")
SETTINGS: dict[str, float | int | str] = {
    "hours": 24.0,
    "ingresses": 1,
    "rate_per_second": 0.005,
    "kinds": "resnet50,bert",
    "names_per_kind": 4,
}


def key(job: Job) -> str | None:
    return None if job.script is None else job.script.key or None


def test_users_change_nothing_of_who_comes_and_are_off_by_default() -> None:
    without, with_users = (create_workload("poisson", {**SETTINGS, **more}, 5).jobs for more in ({}, {"users": 6}))
    assert {job.user for job in without} == {""}
    assert [(job.submitted_seconds, job.true_units, job.kind, job.gpu_counts) for job in without] == [
        (job.submitted_seconds, job.true_units, job.kind, job.gpu_counts) for job in with_users
    ]
    again = create_workload("poisson", {**SETTINGS, "users": 6}, 5).jobs
    assert [(job.user, job.name, job.script) for job in with_users] == [
        (job.user, job.name, job.script) for job in again
    ]


def test_each_user_keeps_to_a_way_of_naming() -> None:
    jobs = create_workload("daily", {**SETTINGS, "users": 6}, 5).jobs
    names = defaultdict(set)
    for job in jobs:
        names[job.user].add(name_stem(job.name))
    assert len(names) > 3
    assert all(stems == {""} or "" not in stems for stems in names.values())
    assert {"", "nothing"} > {min(stems) for stems in names.values() if stems == {""}}


@pytest.mark.parametrize("form", range(10))
def test_a_telling_script_says_the_kind_in_every_form(form: int) -> None:
    habit = replace(HABIT, form=form)
    resnet, bert = (script_of(habit, f"{kind}-1", kind, 4) for kind in ("resnet50", "bert"))
    assert resnet is not None and bert is not None
    assert (resnet.programs, resnet.model, bert.model) == (("python",), "resnet50", "bert")
    assert resnet.key != bert.key
    assert batch_script(habit, "bert-1", "bert", 4).startswith("#!/bin/bash\n#SBATCH ")


def test_forms_are_those_of_the_launchers_that_people_use() -> None:
    found = [script_of(replace(HABIT, form=form), "bert-1", "bert", 4) for form in range(10)]
    launchers = {word for script in found if script is not None for word in script.launchers}
    assert launchers == {"srun", "torchrun", "apptainer", "accelerate", "deepspeed", "horovodrun", "mpirun"}


@pytest.mark.parametrize(("kind", "program"), [("lammps", "lammps"), ("namd", "namd")])
def test_simulations_are_told_by_their_program(kind: str, program: str) -> None:
    for form in range(3):
        script = script_of(replace(HABIT, form=form), f"{kind}-2", kind, 2)
        assert script is not None and script.programs == (program,)


def test_a_script_that_tells_little_tells_programs_apart_and_not_their_kind() -> None:
    habit = replace(HABIT, telling="little")
    one, other = (script_of(habit, program, "bert", 1) for program in ("bert-1", "bert-2"))
    assert one is not None and other is not None
    assert one.model == other.model == "" and one.key != other.key
    assert script_of(replace(habit, telling="nothing"), "bert-1", "bert", 1) is None


def test_programs_of_telling_scripts_can_be_told_apart_behind_names_that_say_nothing() -> None:
    jobs = [
        Job(job_id=number, submitted_seconds=0.0, true_units=1.0, name=f"bert-{number % 4}") for number in range(40)
    ]
    programs = [job.name for job in jobs]
    give_habits(jobs, 1, np.random.SeedSequence(0))
    groups = {(program, job_group(job.name, key(job))) for program, job in zip(programs, jobs, strict=True)}
    assert {job.user for job in jobs} == {"user001"}
    assert len(groups) >= 4


def test_limits_are_those_that_the_habit_makes() -> None:
    run, draws = 5_000.0, [number / 200 for number in range(200)]
    tight = [limit_seconds(replace(HABIT, limit="tight"), run, draw) for draw in draws]
    assert sum(limit < run for limit in tight) == pytest.approx(0.05 * len(draws), abs=1)
    assert max(tight) < 1.6 * run
    assert {limit_seconds(replace(HABIT, limit="longest"), run, draw) for draw in draws} == {LONGEST_LIMIT_SECONDS}
    assert all(limit_seconds(HABIT, run, draw) > run for draw in draws)


def test_jobs_get_limits_where_their_run_time_is_known() -> None:
    jobs = [Job(job_id=number, submitted_seconds=0.0, true_units=1.0) for number in range(5)]
    give_habits(jobs, 2, np.random.SeedSequence(0), seconds_of=lambda job: job.true_units * 3600.0)
    assert all(3_000.0 < job.time_limit_seconds < float("inf") for job in jobs)


def test_habits_have_all_forms_among_many_users() -> None:
    habits = drawn_habits(200, np.random.default_rng(1))
    assert {habit.naming for habit in habits} == {"telling", "parameters", "generic"}
    assert {habit.telling for habit in habits} == {"much", "little", "nothing"}


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_shares_of_users_are_met_and_nothing_else_changes_with_them(share: float) -> None:
    shares = HabitShares(generic_names=share, named_partitions=share, partitions={"a100": 1.0, "v100": 3.0})
    plain, habits = (drawn_habits(40, np.random.default_rng(1), one) for one in (HabitShares(), shares))
    assert sum(habit.naming == "generic" for habit in habits) == 40 * share
    assert sum(bool(habit.partition) for habit in habits) == 40 * share
    assert [(one.telling, one.form, one.limit) for one in plain] == [
        (other.telling, other.form, other.limit) for other in habits
    ]


def test_a_site_s_settings_make_limits_and_partitions() -> None:
    settings: dict[str, float | int | str] = {
        **SETTINGS,
        "users": 10,
        "limits": "longest",
        "named_partitions": 0.5,
        "partition_mix": "a100:1,a40:1",
        "median_units": 3600.0,
    }
    jobs = create_workload("daily", settings, 3).jobs
    week = sum(job.time_limit_seconds == LONGEST_LIMIT_SECONDS for job in jobs)
    assert 0 < week < len(jobs)
    assert all(job.time_limit_seconds >= job.true_units for job in jobs)
    assert {job.partitions for job in jobs} == {(), ("a100",), ("a40",)}
    by_user = defaultdict(set)
    for job in jobs:
        by_user[job.user].add(job.partitions)
    assert all(len(named) == 1 for named in by_user.values())


def test_what_users_leave_to_the_site_is_at_even_shares_and_changes_nothing_else() -> None:
    settings: dict[str, float | int | str] = {
        **SETTINGS, "users": 20, "limits": "margins", "named_partitions": 0.5, "partition_mix": "a100:1,a40:1",
        "gpu_mix": "2:1", "names_per_kind": 40, "rate_per_second": 0.02,
    }  # fmt: skip
    plain = create_workload("daily", settings, 3).jobs
    levers = create_workload("daily", {**settings, "open_partitions": 0.5, "gpu_ranges": 0.3}, 3).jobs
    opening = {job.user for job in levers if job.open}
    ranging = {job.user for job in levers if job.asked_gpus}
    assert (len(opening), len(ranging)) == (5, 6)
    assert all(job.partitions for job in levers if job.open)
    assert {(job.asked_gpus, job.gpu_counts) for job in levers} == {(2, (1, 2, 4, 8)), (0, (2,))}
    rest = [(job.user, job.name, job.partitions, job.time_limit_seconds, job.true_units) for job in plain]
    assert [(job.user, job.name, job.partitions, job.time_limit_seconds, job.true_units) for job in levers] == rest


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"users": 5, "limits": "short"}, "limits='short' is none of mixed, margins, longest"),
        ({"users": 5, "named_partitions": 0.5}, "say which with partition_mix"),
        ({"limits": "margins"}, "are habits of users"),
        ({"users": 5, "generic_names": 1.5}, "generic_names=1.5 is out of its bound"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float | int | str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_workload("daily", {**SETTINGS, **wrong}, 0)


def test_a_number_of_users_out_of_its_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="users=-1 is out of its bound"):
        create_workload("poisson", {"users": -1}, 0)
