#!/usr/bin/env python3
"""Print figures of the package as a Markdown table: files, lines, importers, and what the served part imports.

usage: scripts/figures.py [--no-times]
"""

import argparse
import ast
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "slurm_energy"
SERVED = ("daemon", "node", "cli.energy_sbatch")
"""Packages and modules that run for users' jobs; what they import is the served part."""
STARTS = ("node.main", "daemon.app", "cli.main")
REPEATS = 5


def module_name(path: Path) -> str:
    """Return a file's module without the package's own name; the package itself is the empty string."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the package's own modules that a file imports, wherever in the file."""
    for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            names = [f"{statement.module}.{alias.name}" for alias in statement.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] != "slurm_energy":
                continue
            inside = ".".join(parts[1:])
            outer = ".".join(parts[1:-1])
            if inside in modules:
                yield inside
            elif outer in modules:
                yield outer


def reachable(roots: set[str], imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that are imported, at once or later, from the roots."""
    found, waiting = set(roots), list(roots)
    while waiting:
        for name in imports[waiting.pop()] - found:
            found.add(name)
            waiting.append(name)
    return found


def import_seconds(module: str) -> float:
    """Return the least CPU time that a fresh interpreter takes to import a module, its own start taken off."""

    def least(code: str) -> float:
        times = []
        for _ in range(REPEATS):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(times)

    return least(f"import slurm_energy.{module}") - least("pass")


def figures() -> list[tuple[str, str]]:
    """Return each figure's name and value."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if "_shared" not in path.parts)
    modules = {module_name(path): path for path in paths}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    imports = {name: set(imported_modules(path, modules)) - {name} for name, path in modules.items()}
    code = {name for name, path in modules.items() if path.name != "__init__.py"}
    importers = {name: {other for other, seen in imports.items() if name in seen} for name in code}
    alone = [
        name
        for name, others in importers.items()
        if len(others) == 1 and name.rpartition(".")[0] == next(iter(others)).rpartition(".")[0]
    ]
    largest = max(lines, key=lambda name: lines[name])
    roots = {name for name in code if name.startswith(tuple(f"{root}." for root in SERVED)) or name in SERVED}
    served = reachable(roots, imports) & code
    return [
        ("files", str(len(code))),
        ("lines", f"{sum(lines.values()):,}"),
        ("median lines of a file", f"{statistics.median(lines[name] for name in code):.0f}"),
        ("largest file", f"{lines[largest]} lines ({largest})"),
        ("files of more than 400 lines", str(sum(lines[name] > 400 for name in code))),
        ("files of less than 100 lines", str(sum(lines[name] < 100 for name in code))),
        ("modules with one importer, in their own folder", str(len(alone))),
        (
            "imported by daemon, hooks and wrapper",
            f"{len(served)} files, {sum(lines[name] for name in served):,} lines",
        ),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-times", action="store_true", help="do not measure how long imports take")
    options = parser.parse_args()
    rows = figures()
    if not options.no_times:
        rows += [
            (f"CPU time of `import slurm_energy.{name}`", f"{1000 * import_seconds(name):.0f} ms") for name in STARTS
        ]
    print("| figure | value |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
