from pathlib import Path

import pytest

from slurm_energy.errors import LabError
from slurm_energy.lab.layout import Layout
from slurm_energy.lab.products import install_hooks, make


def test_hooks_call_the_interpreter_of_the_lab_and_may_be_executed(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "l")

    install_hooks(layout, Path("/opt/some/bin/python"))

    scripts = [script for name in ("prolog.d", "epilog.d") for script in (layout.hooks / name).iterdir()]
    assert len(scripts) >= 2
    for script in scripts:
        assert "/opt/some/bin/python" in script.read_text()
        assert "'@PYTHON@'" not in script.read_text()
        assert script.stat().st_mode & 0o777 == 0o755


def test_time_limit_of_a_lab_holds_before_its_hooks_have_read_their_configuration(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "l")

    install_hooks(layout, Path("/opt/some/bin/python"), 30.0)

    for name in ("prolog.d", "epilog.d"):
        lines = (layout.hooks / name / "50-slurm-energy.sh").read_text().splitlines()
        assert lines[:2] == ["#!/bin/sh", "export SLURM_ENERGY_NODE_TIME_LIMIT_SECONDS=30"]


def test_failed_build_quotes_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all:\n\t@echo physics.c:99: no such thing; false\n")

    with pytest.raises(LabError, match=r"physics.c:99: no such thing"):
        make(tmp_path, tmp_path / "build")
