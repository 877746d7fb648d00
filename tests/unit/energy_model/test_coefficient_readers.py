"""The coefficients that ship: what their readers answer, and what they refuse."""

import math
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model import coefficients as store
from slurm_energy.energy_model.activity_power import Activity, activity_power, terms
from slurm_energy.energy_model.coefficients import coefficients, fit_errors, source_of
from slurm_energy.energy_model.host import host_share, node_constants, power_spreads
from slurm_energy.energy_model.mig import layouts, memory_mib, slice_curve, slice_curves, slice_watts, utilisation_power
from slurm_energy.energy_model.power_limit import power_limit_curves, power_limit_curves_of
from slurm_energy.energy_model.saturation import Rise, processors, saturation
from slurm_energy.energy_model.scaling import scaling_curve, scaling_curves, sync_costs, typical_efficiency
from slurm_energy.energy_model.sharing import pair_models, slice_model
from slurm_energy.errors import ConfigError, ValueRangeError

PARTS = ("curves", "activity", "power_limit", "saturation", "scaling", "sharing", "mig", "host")
V100 = GpuTypeName("v100-pcie-16gb")
share = st.floats(0.0, 1.0)
clock = st.floats(510.0, 1380.0)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_names_its_source_and_its_errors(part: str) -> None:
    assert len(source_of(part)) > 30
    errors = fit_errors(part)
    assert errors
    for error in errors:
        assert 0.0 <= error.mean_relative_error < 0.3
        assert error.num_points >= 15
        assert error.bound is None or error.mean_relative_error <= error.bound


def test_bounds_that_were_set_are_the_three_that_must_hold() -> None:
    bounds = [(error.bound, error.method) for part in PARTS for error in fit_errors(part) if error.bound is not None]
    assert bounds == [(0.04, "fit"), (0.03, "fit"), (0.04, "fit"), (0.03, "fit"), (0.15, "leave-application-out")]


def test_missing_and_foreign_files_are_refused_by_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=r"nothing\.json cannot be read"):
        coefficients("nothing")
    (tmp_path / "strange.json").write_text('{"format": 2}')
    with pytest.raises(ConfigError, match="format 2, this version reads 1"):
        coefficients("strange")


@given(engine=share, dram=share, arithmetic=share, clocks=st.tuples(clock, clock))
def test_predicted_power_never_rises_when_the_clock_falls(
    engine: float, dram: float, arithmetic: float, clocks: tuple[float, float]
) -> None:
    model = activity_power(V100)
    assert model is not None
    activity = Activity(engine=engine, dram=dram, arithmetic=arithmetic)
    low, high = (model.watts(activity, mhz) for mhz in sorted(clocks))
    assert 0.0 < low <= high < 300.0


def test_no_part_of_a_gpu_is_more_active_than_its_engine() -> None:
    contradictory = Activity(engine=0.1, dram=0.9, arithmetic=0.8)
    assert terms(contradictory, 0.7, 2.0, 0.5) == terms(Activity(engine=0.1, dram=0.1, arithmetic=0.1), 0.7, 2.0, 0.5)


def test_power_of_an_unmeasured_gpu_or_clock_is_not_guessed() -> None:
    assert activity_power(GpuTypeName("h100-sxm5-80gb")) is None
    model = activity_power(V100)
    assert model is not None
    with pytest.raises(ValueRangeError, match=r"1530 MHz is outside what was measured: 510"):
        model.watts(Activity(engine=1.0, dram=0.0, arithmetic=0.0), 1530)
    with pytest.raises(ValueRangeError, match=r"dram=1\.5 is not a share"):
        Activity(engine=1.0, dram=1.5, arithmetic=0.0)


def test_measured_scaling_comes_before_the_law_and_the_law_goes_on_beyond_it() -> None:
    curve = scaling_curve("a100", "resnet50", 256)
    assert curve is not None
    assert curve.efficiency(8) == pytest.approx(0.7038, abs=1e-4)
    assert curve.efficiency(6) == curve.law(6)
    assert curve.law(128) < curve.law(64) < curve.law(1) == 1.0
    with pytest.raises(ValueRangeError, match="0 GPUs are below the 1"):
        curve.law(0)


@pytest.mark.parametrize("curve", scaling_curves(), ids=lambda one: f"{one.gpu}-{one.model}-{one.batch_size}")
def test_efficiency_by_the_law_never_rises_with_more_gpus(curve: Any) -> None:
    smallest = min(curve.efficiency_by_count)
    values = [curve.law(smallest * count) for count in (1, 2, 3, 4, 8, 16, 64)]
    assert values[0] == 1.0
    assert all(0.0 < after <= before for before, after in pairwise(values))


def test_spreading_a_job_over_nodes_never_helps_the_typical_program() -> None:
    for gpu in ("p100", "v100"):
        assert typical_efficiency(gpu, 4, "spread") < typical_efficiency(gpu, 4, "packed")
    assert scaling_curve("a100", "nothing", 1) is None
    with pytest.raises(ValueRangeError, match="no scaling was measured on h100 packed; measured: a100 unstated"):
        typical_efficiency("h100", 4, "packed")


@pytest.mark.parametrize("application", ["bert", "cifar10", "imagenet", "ncf"])
def test_agreement_across_nodes_costs_several_times_that_inside_one(application: str) -> None:
    cost = sync_costs()[application]
    assert cost.seconds(1, 1) == 0.0
    assert cost.seconds(2, 1) < cost.seconds(4, 1) < cost.seconds(4, 2) < cost.seconds(16, 4)
    assert 4.0 < cost.inter_node_factor < 25.0
    with pytest.raises(ValueRangeError, match="2 GPUs cannot lie on 3 nodes"):
        cost.seconds(2, 3)


def test_measured_pair_is_answered_in_either_order_and_marked() -> None:
    model = pair_models()["k80"]
    found = model.estimate("A3C", "CycleGAN")
    assert found is not None
    assert (found.speed, found.partner_speed, found.source) == (0.4262, 0.5803, "measured")
    turned = model.estimate("CycleGAN", "A3C")
    assert turned is not None
    assert (turned.speed, turned.partner_speed) == (0.5803, 0.4262)


def test_pair_that_did_not_fit_into_memory_has_no_speed() -> None:
    assert pair_models()["k80"].estimate("ResNet-50 (batch size 128)", "A3C") is None
    assert pair_models()["k80"].estimate("A3C", "nothing known") is None


def test_pair_and_job_type_that_are_absent_on_a_gpu_are_modelled() -> None:
    model = pair_models()["v100"]
    jobs = sorted({job for pair in model.measured for job in pair})
    absent = sorted(set(model.own) - set(jobs))
    assert absent
    found = model.estimate(absent[0], jobs[0])
    assert found is not None
    assert found.source == "model"
    assert 0.0 < found.speed <= 1.0
    assert 0.0 < found.partner_speed <= 1.0


@pytest.mark.parametrize("gpu", ["k80", "p100", "v100"])
def test_every_modelled_speed_is_a_share(gpu: str) -> None:
    model = pair_models()[gpu]
    assert all(0.0 < model.modelled(job, partner) <= 1.0 for job in model.own for partner in model.own)


def test_programs_that_leave_the_gpu_idle_share_it_for_nothing() -> None:
    model = slice_model()
    assert model.speed(0.3, 0.5) == 1.0
    assert 0.4 < model.speed(0.9, 0.9) < model.speed(0.9, 0.5) < 1.0
    assert model.watts(100.0, (1.0, 1.0), (100.0, 100.0)) == 100.0
    with pytest.raises(ValueRangeError, match=r"utilisation 90 is not a share"):
        model.speed(90, 0.5)


@given(slices=st.tuples(st.integers(1, 7), st.integers(1, 7)))
def test_bigger_slice_is_never_slower_by_the_law(slices: tuple[int, int]) -> None:
    for curve in slice_curves():
        assert curve.law(min(slices)) <= curve.law(max(slices))


def test_slices_that_fill_a_gpu_stand_for_all_its_power() -> None:
    assert slice_watts(7, 1.0, 240.0, 40.0) == 240.0
    assert slice_watts(1, 0.0, 240.0, 40.0) == pytest.approx(40.0 / 7)
    assert slice_watts(3, 0.5, 240.0, 40.0) + slice_watts(4, 0.5, 240.0, 40.0) == pytest.approx(240.0)
    with pytest.raises(ValueRangeError, match=r"idle power 300\.0 W is not between 0 and the 240\.0 W"):
        slice_watts(1, 0.5, 240.0, 300.0)


def test_measured_slice_speed_comes_before_the_law() -> None:
    curve = slice_curve("resnet", 512)
    assert curve is not None
    assert (curve.speed(1), curve.speed(7), curve.speed(5)) == (0.2236, 1.0, curve.law(5))
    with pytest.raises(ValueRangeError, match="8 compute slices are not between 1 and 7"):
        curve.speed(8)
    assert slice_curve("resnet", 3) is None
    assert (7,) in layouts()
    assert all(sum(layout) <= 7 for layout in layouts())
    assert memory_mib("gnn", 64) == 2224.0
    assert memory_mib("gnn", 63) is None


def test_utilisation_power_lies_between_idle_and_the_boards_limit() -> None:
    model = utilisation_power()
    assert model.watts(0.0, 0.0) == pytest.approx(36.12)
    assert 200.0 < model.watts(0.95, 0.8) < 270.0
    with pytest.raises(ValueRangeError, match=r"utilisation 1\.2"):
        model.watts(1.2, 0.0)


def test_idle_server_draws_more_than_a_kilowatt_beside_its_gpus() -> None:
    share_of_host = host_share()
    assert 1000.0 < share_of_host.host_watts(8 * 60.0) < 1300.0
    assert power_spreads()["gpu-server"].idle_watts > 1400.0
    assert power_spreads()["kalos-gpu"].idle_watts == pytest.approx(61.9)
    with pytest.raises(ValueRangeError, match="GPU power nan W"):
        share_of_host.server_watts(math.nan)


def test_every_kind_of_power_spread_is_in_order() -> None:
    for spread in power_spreads().values():
        assert 0.0 < spread.idle_watts <= spread.median_watts <= spread.high_watts <= spread.peak_watts


def test_node_of_another_system_is_the_sum_of_its_parts() -> None:
    node = node_constants()["selene"]
    assert node.idle_watts == pytest.approx(8 * 88 + 2 * 90 + 74.26 + 20 + 30)
    assert node.max_watts == pytest.approx(8 * 400 + 2 * 280 + 74.26 + 20 + 30)


@given(limits=st.tuples(st.floats(100.0, 250.0), st.floats(100.0, 250.0)))
def test_lower_power_limit_is_never_faster_and_never_draws_more(limits: tuple[float, float]) -> None:
    low, high = sorted(limits)
    for curve in power_limit_curves_of("v100"):
        assert curve.relative_speed(low) <= curve.relative_speed(high) <= 1.0
        assert curve.watts(low) <= curve.watts(high)


def test_power_limit_outside_the_measured_ones_is_not_answered() -> None:
    curve = power_limit_curves_of("v100", "bert_base_uncased")[0]
    assert curve.relative_speed(curve.high_limit_watts) == 1.0
    with pytest.raises(ValueRangeError, match="power limit 300 W is outside what was measured of bert_base_uncased"):
        curve.relative_speed(300)
    assert power_limit_curves_of("h100") == ()
    assert len(power_limit_curves()) == 217


@given(sizes=st.tuples(st.floats(16.0, 20_000.0), st.floats(16.0, 20_000.0)))
def test_larger_product_is_never_less_efficient_and_never_draws_less(sizes: tuple[float, float]) -> None:
    small, large = sorted(sizes)
    for processor in processors().values():
        for shape in (saturation("fp32"), saturation("bf16")):
            assert processor.efficiency(shape, small) <= processor.efficiency(shape, large) < 1.0
            assert processor.watts(shape, small) <= processor.watts(shape, large)
            assert processor.watts(shape, large) <= 1.02 * processor.limit_watts


def test_product_takes_two_n_cubed_operations_at_the_reached_rate() -> None:
    k40c, shape = processors()["k40c"], saturation("fp32")
    rate = 2.0 * 1800**3 / k40c.seconds(shape, 1800) / 1e9
    assert rate == pytest.approx(k40c.peak_gflops * k40c.efficiency(shape, 1800))
    with pytest.raises(ValueRangeError, match="matrix size 0 is not a number above 0"):
        k40c.seconds(shape, 0)


def test_half_of_the_span_is_reached_at_the_half_size() -> None:
    rise = Rise(base=0.2, span=0.6, half_size=500.0, exponent=3.0)
    assert rise.at(500.0) == pytest.approx(0.5)
    assert rise.at(250.0, half_scale=0.5) == pytest.approx(0.5)


def test_readers_need_neither_numpy_nor_scipy() -> None:
    modules = ("activity_power", "host", "mig", "power_limit", "saturation", "scaling", "sharing", "coefficients")
    probe = "import sys\n" + "".join(f"import slurm_energy.energy_model.{name}\n" for name in modules)
    probe += "sys.exit(','.join(sorted({'numpy', 'scipy', 'click', 'rich'} & set(sys.modules))) or 0)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
