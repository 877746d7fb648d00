"""The base install does without the packages of extra `twin`; commands that need them say what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "slurm_energy"
OF_EXTRAS = ("gymnasium", "matplotlib", "numpy", "safetensors", "scipy", "sortedcontainers", "torch", "torch_geometric")
BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in OF_EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
OF_TWIN = {"arena", "calibrate", "comparison", "listings", "twin"}


def run_without_twin(code: str, missing: tuple[str, ...] = OF_EXTRAS) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"OF_EXTRAS = {missing!r}\n{BLOCK}{code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_daemon_hooks_and_commands_import_without_the_extra() -> None:
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for row in ("daemon", "node", "lab", "slurm", "store", "wire", "device", "cli")
        for path in sorted((PACKAGE / row).rglob("*.py"))
        if path.name != "__init__.py" and not (row == "cli" and path.stem in OF_TWIN)
    ]
    done = run_without_twin(f"import importlib\nfor name in {names!r}: importlib.import_module(name)")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [["arena", "policies"], ["twin", "worlds"], ["calibrate", "--data", "."]])
def test_a_command_of_the_extra_says_what_to_install(command: list[str]) -> None:
    done = run_without_twin(f"from slurm_energy.cli.main import main\nsys.exit(main({command!r}))")
    assert done.returncode == 1
    assert "pip install './slurm-energy[twin]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_needs_torch_says_what_to_install() -> None:
    command = ["train", "--world", "lab", "--teacher", "greedy", "--hours", "1", "--output", "nowhere"]
    done = run_without_twin(f"from slurm_energy.cli.main import main\nsys.exit(main({command!r}))", ("torch",))
    assert done.returncode == 1
    assert "pip install torch --index-url https://download.pytorch.org/whl/cpu && " in done.stderr
    assert "pip install './slurm-energy[train]'" in done.stderr
    assert "Traceback" not in done.stderr
