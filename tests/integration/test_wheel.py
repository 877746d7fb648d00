"""What travels in the wheel: a site that installs it has everything but Slurm itself."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_templates_migrations_and_plugin_sources_travel(wheel_names: set[str]) -> None:
    for folder, pattern in (("templates", "**/*"), ("migrations", "**/*.py"), ("plugin", "**/*.[ch]")):
        sources = [
            path.relative_to(ROOT / folder)
            for path in (ROOT / folder).glob(pattern)
            if path.is_file() and not {"build", "__pycache__"} & set(path.parts)
        ]
        assert sources, folder
        missing = {f"slurm_energy/_shared/{folder}/{path}" for path in sources} - wheel_names
        assert missing == set()


def test_hook_scripts_lab_sources_and_data_travel(wheel_names: set[str]) -> None:
    for name in (
        "_shared/plugin/hook/slurm-energy.sh",
        "_shared/plugin/Makefile",
        "_shared/migrations/script.py.mako",
        "lab/entry.sh",
        "lab/workloads/philly_sample.csv",
        "lab/workloads/LICENSE-philly_sample",
        "DATA-LICENSES.md",
        "py.typed",
    ):
        assert f"slurm_energy/{name}" in wheel_names


def test_every_coefficient_and_world_and_the_shipped_policy_travel(wheel_names: set[str]) -> None:
    package = ROOT / "slurm_energy"
    files = [
        *(package / "energy_model").glob("*.json"),
        *(package / "twin" / "worlds").iterdir(),
        *(package / "policy" / "shipped").iterdir(),
    ]
    assert len(files) > 12
    assert {str(path.relative_to(ROOT)) for path in files if path.is_file()} - wheel_names == set()


def test_nothing_built_and_nothing_of_the_tests_travels(wheel_names: set[str]) -> None:
    assert not {name for name in wheel_names if name.endswith((".so", ".o", ".pyc", ".sqlite"))}
    assert not {name for name in wheel_names if name.startswith(("tests/", "docs/", "research/"))}
