"""The tables beside the shipped worlds are what the data sets give."""

import csv
import json
from pathlib import Path
from statistics import fmean

import pytest
from measured_data import MEASURED

from research.worlds.__main__ import TABLES, compact_json, main
from research.worlds.gavel import pair_watts, zeus_sweep
from research.worlds.matrix import fit_saturation
from slurm_energy.twin.world.file import shipped_world


def rows(*path: str) -> list[dict[str, str]]:
    """Rows of a data set."""
    with MEASURED.joinpath(*path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_packaged_tables_are_what_the_data_give() -> None:
    assert main([str(MEASURED), "--check"]) == 0


def test_a_changed_table_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(MEASURED), "--output", str(tmp_path)]) == 0
    (tmp_path / "tum128.json").write_text("{}", encoding="utf-8")

    assert main([str(MEASURED), "--output", str(tmp_path), "--check"]) == 1
    assert "tum128.json" in capsys.readouterr().err


def test_missing_data_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--output", str(tmp_path)]) == 2
    assert next(iter(TABLES)) in capsys.readouterr().err


@pytest.mark.parametrize(("gpu", "device"), [("P100", "p100"), ("V100", "v100")])
def test_the_clocks_of_gavels_devices_are_the_mean_speeds_at_the_power_limits(gpu: str, device: str) -> None:
    sweep = zeus_sweep(row for row in rows("zeus_power_limit", "power_limit_sweep.csv") if row["gpu"] == gpu)

    limits = sorted(next(iter(sweep.values())))
    speeds = [fmean(points[limit][0] for points in sweep.values()) for limit in limits]
    clocks = shipped_world("gavel-shared").devices[device].relative_clocks

    assert clocks == pytest.approx(speeds, rel=1e-3)


def test_gavels_rates_are_the_measured_ones() -> None:
    devices = shipped_world("gavel-shared").devices
    checked = 0
    for row in rows("gavel_throughputs", "isolated.csv"):
        count, rate = int(row["scale_factor"]), float(row["steps_per_s"])
        load = devices[row["gpu"]].loads.get(row["job_type"])
        if load is None or row["consolidated"] == "0" or not rate > 0.0:
            continue
        seconds = load.scaling.seconds(load.seconds_per_unit[-1], count)
        if load.scaling.efficiency(count) < 1.5:
            assert seconds == pytest.approx(1.0 / rate, rel=1e-4), row
            checked += 1
    assert checked > 190


def test_the_power_of_a_shared_gpu_is_near_what_was_measured_on_an_h100() -> None:
    solo = {row["workload"]: row for row in rows("h100-measured", "training_solo.csv")}
    errors = []
    for row in rows("h100-measured", "training_pairs.csv"):
        names = (row["workload_a"], row["workload_b"])
        alone = tuple(float(solo[name]["mean_power_watts"]) for name in names)
        rates = (float(row["iterations_per_second_a"]), float(row["iterations_per_second_b"]))
        speeds = tuple(
            rate / float(solo[name]["iterations_per_second"]) for rate, name in zip(rates, names, strict=True)
        )
        watts = pair_watts(117.0, (alone[0], alone[1]), (speeds[0], speeds[1]), 700.0)
        errors.append(abs(watts / float(row["mean_power_watts"]) - 1.0))

    assert sum(errors) / len(errors) < 0.045
    assert max(errors) < 0.12


def test_the_saturation_fit_is_near_the_measured_products() -> None:
    saturation = fit_saturation(MEASURED / "h100-measured" / "gemm_saturation.csv")

    assert saturation.rate_error < 0.08
    assert saturation.activity_error < 0.06
    assert saturation.share(10_000, saturation.half_size) > 0.99


def test_a_shared_gpu_never_draws_more_than_its_limit_or_less_than_its_context() -> None:
    assert pair_watts(30.0, (240.0, 200.0), (1.0, 1.0), 250.0) == 250.0
    assert pair_watts(30.0, (20.0, 10.0), (1.0, 1.0), 250.0) == 30.0
    assert pair_watts(30.0, (130.0, 230.0), (0.5, 0.25), 250.0) == 130.0


def test_compact_json_is_the_same_document() -> None:
    document = {
        "source": "made",
        "devices": {"a": {"kinds": {"k": {"watts": [1.5]}}, "pairs": [{"kinds": ["k", "k"]}]}, "b": {"kinds": {}}},
    }

    assert json.loads(compact_json(document)) == document
