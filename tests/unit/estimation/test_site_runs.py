"""A site's runs without a database: each that ends corrects what is known of its name, at once."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_names import A40, A100, DAY, make_run

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.domain.work import FailedRuns
from slurm_energy.estimation.run_time import EndedRun
from slurm_energy.estimation.site_runs import SiteRuns
from slurm_energy.policy.site.comparison import TypeComparison

HOUR = 3600.0


def site() -> SiteRuns:
    """Return a site where eight names ran on two types, the A40 twice as long, looked at as a whole."""
    known = SiteRuns()
    for number in range(8):
        for day in range(3):
            for gpu_type, seconds in ((A100, 100.0), (A40, 200.0)):
                run = make_run(f"job{number}", gpu_type, seconds=seconds, user=1, ended_at_seconds=day * DAY)
                known.observe(run)
                known.observe(EndedRun(user=1, name=run.name, seconds=seconds, limit_seconds=HOUR, gpu_type=gpu_type))
    known.look(3 * DAY)
    return known


def test_a_run_corrects_its_name_before_the_next_look_at_all_runs() -> None:
    known = site()
    before, work = known.look(3 * DAY + 1.0).expected(1, "job0", None, HOUR)
    assert before is not None and work is not None
    for number in range(10):
        known.observe(EndedRun(user=1, name="job0", seconds=1000.0, limit_seconds=HOUR, gpu_type=A100))
        known.observe(make_run("job0", A40, seconds=800.0, user=1, ended_at_seconds=(4 + number) * DAY))
    after, corrected = known.look(3 * DAY + 2.0).expected(1, "job0", None, HOUR)
    other, other_work = known.look(3 * DAY + 2.0).expected(1, "job1", None, HOUR)
    assert after is not None and after.runs > before.runs and after.upper_seconds > 2.0 * before.upper_seconds
    assert corrected is not None and corrected.time_ratio(A40, A100) > 1.3 * work.time_ratio(A40, A100)
    assert other == replace(before, runs=6)
    assert other_work is not None and other_work.time_ratio(A40, A100) == pytest.approx(work.time_ratio(A40, A100))


def test_a_failure_counts_at_once() -> None:
    known = site()
    for _ in range(2):
        known.observe(FailedRuns(user=1, name="job0", gpu_type=GpuTypeName("h100-sxm5-80gb"), runs=1))
    _, work = known.look(3 * DAY + 1.0).expected(1, "job0", None, HOUR)
    assert work is not None and work.failed_types == {GpuTypeName("h100-sxm5-80gb")}


texts = st.text(max_size=30) | st.sampled_from(["", "x" * 10_000, "名前\x00", "wrap", "script:ff"])
types = st.sampled_from([A100, A40, GpuTypeName("never-heard-of")])
figures = st.sampled_from([1e-9, 1e-3, 1.0, 3600.0, 259_200.0, 1e12])
scripts = st.none() | st.builds(
    ScriptFeatures,
    model=st.sampled_from(["", "bert", "x"]),
    code=st.sampled_from(["", "0123abcd"]),
    batch_size=st.none() | st.integers(1, 10**9),
)


@settings(max_examples=10, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(0, 2), texts, types, figures, figures, scripts), max_size=8),
    asked=st.tuples(st.integers(0, 3), texts, scripts, st.none() | st.floats()),
)
def test_whatever_ran_a_job_gets_estimates_or_none_and_never_an_error(
    runs: list[tuple[int, str, GpuTypeName, float, float, ScriptFeatures | None]],
    asked: tuple[int, str, ScriptFeatures | None, float | None],
) -> None:
    known = SiteRuns()
    for index, (user, name, gpu_type, seconds, watts, script) in enumerate(runs):
        key = None if script is None else script.key or None
        run = make_run(name, gpu_type, seconds=seconds, watts=watts, user=user, ended_at_seconds=index * DAY)
        known.observe(replace(run, script_key=key), script)
        known.observe(EndedRun(user=user, name=name, seconds=seconds, gpu_type=gpu_type), script)
        if index == 4:
            known.look(0.0)
    user, name, script, limit = asked
    runtime, work = known.look(1e9).expected(user, name, script, limit)
    assert runtime is None or 0.0 < runtime.seconds <= runtime.upper_seconds < float("inf")
    for one in (A100, A40):
        cost = TypeComparison(work=work).cost(one, A100)
        assert cost is None or 0.0 < cost.time_ratio <= cost.worst_time_ratio < float("inf")
