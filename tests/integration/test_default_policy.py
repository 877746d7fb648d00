"""A new installation's policy: the shipped network where torch is, else the exact policy, from the first second on."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daemon_support import (
    FakeSlurm,
    RunningDaemon,
    free_port,
    make_job,
    until_it_ends,
    wait_until,
    write_config,
)

from slurm_energy.domain.decision import AnswerDetails
from slurm_energy.domain.plain import from_plain
from slurm_energy.policy.automatic import shipped_folder
from slurm_energy.policy.checkpoint_files import check_files
from slurm_energy.policy.detail_text import detail_sentences

HIDE = "import sys; sys.modules.update(dict.fromkeys(('torch', 'safetensors')));"
START = "import sys; from slurm_energy.daemon.app import main; sys.exit(main(['--config', sys.argv[1]]))"


@contextmanager
def new_installation(directory: Path, *, with_torch: bool, more: str = "") -> Iterator[RunningDaemon]:
    """Yield the daemon of a site that has chosen no policy; it must end cleanly, with its children."""
    slurm, port = FakeSlurm(directory / "slurm"), free_port()
    config = write_config(directory, slurm, port)
    config.write_text(config.read_text().split("[policy]")[0] + more)
    script = START if with_torch else HIDE + START
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-c", script, str(config)], stderr=log, stdout=log)
    daemon = RunningDaemon(directory, slurm, process, port)
    with until_it_ends(daemon):
        yield daemon


def status(daemon: RunningDaemon) -> dict[str, Any]:
    found: dict[str, Any] = daemon.query("status")["daemon"]
    return found


def record_of(daemon: RunningDaemon, **job: Any) -> dict[str, Any]:
    """Return the record of a new decision."""
    decision_id = daemon.decide(**job).fields["decision_id"]
    found: list[dict[str, Any]] = []

    def stored() -> bool:
        found[:] = [one for one in daemon.query("decisions")["record"] if one["decision_id"] == decision_id]
        return bool(found)

    wait_until(stored, "the decision in the database", daemon)
    return found[0]


def codes(record: dict[str, Any]) -> set[str]:
    return {reason["code"] for reason in record["reasons"]}


def test_with_torch_the_shipped_network_answers_and_until_then_the_exact_policy(tmp_path: Path) -> None:
    with new_installation(tmp_path, with_torch=True) as daemon:
        first = record_of(daemon)
        assert first["policy"] == "gnn"
        if "POLICY_LOADING" in codes(first):  # importing torch takes longer than asking
            assert any(note.endswith("oracle decided") for note in first["notes"])
        wait_until(lambda: status(daemon)["policy_process"] == "ready", "a ready policy", daemon)
        told = status(daemon)
        assert (told["policy"], told["policy_version"]) == ("gnn", check_files(shipped_folder()).version)
        assert told["policy_note"] is None
        record = record_of(daemon, time_limit="600")
        assert {"POLICY"} <= codes(record) and not {"POLICY_ERROR", "POLICY_LOADING", "POLICY_TIMEOUT"} & codes(record)
        details = from_plain(AnswerDetails, record["details"])
        assert details.options[0].partition == "a100"
        assert detail_sentences(details)[0].startswith("least cost: a100 at ")
        assert status(daemon)["counters"]["policy answers"] >= 1


def test_the_network_goes_on_while_the_cluster_fills(tmp_path: Path) -> None:
    with new_installation(tmp_path, with_torch=True) as daemon:
        wait_until(lambda: status(daemon)["policy_process"] == "ready", "a ready policy", daemon)
        daemon.slurm.set_jobs([make_job(number) for number in range(1, 60)])

        def is_scarce() -> bool:
            options = from_plain(AnswerDetails, record_of(daemon)["details"]).options
            return bool(options) and options[0].parts["scarcity"] > 0.0

        wait_until(is_scarce, "a price of GPUs that are waited for", daemon)


def test_without_torch_the_exact_policy_answers_at_once_and_the_log_says_what_to_install(tmp_path: Path) -> None:
    with new_installation(tmp_path, with_torch=False) as daemon:
        record = record_of(daemon)
        assert (record["policy"], record["policy_version"]) == ("oracle", "1")
        assert not {"POLICY_ERROR", "POLICY_LOADING"} & codes(record)
        told = status(daemon)
        assert (told["policy"], told["policy_process"]) == ("oracle", None)
        assert told["policy_note"].startswith("policy oracle decides, because safetensors, torch are not installed; ")
        assert "pip install './slurm-energy[daemon]'" in told["policy_note"]
        assert f"policy chosen automatically note={told['policy_note']}" in daemon.log
        assert "name=policy" not in daemon.log, "no process of a learned policy"
        assert "ERROR" not in daemon.log and "WARNING" not in daemon.log


def test_a_site_that_names_its_policy_gets_that(tmp_path: Path) -> None:
    with new_installation(tmp_path, with_torch=True, more='[policy]\nname = "slurm-default"\n') as daemon:
        told = status(daemon)
        assert (told["policy"], told["policy_note"], told["policy_process"]) == ("slurm-default", None, None)
