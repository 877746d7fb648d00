"""`slurm-energy billing` prints, and sets only when it is asked to."""

from pathlib import Path

import pytest
from store_samples import CLUSTER, make_gpu, make_key, make_report, make_state

from slurm_energy.cli.main import main
from slurm_energy.config import StoreConfig
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import open_engine, store_session


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return the configuration of a site whose GPUs drew 200 W for 30 hours."""
    engine = open_engine(StoreConfig(url=f"sqlite:///{tmp_path}/e.sqlite"))
    upgrade(engine)
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, (make_state(77),))
        joules = 200.0 * 108_000.0
        gpu = make_gpu(joules=joules, counter_joules=joules, polled_joules=None, coverage_seconds=108_000.0)
        record_report(session, make_report(gpu), make_key())
    engine.dispose()
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        'echo "PartitionName=a100"; echo "   TRESBillingWeights=CPU=1.0,GRES/gpu=9"\n'
    )
    scontrol.chmod(0o755)
    config = tmp_path / "c.toml"
    config.write_text(f'[cluster]\nname = "{CLUSTER}"\nslurm_bin_directory = "{tmp_path}"\n')
    return config


@pytest.mark.parametrize("apply", [False, True])
def test_weights_are_printed_and_set_only_with_apply(
    site: Path, capsys: pytest.CaptureFixture[str], *, apply: bool
) -> None:
    database = f"sqlite:///{site.parent}/e.sqlite"
    words = ["--config", str(site), "billing", "--since", "2020-01-01", "--database", database]
    assert main([*words, *(["--apply"] if apply else [])]) == 0
    said = capsys.readouterr()
    assert "# a100: 200 W a GPU over 30 GPU hours" in said.out
    assert 'PartitionName=a100 TRESBillingWeights="CPU=1.0,GRES/gpu=1"' in said.out
    asked = (site.parent / "asked").read_text().splitlines()
    update = ["update PartitionName=a100 TRESBillingWeights=CPU=1.0,GRES/gpu=1"]
    assert asked == ["show partition a100", *(update if apply else [])]


def test_nothing_is_set_where_slurm_does_not_say_what_it_counts_now(
    site: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scontrol = site.parent / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {site.parent}/asked\n[ "$1" = update ]\n')
    database = f"sqlite:///{site.parent}/e.sqlite"
    words = ["--config", str(site), "billing", "--since", "2020-01-01", "--database", database, "--apply"]
    assert main(words) == 1
    assert "does not say its present weights, nothing is set" in capfd.readouterr().err
    assert (site.parent / "asked").read_text().splitlines() == ["show partition a100"]
