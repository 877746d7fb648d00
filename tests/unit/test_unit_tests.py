"""Unit tests start no processes: those are in tests/integration."""

import ast
from pathlib import Path

HERE = Path(__file__).parent
MODULES = {"multiprocessing", "pty", "subprocess"}
CALLS = {"fork", "forkpty", "posix_spawn", "spawnv", "system"}
ALLOWED = {
    "lab/test_lab_inside.py": "a child that ends at once is what is waited for",
    "research/test_running.py": "git tells the revision of a folder",
    "test_api.py": "what the first import brings along shows in a fresh interpreter only",
    "research/test_agents.py": "stands for subprocess.run",
}


def starts_of(path: Path) -> list[str]:
    """Return where a file imports what starts processes, or calls it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]} & MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_os = isinstance(node.func.value, ast.Name) and node.func.value.id == "os"
            names = {node.func.attr} & CALLS if of_os else set()
        else:
            continue
        found += [f"{path}:{node.lineno}: {name}" for name in sorted(names)]
    return found


def test_no_unit_test_starts_a_process() -> None:
    paths = [path for path in sorted(HERE.rglob("*.py")) if str(path.relative_to(HERE)) not in ALLOWED]
    assert [start for path in paths for start in starts_of(path)] == []


def test_a_start_is_found(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text("import os\nimport subprocess as s\ndef test() -> None:\n    os.fork()\n")
    assert starts_of(file) == [f"{file}:2: subprocess", f"{file}:4: fork"]
