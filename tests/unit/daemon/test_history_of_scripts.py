"""Runs are put together by what their scripts say where their names say nothing."""

from dataclasses import replace

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.work import FailedRuns, MeasuredRun
from slurm_energy.estimation.job_history import ANY_USER, JobHistory, named_work, timed_names
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.store.past_runs import RuntimeSample

A100, A40 = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("a40")
RESNET = ScriptFeatures(programs=("python",), frameworks=("pytorch",), model="resnet50", batch_size=256)
BERT = replace(RESNET, model="bert-large", batch_size=32)
UNREAD = ScriptFeatures(programs=("python",))


def sample(
    name: str, seconds: float, script: ScriptFeatures | None, *, user: int = 1000, ended: float = 0.0
) -> RuntimeSample:
    return RuntimeSample(
        user_id=user,
        name=name,
        ended_at_seconds=ended,
        run_seconds=seconds,
        default_clock_seconds=seconds,
        gpu_count=1,
        script_key=None if script is None else script.key or None,
        gpu_type=None,
        submitted_at_seconds=ended,
        limit_seconds=None,
        cut_off=False,
    )


def history(*samples: RuntimeSample) -> JobHistory:
    found, _ = timed_names(samples, lambda _user, _name: TypeComparison().cost)
    return JobHistory(runtimes={(user, name): run_time for user, name, run_time in found})


def seconds(known: JobHistory, user: int, name: str, script: ScriptFeatures | None) -> float | None:
    runtime, _ = known.expected(user, name, script, None)
    return None if runtime is None else round(runtime.seconds, 6)


def test_jobs_of_one_name_and_different_scripts_have_different_estimates() -> None:
    known = history(
        sample("train", 100.0, RESNET),
        sample("train", 5000.0, BERT),
        sample("train", 700.0, RESNET, user=1001),
    )
    assert seconds(known, 1000, "train", RESNET) == 100.0
    assert seconds(known, 1000, "train", BERT) == 5000.0
    assert seconds(known, 1001, "train", RESNET) == 700.0
    assert seconds(known, 1001, "train", BERT) is None


def test_one_script_under_names_that_differ_in_parameters_is_one_group() -> None:
    known = history(*(sample(name, 100.0, RESNET) for name in ("train_17", "train_lr0.1_seed3", "run.sh")))
    runtime, _ = known.about(1000, "train-2024-05-01", RESNET)
    assert runtime is not None and runtime.runs == 3
    assert seconds(known, 1000, "train-2024-05-01", RESNET) == 100.0


def test_the_newest_runs_of_a_group_count_whatever_their_names() -> None:
    old = [sample(f"train_{number}", 1.0, RESNET, ended=float(number)) for number in range(30)]
    new = [sample(f"train_{number}", 100.0, RESNET, ended=100.0 + number) for number in range(20)]
    known = history(*new, *old)
    runtime, _ = known.about(1000, "train", RESNET)
    assert runtime is not None and runtime.runs == 20
    assert seconds(known, 1000, "train", RESNET) == 100.0


def test_where_no_script_was_read_nothing_changes() -> None:
    known = history(*(sample(name, 100.0, script) for name, script in (("train", None), ("resnet50", RESNET))))
    assert seconds(known, 1000, "train", None) == 100.0
    assert seconds(known, 1000, "train", UNREAD) == 100.0
    assert seconds(known, 1000, "resnet50", None) == seconds(known, 1000, "resnet50", BERT) == 100.0
    assert seconds(known, 1000, "train_17", None) is None


def test_runs_from_before_scripts_were_read_speak_until_there_are_others() -> None:
    before = [sample("train", 100.0, None)]
    assert seconds(history(*before), 1000, "train", RESNET) == 100.0
    assert seconds(history(*before, sample("train", 30.0, RESNET)), 1000, "train", RESNET) == 30.0


def test_measured_and_failed_runs_are_put_together_likewise() -> None:
    def run(name: str, script: ScriptFeatures, gpu_type: GpuTypeName, took: float) -> MeasuredRun:
        return MeasuredRun(
            user=1000, name=name, script_key=script.key, gpu_type=gpu_type, gpus=1, seconds=took, watts=300.0,
            ended_at_seconds=0.0,
        )  # fmt: skip

    runs = [run(f"train_{number}", RESNET, A100, 60.0) for number in range(3)]
    runs += [run("wrap", BERT, gpu_type, 60.0) for gpu_type in (A100, A40)]
    failed = [
        FailedRuns(user=1000, name=name, gpu_type=A40, runs=1, script_key=RESNET.key) for name in ("train", "job")
    ]
    work = {(user, name): estimate for user, name, estimate in named_work(runs, failed)[0]}
    known = JobHistory(work=work)
    _, resnet = known.about(1000, "exp_3", RESNET)
    _, bert = known.about(1000, "wrap", BERT)
    assert resnet is not None and (resnet.runs_by_type, resnet.failed_types) == ({A100: 3}, frozenset({A40}))
    assert bert is not None and (bert.runs_by_type, bert.failed_types) == ({A100: 1, A40: 1}, frozenset())
    assert known.about(1000, "wrap", None) == (None, None)


def test_a_name_that_never_ran_is_compared_by_other_users_runs_of_the_same_kind_of_script() -> None:
    gains = {"resnet50": 1.3, "bert-large": 2.6}
    scripts = {script.key: script for script in (RESNET, BERT)}
    runs = [
        MeasuredRun(
            user=2000 + number, name="job", script_key=script.key, gpu_type=gpu_type, gpus=1,
            seconds=60.0 * (1 + number) * (gains[script.model] if gpu_type == A40 else 1.0), watts=300.0,
            ended_at_seconds=86_400.0 * day,
        )
        for script in (RESNET, BERT) for number in range(5) for gpu_type in (A100, A40) for day in range(3)
    ]  # fmt: skip
    table, _ = named_work(runs, scripts=scripts)
    known = JobHistory(work={(user, name): estimate for user, name, estimate in table})
    assert {user for user, _, _ in table} >= {ANY_USER}
    for script in (RESNET, replace(RESNET, epochs=7), BERT):
        _, work = known.about(7, "wrap", script)
        assert work is not None and (work.runs_by_type, work.like_names) == ({}, 5)
        assert 0.75 < work.time_ratio(A40, A100) / gains[script.model] < 1.35
        cost = TypeComparison(work=work).cost(A40, A100)
        assert cost is not None and cost.source == "jobs with like scripts"
    assert known.about(7, "wrap", ScriptFeatures(model="vgg16")) == (None, None)
    assert known.about(7, "wrap", None) == (None, None)
