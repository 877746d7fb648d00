"""Prometheus's figures over HTTP from a real daemon, before and after a restart of it."""

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from daemon_support import FakeSlurm, RunningDaemon, free_port, has_snapshot, start_daemon, wait_until, write_config
from test_daemon_reports import make_report, send, signed

ENERGY = 'slurm_energy_gpu_energy_joules_total{partition="a100"}'
DECISIONS = 'slurm_energy_decisions_total{mode="balanced"}'


def scrape(port: int) -> dict[str, float]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as page:
            text = page.read().decode()
    except urllib.error.URLError:
        return {}
    return {name: float(value) for name, value in re.findall(r"^(slurm_energy\S*) (\S+)$", text, re.MULTILINE)}


def started(directory: Path, port: int, metrics_port: int) -> RunningDaemon:
    slurm = FakeSlurm(directory / "slurm") if not (directory / "slurm").exists() else None
    if slurm is None:
        slurm = FakeSlurm.__new__(FakeSlurm)
        slurm.directory, slurm.bin_directory = directory / "slurm", directory / "slurm" / "bin"
    config = write_config(directory, slurm, port)
    config.write_text(config.read_text() + f'[metrics]\nhost = "127.0.0.1"\nport = {metrics_port}\n')
    daemon = start_daemon(directory, slurm, port, config)
    wait_until(lambda: has_snapshot(daemon), "a snapshot", daemon)
    return daemon


@pytest.mark.timeout(600)
def test_a_scrape_shows_decisions_and_joules_and_none_is_lost_or_counted_twice_by_a_restart(tmp_path: Path) -> None:
    port, metrics_port = free_port(), free_port()
    daemon = started(tmp_path, port, metrics_port)
    try:
        for _ in range(2):
            assert daemon.decide().verb == "ok"
        assert send(daemon, signed([make_report(11), make_report(12, gpu=1)])).verb == "ok"
        wait_until(lambda: scrape(metrics_port).get(ENERGY, 0.0) > 30_000.0, "the energy in a scrape", daemon)
        before = scrape(metrics_port)
        assert before["slurm_energy_up"] == before["slurm_energy_database_up"] == 1.0
        assert before[DECISIONS] == 2 and before["slurm_energy_decision_seconds_count"] == 2
        assert before["slurm_energy_gpu_nodes"] == 2
        assert daemon.stop() == 0
        daemon = started(tmp_path, port, metrics_port)
        assert daemon.decide().verb == "ok"
        assert send(daemon, signed([make_report(12, gpu=1)])).verb == "ok"  # sent again
        wait_until(lambda: ENERGY in scrape(metrics_port), "a scrape after the restart", daemon)
        after = scrape(metrics_port)
        assert after[ENERGY] == before[ENERGY] and after[DECISIONS] == 3
    finally:
        if daemon.process.poll() is None:
            daemon.stop()
