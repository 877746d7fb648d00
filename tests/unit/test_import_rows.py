"""The house's rows: a package imports only from rows below it, never sideways."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "slurm_energy"

ROWS: tuple[frozenset[str], ...] = (
    frozenset({"cli"}),
    frozenset({"daemon", "node", "lab", "progress", "reporting"}),
    frozenset({"hyperscale", "learning"}),
    frozenset({"rendezvous"}),
    frozenset({"evaluation"}),
    frozenset({"twin", "slurm", "device", "store", "wire"}),
    frozenset({"policy"}),
    frozenset({"graph", "estimation"}),
    frozenset({"energy_model"}),
    frozenset({"domain"}),
    frozenset({"config", "errors", "files", "forms", "processes", "resources", "settings"}),
)
ROW_OF = {name: number for number, row in enumerate(ROWS) for name in row}
FLOOR = len(ROWS) - 1
ONLY_IMPORTER = {
    "pynvml": {"device/nvml.py"},
    "amdsmi": {"device/amd.py"},
    "pyslurm": {"slurm/pyslurm_client.py"},
    "torch_geometric": {
        "hyperscale/fusion.py",
        "hyperscale/graph.py",
        "hyperscale/ingestion/arrays.py",
        "hyperscale/layers.py",
        "hyperscale/training.py",
        "policy/gnn/ablation/heterogeneous.py",
        "learning/outcomes/training.py",
    },
}
LEARNING_LIBRARIES = {"torch", "torch_geometric", "safetensors"}
LEARNING_FOLDERS = ("policy/gnn/", "learning/", "hyperscale/", "rendezvous.py")
LIGHT_PACKAGES = {"node", "device", "wire", "domain"}
HEAVY = {"torch", "torch_geometric", "sqlalchemy", "alembic", "rich", "click", "jinja2", "numpy", "scipy"}
SQL_PACKAGES = {"store"}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_shared" not in path.parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported_names(path: Path) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for statement in ast.walk(tree_of(path)):
        if isinstance(statement, ast.Import):
            found += [(statement.lineno, alias.name) for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{path}:{statement.lineno}: relative import"
            base = statement.module or ""
            found.append((statement.lineno, base))
            if base == "slurm_energy":
                found += [(statement.lineno, f"slurm_energy.{alias.name}") for alias in statement.names]
    return found


def package_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def breaches_of_rows(path: Path) -> list[str]:
    here = package_of(path)
    breaches = []
    for line, name in imported_names(path):
        parts = name.split(".")
        if parts[0] != "slurm_energy" or len(parts) < 2 or parts[1] in {here, "__version__"}:
            continue
        if ROW_OF[parts[1]] <= ROW_OF[here] and ROW_OF[here] != FLOOR:
            breaches.append(f"{path.relative_to(PACKAGE)}:{line} ({here}) imports {name}")
        if ROW_OF[here] == FLOOR and ROW_OF[parts[1]] != FLOOR:
            breaches.append(f"{path.relative_to(PACKAGE)}:{line} (floor) imports {name}")
    return breaches


def test_every_module_imports_only_from_rows_below() -> None:
    outside = [name for _, name in imported_names(PACKAGE / "__init__.py") if name not in sys.stdlib_module_names]
    assert outside == []
    rest = [path for path in modules() if path != PACKAGE / "__init__.py"]
    without_row = [str(path) for path in rest if package_of(path) not in ROW_OF]
    assert without_row == [], "a package has no row: give it one in the house's plan"
    assert [breach for path in rest for breach in breaches_of_rows(path)] == []


def test_the_rows_test_sees_a_breach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    (tmp_path / "domain").mkdir()
    module = tmp_path / "domain" / "job.py"
    module.write_text("from slurm_energy.policy import base\n")
    assert breaches_of_rows(module) == ["domain/job.py:1 (domain) imports slurm_energy.policy"]


@pytest.mark.parametrize("foreign", sorted(ONLY_IMPORTER))
def test_a_foreign_library_has_one_door(foreign: str) -> None:
    importers = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        for _, name in imported_names(path)
        if name.split(".")[0] == foreign
    }
    assert importers <= ONLY_IMPORTER[foreign]


def breaches_of_learning(path: Path) -> list[str]:
    where = path.relative_to(PACKAGE).as_posix()
    if where.startswith(LEARNING_FOLDERS):
        return []
    return [
        f"{where}:{line} imports {name}"
        for line, name in imported_names(path)
        if name.split(".")[0] in LEARNING_LIBRARIES
    ]


def test_torch_is_imported_only_where_networks_are() -> None:
    assert [breach for path in modules() for breach in breaches_of_learning(path)] == []


def test_what_is_served_imports_no_part_of_ablation_studies_before_a_network_has_one() -> None:
    served = [path for path in modules() if "ablation" not in path.parts]
    found = [
        f"{path.relative_to(PACKAGE)}:{statement.lineno}"
        for path in served
        for statement in tree_of(path).body
        if isinstance(statement, ast.ImportFrom) and "gnn.ablation" in (statement.module or "")
    ]
    assert found == []


def test_the_learning_test_sees_a_breach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    for name in ("policy/oracle.py", "policy/gnn/network.py", "learning/imitation.py"):
        module = tmp_path / name
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("def late():\n    from safetensors.torch import load\n")
    breaches = [breach for path in modules() for breach in breaches_of_learning(path)]
    assert breaches == ["policy/oracle.py:2 imports safetensors.torch"]


@pytest.mark.parametrize("package", sorted(LIGHT_PACKAGES))
def test_what_hooks_import_stays_light(package: str) -> None:
    heavy = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in modules()
        if package_of(path) == package
        for line, name in imported_names(path)
        if name.split(".")[0] in HEAVY
    ]
    assert heavy == []


def test_sql_is_written_in_the_store_only() -> None:
    writers = {
        package_of(path)
        for path in modules()
        for _, name in imported_names(path)
        if name.split(".")[0] in {"sqlalchemy", "alembic"}
    }
    assert writers <= SQL_PACKAGES
