"""What is expected of names whose work is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_names import A40, A100, DAY, H100, HEAVY, LIGHT, crowd, make_run, runs_of

from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.estimation.run_groups import group_runs
from slurm_energy.estimation.work_model import fit_work_model, prior_covariance, work_estimates


def estimates(runs: list[MeasuredRun]) -> dict[str, WorkEstimate]:
    return {name.name: estimate for name, estimate in work_estimates(group_runs(runs))}


def test_a_name_that_ran_on_both_types_is_compared_by_its_own_runs() -> None:
    random = np.random.default_rng(1)
    found = estimates([*crowd(random), *runs_of("mine", HEAVY, {A100: 20, H100: 20}, random)])["mine"]
    assert found.runs_by_type == {A100: 20, H100: 20}
    assert found.time_ratio(H100, A100) == pytest.approx(0.44, rel=0.1)
    assert found.watts_ratio(H100, A100) == pytest.approx(560.0 / 380.0, rel=0.02)
    doubt = found.doubt(H100, A100)
    assert doubt is not None and doubt < 0.1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("work", "gain"), [(HEAVY, 0.44), (LIGHT, 0.96)], ids=["heavy", "light"])
def test_a_type_that_a_name_never_ran_on_is_taken_from_names_that_draw_alike(
    work: dict[str, tuple[float, float]], gain: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    found = estimates([*crowd(random), *runs_of("mine", work, {A100: 10}, random)])["mine"]  # type: ignore[arg-type]  # names of types are text
    assert found.time_ratio(H100, A100) == pytest.approx(gain, rel=0.25)
    assert found.watts(A100) == pytest.approx(work[A100][1], rel=0.02)


def test_what_is_expected_lies_within_the_doubt_that_is_stated() -> None:
    random = np.random.default_rng(5)
    runs, truth = crowd(random), {}
    for number in range(60):
        work = HEAVY if number % 2 else LIGHT
        counts = {A100: int(random.integers(1, 6)), (H100 if number % 3 else A40): int(random.integers(1, 6))}
        truth[f"mine-{number}"] = np.log(work[H100][0])
        runs += runs_of(f"mine-{number}", work, counts, random, size=float(np.exp(random.normal(6.0, 1.0))))
    found = estimates(runs)
    misses = []
    for name, expected in truth.items():
        one = found[name]
        at = {gpu_type: index for index, gpu_type in enumerate(one.gpu_types)}
        doubt = one.log_seconds_doubt[at[H100]][at[A100]]
        misses.append((one.log_seconds[at[H100]] - one.log_seconds[at[A100]] - expected) / doubt)
    assert 0.3 < np.std(misses) < 1.5
    assert np.mean(np.abs(misses) < 2.0) > 0.9


def test_doubt_shrinks_with_runs_and_is_larger_for_a_type_without() -> None:
    random = np.random.default_rng(2)
    runs = crowd(random)
    for number in (1, 4, 16):
        runs += runs_of(f"runs-{number}", HEAVY, {A100: number, H100: number}, random)
    found = estimates([*runs, *runs_of("elsewhere", HEAVY, {A100: 16}, random)])
    doubts = [found[name].doubt(H100, A100) or 0.0 for name in ("runs-16", "runs-4", "runs-1", "elsewhere")]
    assert doubts == sorted(doubts)
    assert 0.0 < doubts[0] < 0.5 * doubts[-1]


def test_a_ratio_and_its_inverse_fit_together_and_a_type_has_no_doubt_beside_itself() -> None:
    found = estimates([make_run("a", A100), make_run("a", A40, seconds=150.0)])["a"]
    assert found.time_ratio(A40, A100) * found.time_ratio(A100, A40) == pytest.approx(1.0)
    assert (found.time_ratio(A100, A100), found.doubt(A100, A100)) == (1.0, 0.0)


def test_twenty_runs_of_one_day_are_not_twenty_observations() -> None:
    random = np.random.default_rng(8)
    steady = list(runs_of("steady", HEAVY, {A100: 20, H100: 20}, random, spread=0.02))
    sweep = [
        make_run("sweep", gpu_type, seconds=100.0 * (1.0 + 0.002 * number), ended_at_seconds=day * DAY + number)
        for gpu_type, day in ((A100, 0), (H100, 9))
        for number in range(20)
    ]
    found = estimates([*crowd(random), *steady, *sweep])
    one_day, many_days = found["sweep"].doubt(H100, A100), found["steady"].doubt(H100, A100)
    assert one_day is not None and many_days is not None
    assert many_days < 0.05
    assert one_day > 2.0 * many_days


@pytest.mark.parametrize("seed", range(3))
def test_what_days_differ_by_is_in_the_doubt(seed: int) -> None:
    random = np.random.default_rng(seed)
    runs: list[MeasuredRun] = []
    for number in range(60):
        for gpu_type in (A100, H100):
            for day in range(3):
                size = float(np.exp(6.0 + random.normal(0.0, 0.5)))  # each day has its own input
                runs += [
                    make_run(
                        f"n{number}", gpu_type, seconds=size * (1.0 + 0.01 * run), ended_at_seconds=day * DAY + run
                    )
                    for run in range(6)
                ]
    found = estimates(runs)
    z = [
        (one.log_seconds[1] - one.log_seconds[0]) / (one.doubt(H100, A100) or 1.0) for one in found.values()
    ]  # the two types are equally fast in truth
    assert 0.5 < float(np.std(z)) < 1.6


def test_a_clock_that_was_set_leaves_a_doubt_that_runs_do_not_lessen() -> None:
    def slowed(by: float) -> float:
        runs = [
            make_run("a", gpu_type, slowed=by if gpu_type == A40 else 0.0, ended_at_seconds=day * DAY)
            for gpu_type in (A100, A40)
            for day in range(20)
        ]
        return estimates(runs)["a"].doubt(A40, A100) or 0.0

    assert slowed(0.3) > slowed(0.0) + 0.03


def test_names_that_have_only_failed_are_told_with_where() -> None:
    failures = [FailedRuns(user=1000, name=name, gpu_type=A40, runs=runs) for name, runs in (("bad", 2), ("once", 1))]
    runs = [make_run("good", A100), make_run("good", A100)]
    good = FailedRuns(user=1000, name="good", gpu_type=A100, runs=9)
    found = dict(work_estimates(group_runs(runs, [*failures, good])))
    assert {name.name: set(one.failed_types) for name, one in found.items()} == {"bad": {A40}, "good": set()}
    alone = dict(work_estimates(group_runs([], failures)))
    assert [(name.name, set(one.failed_types), one.gpu_types) for name, one in alone.items()] == [("bad", {A40}, ())]


def test_where_all_runs_were_on_one_type_their_number_is_told_and_nothing_can_be_compared() -> None:
    found = estimates([make_run("a"), make_run("a"), make_run("once")])
    assert {name: (one.runs_by_type, one.doubt(A40, A100)) for name, one in found.items()} == {"a": ({A100: 2}, None)}
    assert estimates([]) == {}


def test_the_same_runs_give_the_same_estimates() -> None:
    random = np.random.default_rng(3)
    runs = crowd(random)
    one, other = estimates(runs), estimates(runs[::-1])
    assert one == other


def test_names_beyond_those_that_are_fitted_have_estimates_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_energy.estimation.work_model._MAX_FITTED", 10)
    monkeypatch.setattr("slurm_energy.estimation.work_model._AT_ONCE", 7)
    random = np.random.default_rng(4)
    assert len(estimates(crowd(random))) == 40


@pytest.mark.slow
def test_one_user_cannot_make_the_picture_of_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    mine = list(runs_of("mine", HEAVY, {A100: 10}, random))
    honest = estimates([*crowd(random), *mine])["mine"].time_ratio(H100, A100)
    flood = [
        make_run(f"flood-{number}", gpu_type, watts=380.0, user=666, ended_at_seconds=float(index))
        for number in range(1_000)
        for gpu_type in (A100, H100)
        for index in range(10)
    ]
    monkeypatch.setattr("slurm_energy.estimation.work_model._MAX_NAMES_OF_A_USER", 10)
    assert estimates([*crowd(random), *mine, *flood])["mine"].time_ratio(H100, A100) == pytest.approx(honest, rel=0.5)
    monkeypatch.setattr("slurm_energy.estimation.work_model._MAX_NAMES_OF_A_USER", 10_000)
    assert estimates([*crowd(random), *mine, *flood])["mine"].time_ratio(H100, A100) > 1.5 * honest


def test_the_fitted_covariance_is_that_of_the_names_where_there_are_many() -> None:
    random = np.random.default_rng(6)
    runs: list[MeasuredRun] = []
    for number in range(400):
        size, gain = random.normal(6.0, 1.0), random.normal(-0.5, 0.3)
        for gpu_type, shift in ((A100, 0.0), (H100, gain)):
            seconds = float(np.exp(size + shift))
            runs += [make_run(f"n{number}", gpu_type, seconds=seconds, ended_at_seconds=float(i)) for i in range(10)]
    model = fit_work_model(group_runs(runs))
    gain_variance = model.covariance[0, 0] + model.covariance[1, 1] - 2.0 * model.covariance[0, 1]
    assert gain_variance == pytest.approx(0.09, rel=0.25)
    assert model.mean[1] - model.mean[0] == pytest.approx(-0.5, abs=0.05)


def test_a_type_on_which_only_long_jobs_were_seen_is_not_taken_to_be_slow() -> None:
    random = np.random.default_rng(9)
    runs: list[MeasuredRun] = []
    for number in range(120):
        is_long = number % 2 == 0
        size = float(np.exp((9.0 if is_long else 5.0) + random.normal(0.0, 0.3)))
        for gpu_type, share in ((A100, 1.0), (H100, 0.6)) if is_long else ((A100, 1.0),):
            runs += [make_run(f"n{number}", gpu_type, seconds=size * share, ended_at_seconds=d * DAY) for d in range(5)]
    model = fit_work_model(group_runs(runs))
    assert model.mean[1] - model.mean[0] == pytest.approx(np.log(0.6), abs=0.15)


def test_the_prior_is_a_covariance() -> None:
    for types in (1, 2, 7):
        assert np.linalg.eigvalsh(prior_covariance(types)).min() > 0.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from((A100, A40, H100)),
            st.integers(1, 3),
            st.floats(1e-9, 1e9),
            st.floats(1e-3, 1e4),
        ),
        max_size=40,
    )
)
def test_any_runs_give_finite_estimates(rows: list[tuple[str, str, int, float, float]]) -> None:
    runs = [
        make_run(name, gpu_type, gpus=gpus, seconds=seconds, watts=watts)  # type: ignore[arg-type]  # names of types are text
        for name, gpu_type, gpus, seconds, watts in rows
    ]
    for estimate in estimates(runs).values():
        for one in estimate.gpu_types:
            for other in estimate.gpu_types:
                assert 0.0 < estimate.time_ratio(one, other) < float("inf")
                assert 0.0 < estimate.watts_ratio(one, other) < float("inf")
