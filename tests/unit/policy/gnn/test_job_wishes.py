"""What a network that chooses among options is told of a job: what time and energy are worth to it, its limits."""

import pytest
from served_cluster import site, submitted
from served_network import job_columns, policy_of

from slurm_energy.config import PolicyConfig
from slurm_energy.domain.job import EnergyMode
from slurm_energy.graph import schema
from slurm_energy.policy.prices import MODE_WEIGHTS, site_weights


def test_the_mode_of_a_job_changes_what_the_network_is_told_it_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, config = policy_of(), site(max_slowdown=0.3, saver_max_slowdown=1.5)
    found = {
        mode: job_columns(policy, monkeypatch, submitted(mode=mode), config)
        for mode in (None, EnergyMode.BALANCED, EnergyMode.SAVER)
    }
    weights = {
        mode: (round(row["time_weight"], 5), round(row["energy_weight"], 5), round(row["max_slowdown"], 5))
        for mode, row in found.items()
    }
    assert weights == {
        None: (0.5, 0.5, 0.3),
        EnergyMode.BALANCED: (0.5, 0.5, 0.3),
        EnergyMode.SAVER: (0.2, 0.8, 1.5),
    }
    differing = {name for name, value in found[None].items() if value != found[EnergyMode.SAVER][name]}
    assert differing == {"time_weight", "energy_weight", "max_slowdown"}


def test_the_sites_default_mode_is_that_of_jobs_that_name_none(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(default_mode=EnergyMode.SAVER)
    config = site(default_mode="saver")
    assert job_columns(policy, monkeypatch, submitted(), config)["energy_weight"] == pytest.approx(0.8)
    balanced = job_columns(policy, monkeypatch, submitted(mode=EnergyMode.BALANCED), config)
    assert balanced["energy_weight"] == pytest.approx(0.5)
    observing = job_columns(policy, monkeypatch, submitted(mode=EnergyMode.OBSERVE), config)
    assert observing["energy_weight"] == pytest.approx(0.5)


def test_a_site_that_says_nothing_has_the_weights_that_networks_are_trained_with() -> None:
    assert site_weights(PolicyConfig()) == MODE_WEIGHTS


def test_history_and_limit_reach_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    row = job_columns(policy_of(), monkeypatch, submitted(3, time_limit_minutes=120.0), site())
    scaled = {feature.name: feature for feature in schema.TASK}
    assert row["is_submitted"] == 1.0
    assert row["gpus_least"] == pytest.approx(scaled["gpus_least"].scaled(3.0))
    assert row["time_limit_seconds"] == pytest.approx(scaled["time_limit_seconds"].scaled(7200.0))
    assert row["estimate_known"] == 0.0
