from dataclasses import replace

from slurm_energy.daemon.ipc.frames import MAX_ITEMS, SnapshotPart
from slurm_energy.daemon.snapshot.changes import VANISHED, JobDifference, SnapshotDifference
from slurm_energy.domain.cluster import ClusterState, JobDependency, JobState, NodeState, PartitionState, SwitchState
from slurm_energy.domain.ids import ClusterName, JobId, NodeName, PartitionName
from slurm_energy.slurm.client import ClusterReading


def job(number: int, **fields: object) -> JobState:
    made = JobState(
        job_id=JobId(number),
        user_name="alice",
        user_id=1000,
        name="train",
        state="PENDING",
        partitions=(PartitionName("a100"),),
        submitted_at_seconds=1000.0,
    )
    return replace(made, **fields)  # type: ignore[arg-type]  # each test gives fields of the right type


NODE = NodeState(
    name=NodeName("n1"), partitions=(PartitionName("a100"),), states=("IDLE",), available=True, cpus=8, cpus_allocated=0
)
PARTITION = PartitionState(name=PartitionName("a100"), is_default=True, up=True)


def reading(*jobs: JobState, nodes: tuple[NodeState, ...] = (NODE,)) -> ClusterReading:
    return ClusterReading(partitions=(PARTITION,), nodes=nodes, jobs=jobs)


def test_the_first_reading_is_sent_whole_in_small_parts() -> None:
    jobs = [job(number) for number in range(1, 601)]
    parts = list(SnapshotDifference().parts(reading(*jobs)))
    assert [len(part.jobs) for part in parts if part.jobs] == [MAX_ITEMS, MAX_ITEMS, 100]
    assert [part.nodes for part in parts if part.nodes] == [(NODE,)]
    assert parts[0] == SnapshotPart(partitions=(PARTITION,))


def test_later_readings_send_only_what_changed() -> None:
    difference = SnapshotDifference()
    list(difference.parts(reading(job(1), job(2), job(3))))
    running = job(2, state="RUNNING")
    assert list(difference.parts(reading(job(1), running, job(4)))) == [
        SnapshotPart(jobs=(running, job(4))),
        SnapshotPart(jobs_gone=(3,)),
    ]
    assert list(difference.parts(reading(job(1), running, job(4), nodes=()))) == [SnapshotPart(nodes_gone=("n1",))]


def waits_for(count: int) -> tuple[JobDependency, ...]:
    return tuple(JobDependency(job_id=JobId(1 + number), needs_success=True) for number in range(count))


def test_switches_and_clusters_are_sent_when_they_change_and_in_small_parts() -> None:
    difference = SnapshotDifference()
    list(difference.parts(reading(job(1))))
    switches = tuple(SwitchState(name=f"s{number}") for number in range(600))
    clusters = (ClusterState(name=ClusterName("site"), power_budget_watts=1000.0),)
    known = replace(reading(job(1)), switches=switches, clusters=clusters)
    assert list(difference.parts(known)) == [
        SnapshotPart(switches=switches[:MAX_ITEMS]),
        SnapshotPart(more_switches=switches[MAX_ITEMS : 2 * MAX_ITEMS]),
        SnapshotPart(more_switches=switches[2 * MAX_ITEMS :]),
        SnapshotPart(clusters=clusters),
    ]
    assert list(difference.parts(known)) == []
    assert list(difference.parts(reading(job(1)))) == [SnapshotPart(switches=()), SnapshotPart(clusters=())]


def test_dependencies_count_in_the_size_of_a_part() -> None:
    jobs = [job(number, dependencies=waits_for(9)) for number in range(1, 51)] + [job(60, dependencies=waits_for(999))]
    sent = [part.jobs for part in SnapshotDifference().parts(reading(*jobs)) if part.jobs]
    assert [len(part) for part in sent] == [25, 25, 1]
    assert [each for part in sent for each in part] == jobs


def test_the_record_of_a_job_has_no_long_lists_and_they_make_no_change() -> None:
    history = JobDifference()
    held = ((NodeName("n1"), (0, 1)),)
    first = job(1, dependencies=waits_for(3), gpu_positions=held, deadline_seconds=5000.0)
    assert history.changes([first]).changed == (job(1, deadline_seconds=5000.0),)
    assert history.changes([job(1, dependencies=waits_for(2))]).changed == ()
    assert history.changes([]).vanished == (job(1, state=VANISHED),)


def test_a_job_that_has_ended_leaves_the_snapshot() -> None:
    difference = SnapshotDifference()
    list(difference.parts(reading(job(1))))
    assert list(difference.parts(reading(job(1, state="COMPLETED")))) == [SnapshotPart(jobs_gone=(1,))]


def test_a_changed_priority_is_not_worth_recording_but_a_start_is() -> None:
    history = JobDifference()
    history.changes([job(1)])
    assert history.changes([job(1, priority=99)]).changed == ()
    started = job(1, state="RUNNING", started_at_seconds=1100.0)
    assert history.changes([started]).changed == (started,)


def test_a_job_that_ends_between_two_readings_is_recorded_from_what_slurm_remembers() -> None:
    history = JobDifference()
    history.changes([])
    ended = job(1, state="COMPLETED", started_at_seconds=1100.0, ended_at_seconds=1101.0)
    assert history.changes([ended]).changed == (ended,)


def test_a_live_job_that_is_gone_has_vanished_and_an_ended_one_has_not() -> None:
    history = JobDifference()
    history.changes([job(1, state="RUNNING"), job(2, state="COMPLETED")])
    changes = history.changes([])
    assert changes.vanished == (job(1, state=VANISHED),)
    assert history.changes([]).vanished == ()


def test_the_earlier_attempt_of_a_requeued_job_was_requeued_under_its_own_submit_time() -> None:
    history = JobDifference()
    history.changes([job(1, state="RUNNING")])
    again = job(1, submitted_at_seconds=1500.0, restart_count=1)
    changes = history.changes([again])
    assert (changes.changed, changes.vanished) == ((again,), (job(1, state="REQUEUED"),))


def test_a_job_number_used_again_is_another_job() -> None:
    history = JobDifference()
    history.changes([job(1, state="RUNNING")])
    again = job(1, submitted_at_seconds=9000.0)
    changes = history.changes([again])
    assert changes.changed == (again,)
    assert [gone.submitted_at_seconds for gone in changes.vanished] == [1000.0]
