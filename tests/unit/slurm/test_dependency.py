import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.cluster import JobDependency
from slurm_energy.domain.ids import JobId
from slurm_energy.slurm.convert_job import MAX_DEPENDENCIES, parse_dependencies


def needs(number: int) -> JobDependency:
    return JobDependency(job_id=JobId(number), needs_success=True)


def waits(number: int) -> JobDependency:
    return JobDependency(job_id=JobId(number), needs_success=False)


@pytest.mark.parametrize(
    ("text", "dependencies"),
    [
        ("afterok:58948419(unfulfilled)", (needs(58948419),)),
        ("afterok:12(unfulfilled),afterany:13_*(unfulfilled)", (needs(12), waits(13))),
        ("afterok:12(unfulfilled)?afterok:14(failed)", (needs(12), needs(14))),
        ("afterok:12(fulfilled),afterok:13(unfulfilled)", (needs(13),)),
        ("afterok:1:2:3", (needs(1), needs(2), needs(3))),
        ("after:20+5:21(unfulfilled),afternotok:22", (waits(20), waits(21), waits(22))),
        ("aftercorr:13_*(unfulfilled),afterburstbuffer:9", (needs(13), waits(9))),
        ("afterany:7,afterok:7,afterany:7", (needs(7),)),
        ("afterok:13_5,afterok:13_6", (needs(13),)),
        ("afterok:8+1", (needs(8),)),
        ("AfterOK:5", (needs(5),)),
        ("singleton(unfulfilled)", ()),
        ("expand:5", ()),
        ("afterok:0,afterok:99999999999,afterok:4294967295", (needs(4294967295),)),
        ("afterok,afterok:,afterok::,:5,,?", ()),
        ("", ()),
    ],
)
def test_every_form_names_the_jobs_that_are_waited_for(text: str, dependencies: tuple[JobDependency, ...]) -> None:
    assert parse_dependencies(text) == dependencies


def test_an_endless_list_is_cut_off() -> None:
    found = parse_dependencies(",".join(f"afterok:{number}" for number in range(1, 5000)))
    assert found == tuple(needs(number) for number in range(1, MAX_DEPENDENCIES + 1))


@given(st.text(max_size=300) | st.text(alphabet="aftrokny:?,0123456789_*()+", max_size=300))
def test_any_text_is_read(text: str) -> None:
    found = parse_dependencies(text)
    assert len({dependency.job_id for dependency in found}) == len(found) <= MAX_DEPENDENCIES
