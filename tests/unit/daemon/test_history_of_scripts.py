"""Runs are put together by what their scripts say where their names say nothing."""

from dataclasses import replace

from slurm_energy.daemon.decide import JobHistory
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.work import FailedRuns, MeasuredRun
from slurm_energy.estimation.job_history import named_work, runtime_estimates
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
    )


def history(*samples: RuntimeSample) -> JobHistory:
    found = runtime_estimates(samples, lambda _user, _name: TypeComparison().cost)
    return JobHistory(runtimes={(user, name): estimate for user, name, estimate in found})


def seconds(known: JobHistory, user: int, name: str, script: ScriptFeatures | None) -> float | None:
    runtime, _ = known.about(user, name, script)
    return None if runtime is None else runtime.seconds


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
    assert runtime is not None and (runtime.seconds, runtime.runs) == (100.0, 3)


def test_the_newest_runs_of_a_group_count_whatever_their_names() -> None:
    old = [sample(f"train_{number}", 1.0, RESNET, ended=float(number)) for number in range(30)]
    new = [sample(f"train_{number}", 100.0, RESNET, ended=100.0 + number) for number in range(20)]
    runtime, _ = history(*new, *old).about(1000, "train", RESNET)
    assert runtime is not None and (runtime.seconds, runtime.upper_seconds, runtime.runs) == (100.0, 100.0, 20)


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
    work = {(user, name): estimate for user, name, estimate in named_work(runs, failed)}
    known = JobHistory(work=work)
    _, resnet = known.about(1000, "exp_3", RESNET)
    _, bert = known.about(1000, "wrap", BERT)
    assert resnet is not None and (resnet.runs_by_type, resnet.failed_types) == ({A100: 3}, frozenset({A40}))
    assert bert is not None and (bert.runs_by_type, bert.failed_types) == ({A100: 1, A40: 1}, frozenset())
    assert known.about(1000, "wrap", None) == (None, None)
