#!/usr/bin/env python3
"""Print what test files cost in CPU seconds, with everything that they start, and how long they took; as root.

usage: scripts/test_costs.py [-n FILES_AT_ONCE] [--tests COUNT] PATH ... [-- PYTEST_ARGUMENT ...]

Each file runs in a process of its own, which inherits what daemons leave behind: CPU seconds are those of every process
that ended there, and depend little on what else the machine does. What took longer than its CPU seconds waited.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINES = "TEST_COSTS_LINES"
SET_CHILD_SUBREAPER = 36
"""prctl's PR_SET_CHILD_SUBREAPER, of linux/prctl.h."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "SLURM_ENERGY_REQUIRE_LAB": "1", "SLURM_ENERGY_REQUIRE_SERVERS": "1"}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Write a line for each test, its fixtures included; what a fixture of the file costs stands at its first test."""
    cpu, clock = cpu_seconds(), time.monotonic()
    try:
        return (yield)
    finally:
        line = {"test": item.nodeid, "cpu": cpu_seconds() - cpu, "took": time.monotonic() - clock}
        with Path(os.environ[LINES]).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")


def run_here(argv: list[str]) -> int:
    """Run pytest as a child, reap all that it leaves behind, and print its status and the CPU seconds of all."""
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    clock = time.monotonic()
    status = subprocess.run(argv, stdout=sys.stderr, check=False).returncode
    took = time.monotonic() - clock
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"status": status, "cpu": usage.ru_utime + usage.ru_stime, "took": took}))
    return 0


def cost_of(path: str, arguments: list[str]) -> tuple[dict[str, float], list[dict[str, float | str]], str]:
    """Run a file and return its sums, the lines of its tests, and what pytest said last."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        lines.touch()
        pytest_argv = [sys.executable, "-m", "pytest", "-q", "-p", Path(__file__).stem, path, *arguments]
        environment = ENVIRONMENT | os.environ | {LINES: str(lines), "PYTHONPATH": str(Path(__file__).parent)}
        argv = [sys.executable, __file__, "--here", *pytest_argv]
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        tests = [json.loads(line) for line in lines.read_text().splitlines()]
    return json.loads(done.stdout), tests, done.stderr.strip()


def files_of(paths: list[str]) -> list[str]:
    """Return the test files below folders, and files as they are."""
    below = (sorted(Path(path).rglob("test_*.py")) if Path(path).is_dir() else [Path(path)] for path in paths)
    return [str(file) for files in below for file in files]


def main() -> int:
    """Run the files and print two tables."""
    if sys.argv[1:2] == ["--here"]:
        return run_here(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="PATH")
    parser.add_argument("-n", type=int, default=1, dest="at_once", metavar="FILES_AT_ONCE", help="default: 1")
    parser.add_argument("--tests", type=int, default=30, metavar="COUNT", help="dearest tests that are named (30)")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    values, arguments = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    tests: list[dict[str, float | str]] = []
    total = took = 0.0
    print(f"{'CPU s':>8} {'took s':>8} {'tests':>6}  file", flush=True)
    with ThreadPoolExecutor(values.at_once) as threads:
        runs = {threads.submit(cost_of, path, arguments): path for path in files_of(values.paths)}
        for run in as_completed(runs):
            sums, of_file, said = run.result()
            tests += of_file
            total, took = total + sums["cpu"], took + sums["took"]
            print(f"{sums['cpu']:8.1f} {sums['took']:8.1f} {len(of_file):6}  {runs[run]}", flush=True)
            if sums["status"] not in (0, 5):
                print(said[-3000:], file=sys.stderr, flush=True)
    print(f"{total:8.1f} {took:8.1f} {len(tests):6}  together\n")
    for test in sorted(tests, key=lambda test: -float(test["cpu"]))[: values.tests]:
        print(f"{test['cpu']:8.1f} {test['took']:8.1f}  {test['test']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
