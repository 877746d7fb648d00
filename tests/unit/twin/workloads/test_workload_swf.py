from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.workloads.formats import load_workload
from slurm_energy.twin.workloads.replay import LoadOptions, ReplayKind

HEAD = "; Version: 2.2\n;  MaxProcs: 128\n; UnixStartTime: 844646400\n;\n"


def line(**fields: object) -> str:
    """A line with everything unknown but number, submission, run and processors."""
    names = ["job", "submit", "wait", "run", "procs", "cpu", "used_memory", "req_procs", "req_time", "req_memory"]
    names += ["status", "user", "group", "app", "queue", "part", "prev", "think"]
    row: dict[str, object] = {**dict.fromkeys(names, -1), "job": 1, "submit": 0, "run": 100, "procs": 4, "status": 1}
    assert set(fields) <= set(names)
    return " ".join(str(value) for value in {**row, **fields}.values()) + "\n"


def load(tmp_path: Path, text: str, skip_bad: bool = False, options: LoadOptions | None = None) -> Workload:
    path = tmp_path / "log.swf"
    path.write_text(text)
    return load_workload(path, skip_bad=skip_bad, options=options)


def test_all_fields_of_a_job_are_mapped(tmp_path: Path) -> None:
    text = line(
        job=3,
        submit=10,
        wait=5,
        run=600,
        procs=8,
        req_procs=16,
        req_time=3600,
        req_memory=1048576,
        user=7,
        group=2,
        app=9,
    )
    (job,) = load(tmp_path, HEAD + text).jobs
    assert (job.job_id, job.submitted_seconds, job.gpu_counts, job.true_units) == (3, 10.0, (8,), 4800.0)
    assert (job.time_limit_seconds, job.memory_gib) == (3600.0, 8.0)
    assert (job.user, job.account, job.name, job.kind) == ("user7", "group2", "app9", "replay")


def test_unknown_fields_leave_the_defaults(tmp_path: Path) -> None:
    (job,) = load(tmp_path, line()).jobs
    assert (job.time_limit_seconds, job.memory_gib, job.user, job.account, job.name) == (inf, 0.0, "", "", "")
    assert (job.after_any, job.partitions, job.fails_after_units) == ((), (), inf)


def test_requested_processors_stand_in_for_unknown_allocated_ones(tmp_path: Path) -> None:
    assert load(tmp_path, line(procs=-1, req_procs=6)).jobs[0].gpu_counts == (6,)


def test_processors_become_devices(tmp_path: Path) -> None:
    (job,) = load(tmp_path, line(procs=9), options=LoadOptions(processors_per_device=4)).jobs
    assert (job.gpu_counts, job.true_units) == ((3,), 300.0)


def test_status_decides_how_a_job_ends(tmp_path: Path) -> None:
    text = line(job=1, status=0) + line(job=2, status=5) + line(job=3, status=5, run=-1) + line(job=4, status=-1)
    found = load(tmp_path, text)
    assert [(job.job_id, job.fails_after_units) for job in found.jobs] == [(1, 400.0), (2, inf), (4, inf)]
    assert found.jobs[0].true_units > 400.0
    assert "1 never ran" in found.source


def test_parts_of_a_job_are_left_aside(tmp_path: Path) -> None:
    found = load(tmp_path, line(job=1, status=2) + line(job=1, status=3) + line(job=1, status=1))
    assert len(found.jobs) == 1
    assert "2 parts of jobs" in found.source


def test_preceding_job_is_waited_for_if_it_is_there(tmp_path: Path) -> None:
    text = line(job=1) + line(job=2, prev=1, think=60) + line(job=3, run=-1) + line(job=4, prev=3)
    found = load(tmp_path, text)
    assert [job.after_any for job in found.jobs] == [(), (1,), ()]
    assert "1 dependencies on jobs that are not there" in found.source


def test_kinds_and_partitions_follow_queue_and_partition(tmp_path: Path) -> None:
    options = LoadOptions(
        kinds=(ReplayKind(name="a"), ReplayKind(name="b")), kind_by_label={"queue2": "b"}, keep_partitions=True
    )
    found = load(tmp_path, line(job=1, queue=1, part=5) + line(job=2, queue=2), options=options)
    assert [(job.kind, job.partitions) for job in found.jobs] == [("a", ("partition5",)), ("b", ())]


def test_header_alone_is_no_jobs(tmp_path: Path) -> None:
    assert load(tmp_path, HEAD).jobs == ()


BAD = {
    "too few": ("1 2 3\n", "has 3 fields instead of 18"),
    "too many": (line().rstrip() + " 5\n", "has 19 fields instead of 18"),
    "word": (line(run="x"), "column run_seconds: 'x' is not a finite number"),
    "nan": (line(run="nan"), "column run_seconds: 'nan' is not a finite number"),
    "below": (line(run=-2), "column run_seconds: '-2' is out of its bound"),
    "half unknown": (line(run=-0.5), "column run_seconds: '-0.5' is out of its bound"),
    "number": (line(job=-1), "column job_number: '-1' is not a whole number from 0 up"),
    "part of a number": (line(job=1.5), "column job_number: '1.5' is not a whole number from 0 up"),
    "submission": (line(submit=-1), "column submit_seconds: '-1' is needed"),
    "status": (line(status=9), "column status: '9' is out of its bound: -1 to 5"),
    "devices": (line(procs=2_000_000), "column allocated_processors: '2e+06' makes 2000000 devices"),
    "duplicate": (line(job=100), "'100' is the job of line 1 too"),
    "cycle": (line(job=7, prev=7), "is part of a cycle"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_bad_line_is_refused_or_counted(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        load(tmp_path, line(job=100) + text)
    assert "line 2, " in str(caught.value)
    assert message in str(caught.value)
    found = load(tmp_path, line(job=100) + text, skip_bad=True)
    assert ([job.job_id for job in found.jobs], found.bad_rows) == ([100], 1)


@given(
    rows=st.lists(
        st.lists(
            st.one_of(st.integers(-2, 5), st.floats(), st.integers(), st.text(max_size=4)), min_size=17, max_size=19
        ).map(lambda items: " ".join(map(str, items)).encode("utf-8", "replace")),
        max_size=5,
    )
)
def test_no_content_breaks_the_reader(tmp_path: Path, rows: list[bytes]) -> None:
    path = tmp_path / "log.swf"
    path.write_bytes(line().encode() + b"\n".join(rows))
    found = load_workload(path, format="swf", skip_bad=True)
    assert found.bad_rows + len(found.jobs) >= 1
