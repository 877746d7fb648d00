"""The fits of research find what made the data, and never see what they are judged by."""

import json
from pathlib import Path

import pytest
from measured_data import MEASURED

np = pytest.importorskip("numpy", reason="numpy is not installed: the twin extra has it")
pytest.importorskip("scipy", reason="scipy is not installed: the twin extra has it")
from research.calibration.__main__ import FOLDER, PARTS, main  # noqa: E402
from research.calibration.activity import (  # noqa: E402
    LEAVE_OUT_BOUND,
    Activity,
    Sample,
    basis_of,
    fit_watts,
    leave_one_application_out,
    read_samples,
    terms,
)
from research.calibration.power_limit import Program, fit_program, read_programs  # noqa: E402
from research.calibration.scaling import RateCurve, fit_curve, fit_sync  # noqa: E402
from research.calibration.sharing import EffectModel, Pair, leave_out, observations, read_pairs  # noqa: E402
from slurm_energy.energy_model.calibration.files import differences, silent, text_of  # noqa: E402
from slurm_energy.energy_model.calibration.parts import TOLERANCE, Part, packaged  # noqa: E402
from slurm_energy.energy_model.coefficients import errors_of  # noqa: E402
from slurm_energy.errors import DataFileError, ValueRangeError  # noqa: E402

EXPONENTS = ((1.0, 0.5), (2.0, 1.0))


def made_samples() -> list[Sample]:
    """Five applications at eight clocks: P = 20 + (30 + 80 sqrt(arithmetic)) f + 60 sqrt(dram) W, engine busy."""
    parts = {"a": (0.9, 0.1), "b": (0.1, 0.8), "c": (0.4, 0.4), "d": (0.2, 0.0), "e": (0.0, 0.6)}
    return [
        Sample(
            application=name,
            sm_clock_mhz=mhz,
            watts=20.0 + (30.0 + 80.0 * arithmetic**0.5) * mhz / 1000 + 60.0 * dram**0.5,
            activity=Activity(engine=1.0, dram=dram, arithmetic=arithmetic),
        )
        for name, (dram, arithmetic) in parts.items()
        for mhz in range(300, 1001, 100)
    ]


def left_out_errors(samples: list[Sample]) -> dict[str, float]:
    bases = [basis_of(samples, exponents, 1000.0) for exponents in EXPONENTS]
    names = np.array([sample.application for sample in samples])
    return leave_one_application_out(bases, names, np.array([sample.watts for sample in samples]), silent)


def test_power_of_an_application_never_seen_is_found_where_the_model_holds() -> None:
    assert max(left_out_errors(made_samples()).values()) < 0.01


def test_left_out_application_has_no_part_in_its_own_prediction() -> None:
    """Doubling its measured power halves prediction over measurement, exactly: nothing else may move."""
    samples = made_samples()
    doubled = [
        Sample(one.application, one.sm_clock_mhz, one.watts * (2.0 if one.application == "c" else 1.0), one.activity)
        for one in samples
    ]
    inside = [one for one in samples if one.application != "c"]
    outside = [one for one in samples if one.application == "c"]
    errors = left_out_errors(doubled)
    basis = basis_of(inside, EXPONENTS[0], 1000.0)
    found = fit_watts(basis.matrix, np.array([one.watts for one in inside]))
    predicted = basis_of(outside, EXPONENTS[0], 1000.0).matrix @ found
    expected = np.mean(np.abs(predicted / np.array([2.0 * one.watts for one in outside]) - 1.0))
    assert errors["c"] == pytest.approx(expected, rel=1e-9)
    assert errors["c"] == pytest.approx(0.5, abs=0.01)


def test_counter_that_was_not_updated_counts_as_nothing(tmp_path: Path) -> None:
    columns = (
        "application,sm_clock_mhz,avg_power_w,gr_engine_active,dram_active,fp64_active,fp32_active,gpu_utilization"
    )
    rows = [f"x,{500 + mhz},100,0.9,0.2,0.108,{0.3 + mhz / 1000},80" for mhz in range(10)]
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join([columns, *rows]))
    samples = read_samples(path)
    assert [sample.activity.arithmetic for sample in samples] == pytest.approx([0.3 + mhz / 1000 for mhz in range(10)])
    assert {sample.activity.engine for sample in samples} == {0.8}


def test_scaling_law_is_found_again() -> None:
    rates = {n: 5.0 * n / (1.0 + 0.08 * (n - 1) ** 1.3) for n in (1, 2, 4, 8, 16)}
    found = fit_curve(RateCurve("a100", "made", 64, "packed", rates))
    assert (found["loss"], found["exponent"]) == pytest.approx((0.08, 1.3), rel=1e-3)
    assert found["fit_error"] < 1e-4


def test_two_gpus_of_three_times_the_speed_are_no_loss() -> None:
    found = fit_curve(RateCurve("v100", "made", 64, "packed", {1: 1.0, 2: 3.0}))
    assert found["loss"] == 0.0
    assert found["efficiency_by_count"] == {1: 1.0, 2: 1.5}


def test_agreement_time_is_found_again(tmp_path: Path) -> None:
    lines = ["application,placement,local_batch_size,step_time_s,sync_time_s", "made,1,8,1.0,0.0"]
    for placement in ("2", "3", "4", "11", "12", "22", "24", "44"):
        gpus = sum(int(digit) for digit in placement)
        sync = 0.01 + 0.002 * (gpus - 2) if len(placement) == 1 else 0.1 + 0.01 * (gpus - 2)
        lines.append(f"made,{placement},8,{1.0 + sync},{sync}")
    path = tmp_path / "placements.csv"
    path.write_text("\n".join(lines))
    found = fit_sync(path)["made"]
    assert (found["inside_base_seconds"], found["inside_seconds_per_gpu"]) == pytest.approx((0.01, 0.002), rel=1e-6)
    assert (found["across_base_seconds"], found["across_seconds_per_gpu"]) == pytest.approx((0.1, 0.01), rel=1e-6)
    assert found["inter_node_factor"] == pytest.approx(0.12 / 0.014)
    assert found["effective_gigabytes_per_step"] == pytest.approx(0.625)


def made_pairs() -> list[Pair]:
    """Speeds on two GPUs that are products of what each job type is and does to others; P100 lacks job D."""
    own = {"A (1)": 0.9, "A (2)": 0.8, "B (1)": 0.7, "C (1)": 0.95, "D (1)": 0.6}
    mild = {"A (1)": 0.7, "A (2)": 0.6, "B (1)": 0.8, "C (1)": 0.9, "D (1)": 0.5}
    jobs = sorted(own)
    return [
        Pair(gpu, job, partner, scale * own[job] * mild[partner], scale * own[partner] * mild[job], True)
        for gpu, scale in (("k80", 0.9), ("p100", 1.0))
        for index, job in enumerate(jobs)
        for partner in jobs[index:]
        if gpu == "k80" or "D (1)" not in (job, partner)
    ]


def test_left_out_pair_is_predicted_from_what_its_members_do_elsewhere() -> None:
    pairs = made_pairs()
    model = EffectModel(["k80", "p100"], sorted({pair.job for pair in pairs}))
    seen = observations(model, pairs)
    absolute, relative = leave_out(model, seen, [seen.pair == pair for pair in np.unique(seen.pair)], silent)
    assert len(seen.speed) == 5 * 5 + 4 * 4
    assert float(relative.mean()) < 0.06
    assert float(absolute.max()) < 0.2


def test_left_out_pair_has_no_part_in_its_own_prediction() -> None:
    pairs = made_pairs()
    model = EffectModel(["k80", "p100"], sorted({pair.job for pair in pairs}))
    wrong = [
        Pair(p.gpu, p.job, p.partner, p.speed / 4.0, p.partner_speed / 4.0, True) if p.key == ("A (1)", "B (1)") else p
        for p in pairs
    ]
    errors = []
    for some in (pairs, wrong):
        seen = observations(model, some)
        group = seen.pair == 2  # A (1) beside B (1), on both GPUs
        assert int(group.sum()) == 4
        errors.append(leave_out(model, seen, [group, ~group], silent)[1][group])
    # A quarter of the measured speed makes estimate over measurement four times as large, exactly: nothing else moved.
    over, under = 4.0 * (1.0 + errors[0]) - 1.0, 4.0 * (1.0 - errors[0]) - 1.0
    assert np.minimum(np.abs(over - errors[1]), np.abs(under - errors[1])).max() < 1e-9


def test_power_limit_curve_is_found_again() -> None:
    limit = np.array([100.0, 125, 150, 175, 200, 225, 250])
    clock = np.clip((limit - 80.0) / (220.0 - 80.0), 0.0, 1.0) ** (1.0 / 3.0)
    program = Program("v100", "made", "net", 8, "adam", limit, 30.0 + 70.0 / clock, 60.0 + 120.0 * clock**3)
    found = fit_program(program, 60, 90)
    time_errors, power_errors = found.errors(program)
    assert (float(time_errors.mean()), float(power_errors.mean())) == pytest.approx((0.0, 0.0), abs=0.01)
    assert found.static_watts == pytest.approx(80.0, abs=6.0)


def test_program_that_no_limit_holds_back_is_flat() -> None:
    limit = np.array([100.0, 150, 200, 250])
    found = fit_program(Program("v100", "made", "net", 8, "adam", limit, 0 * limit + 5.0, 0 * limit + 40.0), 20, 20)
    time_errors, power_errors = found.errors(
        Program("v100", "made", "net", 8, "adam", limit, 0 * limit + 5.0, 0 * limit + 40.0)
    )
    assert max(time_errors.max(), power_errors.max()) < 1e-9


@pytest.mark.parametrize(
    ("read", "columns", "row", "message"),
    [
        (
            read_pairs,
            "gpu,job_a,job_b,feasible,a_relative_speed,b_relative_speed",
            "k80,a,b,1,0,0.5",
            "a_relative_speed",
        ),
        (
            read_programs,
            "gpu,dataset,network,batch_size,optimizer,power_limit_w,time_per_epoch_s,average_power_w",
            "a40,d,n,8,o,100,-1,90",
            "time_per_epoch_s: '-1'",
        ),
        (fit_sync, "application,placement,local_batch_size,step_time_s,sync_time_s", "a,4a,8,1,0.1", "placement: '4a'"),
        (
            fit_sync,
            "application,placement,local_batch_size,step_time_s,sync_time_s",
            "a,44,8,1,1.5",
            "sync_time_s: '1.5'",
        ),
    ],
)
def test_bad_row_is_named(tmp_path: Path, read: object, columns: str, row: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(f"{columns}\n{row}\n")
    with pytest.raises(DataFileError, match=f"bad.csv, line 2, column {message}"):
        read(path)  # type: ignore[operator]  # one of several readers of one file


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_kept_coefficients_equal_a_fresh_fit(part: Part) -> None:
    fresh = json.loads(text_of(part.fit(MEASURED, silent)))
    assert list(differences(packaged(part), fresh, TOLERANCE)) == []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_names_its_source_and_its_errors(part: Part) -> None:
    document = packaged(part)
    assert len(document["source"]) > 30
    errors = errors_of(document)
    assert errors
    for error in errors:
        assert 0.0 <= error.mean_relative_error < 0.3
        assert error.num_points >= 15
        assert error.bound is None or error.mean_relative_error <= error.bound


def test_power_of_a_v100_application_never_seen_is_within_fifteen_percent() -> None:
    """The stated error is true: the test above fits it again wherever the data are."""
    errors = errors_of(json.loads((FOLDER / "activity.json").read_text()))
    stated = [error for error in errors if error.method == "leave-application-out"]
    assert [error.bound for error in stated] == [LEAVE_OUT_BOUND] == [0.15]
    assert stated[0].mean_relative_error <= 0.15
    assert stated[0].num_points == 24 * 117


def test_no_part_of_a_gpu_is_more_active_than_its_engine() -> None:
    contradictory = Activity(engine=0.1, dram=0.9, arithmetic=0.8)
    assert terms(contradictory, 0.7, 2.0, 0.5) == terms(Activity(engine=0.1, dram=0.1, arithmetic=0.1), 0.7, 2.0, 0.5)
    with pytest.raises(ValueRangeError, match=r"dram=1\.5 is not a share"):
        Activity(engine=1.0, dram=1.5, arithmetic=0.0)


def test_unknown_part_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--part", "curves"]) == 1
    assert "part 'curves' does not exist; parts: activity, power_limit" in capsys.readouterr().err
