"""`slurm-energy status`: lines that fit the terminal, and where to run it."""

from pathlib import Path

import pytest

from slurm_energy.cli.records import where_to_run
from slurm_energy.cli.status import status_lines
from slurm_energy.config import ClusterConfig, Config

NOTE = "policy oracle decides, because torch is not installed; to use the learned policy, run: " + "x " * 80


def config_with(tmp_path: Path, controllers: str) -> Config:
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=north\nSlurmctldHost={controllers}\n")
    return Config(cluster=ClusterConfig(slurm_conf=str(conf)))


@pytest.mark.parametrize("width", [40, 80])
def test_long_values_are_wrapped_and_lose_no_word(width: int) -> None:
    lines = list(status_lines({"daemon": {"policy_note": NOTE, "age": 1.5, "host": None}}, width=width))
    assert max(map(len, lines)) <= width
    assert lines[:2] == ["daemon:", lines[1]] and lines[1].startswith("  policy note: policy oracle decides,")
    assert lines[-2:] == ["  age: 1.5", "  host: none"]
    assert " ".join(" ".join(lines).split()).count("x") >= 80


def test_into_a_file_each_value_is_one_line() -> None:
    assert list(status_lines({"policy_note": NOTE})) == [f"policy note: {NOTE}"]


def test_on_another_host_than_the_controller_the_message_names_the_controllers(tmp_path: Path) -> None:
    assert where_to_run(config_with(tmp_path, "ctl1(10.0.0.1),ctl2")) == (
        "slurm-energyd runs on the controller (ctl1, ctl2), not on this host: run this command there"
    )


@pytest.mark.parametrize("controllers", ["localhost", "ctl1,localhost"])
def test_on_the_controller_nothing_is_said_of_other_hosts(tmp_path: Path, controllers: str) -> None:
    assert where_to_run(config_with(tmp_path, controllers)) == ""
