"""What a site's rows become for the gate."""

from pathlib import Path
from typing import Any

import pytest
from gate_samples import make_candidate

from slurm_energy.config import Config, FacilityConfig
from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import ClusterName, GpuTypeName, JobId
from slurm_energy.evaluation.gate.evidence import history_of_site
from slurm_energy.evaluation.site_evidence import SiteEvidence
from slurm_energy.policy.candidate import write_candidate
from slurm_energy.store.site_history import ClockedRun

DAY = 86_400.0


def make_evidence(**changes: Any) -> SiteEvidence:
    values: dict[str, Any] = {
        "cluster": ClusterName("lab"),
        "states": (),
        "runs": (),
        "split_seconds": 0.0,
        "now_seconds": 40.0 * DAY,
        "world": None,
        "learned_from": None,
        "held_out": None,
    }
    return SiteEvidence(**(values | changes))


def make_run(clock: int = 1410, **changes: Any) -> ClockedRun:
    values: dict[str, Any] = {
        "user_id": 1000,
        "name": "train",
        "script_key": None,
        "gpu_type": GpuTypeName("a100-sxm4-80gb"),
        "gpus": 1,
        "sm_clock_mhz": clock,
        "default_clock_mhz": 1410,
        "seconds": 1000.0,
        "joules": 3e5,
        "device_seconds": 1000.0,
        "ended_at_seconds": 30.0 * DAY,
        "probability": 1.0,
    }
    return ClockedRun(**(values | changes))


def make_state(start_days: float, end_days: float, gpus: int = 1) -> JobState:
    return JobState(
        job_id=JobId(1),
        user_name="ann",
        user_id=1000,
        name="train",
        state="COMPLETED",
        partitions=(),
        submitted_at_seconds=start_days * DAY,
        started_at_seconds=start_days * DAY,
        ended_at_seconds=end_days * DAY,
        gpu_count=gpus,
    )


def test_clock_that_both_policies_of_a_canary_chose_was_certain() -> None:
    runs = [make_run(probability=0.8)] * 4 + [make_run(probability=0.2, decided_by="c0")]
    log = history_of_site(make_evidence(runs=tuple(runs)), make_candidate("slurm-default"), Config()).log
    assert [row.probability for row in log] == [1.0] * 5
    runs[-1] = make_run(1110, probability=0.2, decided_by="c0")
    log = history_of_site(make_evidence(runs=tuple(runs)), make_candidate("slurm-default"), Config()).log
    assert [row.probability for row in log] == [0.8] * 4 + [0.2]


def test_load_is_split_over_days_and_the_last_incomplete_day_is_left_out() -> None:
    states = (make_state(9.5, 10.25), make_state(10.75, 12.5, gpus=2), make_state(12.9, 13.4))
    load = history_of_site(make_evidence(states=states, runs=(make_run(),)), make_candidate(), Config()).load
    assert load is not None
    assert load.gpu_hours == pytest.approx((6.0 + 12.0, 48.0, 24.0 + 2.4))


def test_prices_and_intensities_of_the_facility_reach_the_impact(tmp_path: Path) -> None:
    (tmp_path / "co2.csv").write_text("starts_at,grams_per_kwh,source\n1970-01-01T00:00:00Z,380,test\n")
    (tmp_path / "price.csv").write_text("starts_at,EUR_per_kwh,source\n1970-01-01T00:00:00Z,0.25,test\n")
    config = Config(
        facility=FacilityConfig(intensity_file=str(tmp_path / "co2.csv"), tariff_file=str(tmp_path / "price.csv"))
    )
    evidence = make_evidence(states=(make_state(1.0, 39.0),), runs=(make_run(),))
    load = history_of_site(evidence, make_candidate(), config).load
    assert load is not None
    assert (load.price_per_kwh, load.carbon_grams_per_kwh) == (0.25, 380.0)


def test_newest_of_the_earlier_candidates_are_compared(tmp_path: Path) -> None:
    folders = []
    for number in range(25, 0, -1):
        made = write_candidate(make_candidate(candidate_id=f"night-{number}"), tmp_path / str(number))
        assert made.folder is not None
        folders.append(made.folder)
    archived = history_of_site(make_evidence(archive=tuple(folders)), make_candidate(), Config()).archived
    assert [one.candidate_id for one in archived] == [f"night-{number}" for number in range(25, 5, -1)]
