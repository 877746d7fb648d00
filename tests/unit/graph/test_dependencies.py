from collections.abc import Iterable, Mapping
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st
from small_clusters import after

from slurm_energy.domain.ids import JobId
from slurm_energy.graph.job_relations import DependencyGraph


def make_graph(needs: dict[int, tuple[int, ...]]) -> DependencyGraph:
    graph = DependencyGraph()
    for job, needed in needs.items():
        graph.set_job(JobId(job), after(*needed))
    return graph


def paths(graph: DependencyGraph, jobs: Iterable[int], seconds: Mapping[int, float]) -> dict[JobId, float]:
    return graph.critical_paths([JobId(job) for job in jobs], {JobId(job): value for job, value in seconds.items()})


def test_the_critical_path_is_the_longest_chain_that_waits() -> None:
    graph = make_graph({1: (), 2: (1,), 3: (1,), 4: (2, 3)})
    assert paths(graph, range(1, 5), {1: 10.0, 2: 5.0, 3: 50.0, 4: 1.0}) == {1: 61.0, 2: 6.0, 3: 51.0, 4: 1.0}


def test_a_circle_ends_and_adds_nothing() -> None:
    graph = make_graph({1: (3,), 2: (1,), 3: (2,), 4: (3,)})
    assert paths(graph, range(1, 5), dict.fromkeys(range(1, 5), 10.0)) == {1: 10.0, 2: 10.0, 3: 20.0, 4: 10.0}


def test_a_dependency_waits_until_its_job_appears() -> None:
    graph = make_graph({2: (1,)})
    assert graph.component([JobId(2)]) == {2}
    assert graph.set_job(JobId(1), ()) >= {1, 2}
    assert graph.component([JobId(2)]) == {1, 2}
    assert [item.job_id for item in graph.needs(JobId(2))] == [1]


def test_both_parts_are_touched_when_a_job_between_them_goes() -> None:
    graph = make_graph({1: (), 2: (1,), 3: (2,)})
    assert graph.remove_job(JobId(2)) == {1, 3}
    assert graph.component([JobId(1)]) == {1}
    assert list(graph.needs(JobId(3))) == []


def test_a_job_neither_needs_itself_nor_another_twice() -> None:
    graph = make_graph({1: (), 2: (2, 1, 1)})
    assert [item.job_id for item in graph.needs(JobId(2))] == [1]
    assert set(graph.dependents(JobId(2))) == set()


def test_a_long_chain_is_no_deep_recursion() -> None:
    graph = make_graph({job: (job - 1,) for job in range(1, 10_001)})
    found = paths(graph, range(1, 10_001), dict.fromkeys(range(1, 10_001), 1.0))
    assert found[JobId(1)] == 10_000.0
    assert len(graph.component([JobId(5_000)])) == 10_000


def longest_by_search(needs: Mapping[int, tuple[int, ...]], job: int, seconds: Mapping[int, float]) -> float:
    """Longest simple chain of jobs that wait for a job, by trying every order; only for graphs without circles."""
    best = seconds[job]
    others = [other for other in needs if other != job]
    for length in range(1, len(others) + 1):
        for chain in permutations(others, length):
            if all(before in needs[after_] for before, after_ in zip((job, *chain), chain, strict=False)):
                best = max(best, seconds[job] + sum(seconds[other] for other in chain))
    return best


@given(st.data())
def test_critical_paths_agree_with_trying_every_chain(data: st.DataObject) -> None:
    needs: dict[int, tuple[int, ...]] = {
        job: tuple(data.draw(st.sets(st.integers(1, job - 1)))) if job > 1 else () for job in range(1, 6)
    }
    seconds = {job: float(data.draw(st.integers(0, 20))) for job in needs}
    found = paths(make_graph(needs), needs, seconds)
    assert found == {job: longest_by_search(needs, job, seconds) for job in needs}
