from slurm_energy.daemon.decide import job_request
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest
from slurm_energy.wire.messages import SubmittedFields, parse_submitted_job

NOW = 1_790_000_000.0


def test_counts_become_totals_of_the_job() -> None:
    job = SubmittedFields(
        user_id=1000, nodes_min=2, tasks_per_node=4, tres_per_task="gres:gpu:1", memory_per_cpu_mib=1024
    )
    request = job_request(job, NOW, "alice").request
    assert request == JobRequest(
        user_id=1000,
        user_name="alice",
        nodes_min=2,
        tasks=8,
        gpus=(GpuDemand(count=8),),
        memory_per_node_mib=4096.0,
        submitted_at_seconds=NOW,
    )


def test_options_become_the_jobs_options() -> None:
    job = SubmittedFields(user_id=1, mode=EnergyMode.SAVER, max_slowdown=0.1, deadline="now+1hour", quiet=True)
    assert job_request(job, NOW).request.options == EnergyOptions(
        mode=EnergyMode.SAVER, max_slowdown=0.1, deadline_seconds=NOW + 3600.0, quiet=True
    )


def test_a_gpu_clock_of_the_users_own_is_seen() -> None:
    assert job_request(SubmittedFields(user_id=1, tres_frequency="gpu:1000"), NOW).request.gpu_frequency_given
    assert not job_request(SubmittedFields(user_id=1), NOW).request.gpu_frequency_given


def test_a_constraint_and_a_preference_of_the_users_own_are_seen() -> None:
    request = job_request(SubmittedFields(user_id=1, features="big&fast", prefer="fast"), NOW).request
    assert (request.features, request.prefer) == ("big&fast", "fast")


def test_what_cannot_be_read_is_told_and_the_job_goes_on() -> None:
    job = SubmittedFields(user_id=1, tres_per_node="gres:gpu:a100:many", deadline="soon", complaints=("mode is odd",))
    understood = job_request(job, NOW)
    assert (understood.request.gpus, understood.request.options.deadline_seconds) == ((), NOW)
    first, second, third = understood.complaints
    assert first == "mode is odd"
    assert "gres:gpu:a100:many" in second
    assert "'soon'" in third


def test_a_deadline_that_has_passed_leaves_no_time_to_run_slower() -> None:
    understood = job_request(SubmittedFields(user_id=1, deadline="2020-01-01"), NOW)
    assert understood.request.options.deadline_seconds == NOW
    assert "deadline '2020-01-01' has passed" in understood.complaints[0]


def test_a_job_that_is_held_depends_on_others_or_begins_later_does_not_start_now() -> None:
    def request(**fields: str) -> JobRequest:
        return job_request(parse_submitted_job({"uid": "1", **fields}), now_seconds=1000.0).request

    assert not request().starts_later
    assert not request(begin_time="1000").starts_later
    for fields in ({"held": "1"}, {"dependency": "afterok:5"}, {"begin_time": "1001"}):
        assert request(**fields).starts_later
    assert request(tied="1").tied
