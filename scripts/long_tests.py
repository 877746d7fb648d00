#!/usr/bin/env python3
"""Run the long forms of the tests one after the other and print what came of each; as root, for the real Slurm.

usage: scripts/long_tests.py [--list] [FORM ...]
"""

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "long-tests"
LONG = {"SLURM_ENERGY_TRIAL": "long"}
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One long form: its tests, and what makes them long."""

    tests: tuple[str, ...]
    says: str
    environment: dict[str, str] = field(default_factory=lambda: dict(LONG))


FORMS = {
    "planted-faults": Form(
        tests=("tests/unit/evaluation/gate/test_planted_faults.py",),
        says="every fault planted into the code that the gate proves",
    ),
    "published-world": Form(
        tests=("tests/integration/test_published_world_rules.py",),
        says="five rates of the published world",
    ),
    "learners": Form(
        tests=(
            "tests/integration/test_learning_on_a_device.py",
            "tests/integration/test_training_collectors.py",
            "tests/unit/learning/soft_actor_critic/test_soft_actor_critic.py",
            "tests/unit/learning/policy_gradient/test_policy_gradient.py",
            "tests/unit/learning/test_imitation.py",
            "tests/unit/learning/test_algorithms.py",
            "tests/unit/learning/test_restoring.py",
            "tests/unit/policy/gnn/test_policy_at_starts.py",
        ),
        says="every algorithm with every network on a device, in processes, on toys and in every shipped world",
    ),
    "alike": Form(
        tests=("tests/unit/twin/test_one_policy_world.py", "tests/unit/learning/nightly/test_sequential.py"),
        says="a thousand jobs under every network and policy in both worlds; two hundred years of equal policies",
    ),
    "time-limits": Form(
        tests=("tests/integration/test_results_quick.py",),
        says="the daemon and learned prices where some jobs cannot end in time on every GPU type",
    ),
    "node-clocks": Form(
        tests=("tests/integration/test_store_jobs.py",),
        says="jobs of nodes whose clocks are wrong by more, in every database",
    ),
    "properties": Form(
        tests=(
            "tests/unit/policy/test_guard_properties.py",
            "tests/unit/policy/rules/test_rule_properties.py",
            "tests/unit/twin/test_run_properties.py",
            "tests/unit/graph/test_cluster_graph_properties.py",
            "tests/unit/domain",
            "tests/unit/wire",
            "tests/unit/slurm",
        ),
        says="properties with 200 random examples, others each time",
        environment={"SLURM_ENERGY_EXAMPLES": "200"},
    ),
    "no-traceback": Form(
        tests=("tests/integration/test_no_traceback.py",),
        says="every command of an ordinary user in every state of its files",
    ),
    "slurm-update": Form(
        tests=("tests/e2e/test_slurm_update.py",),
        says="a kept copy in the place of a plugin that is missing, damaged or of an earlier version; other releases",
    ),
    "systemd": Form(
        tests=("tests/e2e/test_systemd.py",),
        says="units and starts of slurmctld under a real systemd",
    ),
    "twin": Form(
        tests=("tests/e2e/test_twin_against_lab.py",),
        says="sixty jobs in the twin and on a real Slurm",
    ),
    "packages": Form(
        tests=("tests/e2e/trial/test_debian_packages.py",),
        says="Debian packages installed, upgraded and removed under jobs",
    ),
    "fault-cells": Form(
        tests=("tests/e2e/trial/test_fault_cells.py",),
        says="16 faults at each of 8 moments of a job",
    ),
    "gpu-count": Form(
        tests=("tests/e2e/test_gpu_count.py",),
        says="every form of request with every other number of GPUs",
    ),
    "hyperscale": Form(
        tests=("tests/e2e/test_hyperscale.py",),
        says="the time of a training over unequal partitions, predicted from a measured run",
    ),
    "nights": Form(
        tests=("tests/e2e/test_nights.py",),
        says="three nights of recurring programs, unaided, and a candidate that estimates alone find good",
    ),
    "partitions": Form(
        tests=("tests/e2e/test_partitions.py",),
        says="1,000 random partitions, requests and answers",
        environment={"SLURM_ENERGY_PARTITION_CASES": "1000"},
    ),
}
"""By name, the short ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one form. A skipped test was not run: it counts as a failure, as no long form may leave one out."""

    name: str
    exit_code: int
    counts: dict[str, int]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether tests were run, all of them, and all passed."""
        return self.exit_code == 0 and self.counts.get("passed", 0) > 0 and not self.counts.get("skipped")

    @property
    def row(self) -> str:
        """The form's line of the summary."""
        counted = ", ".join(f"{number} {word}" for word, number in self.counts.items()) or f"exit code {self.exit_code}"
        minutes, seconds = divmod(round(self.seconds), 60)
        return f"| {self.name} | {'passed' if self.passed else 'FAILED'} | {counted} | {minutes}:{seconds:02d} |"


def counted(line: str) -> dict[str, int]:
    """Return what pytest's last line counts: `1 failed, 17 passed in 240.21s`."""
    return {word: int(number) for number, word in COUNTS.findall(line)}


def run(name: str) -> Outcome:
    """Run one form, show what pytest says and keep it in a log."""
    form, last = FORMS[name], ""
    words = [sys.executable, "-m", "pytest", "-q", *form.tests]
    begin = time.monotonic()
    with (
        (LOGS / f"{name}.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(
            words,
            cwd=ROOT,
            env=os.environ | form.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            log.write(line)
            last = line if COUNTS.search(line) else last
    return Outcome(name=name, exit_code=process.returncode, counts=counted(last), seconds=time.monotonic() - begin)


def main() -> int:
    """Run what is asked for; return 0 when all passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("forms", nargs="*", metavar="FORM", help="which; without one, all of them")
    parser.add_argument("--list", action="store_true", help="only print their names")
    options = parser.parse_args()
    unknown = sorted(set(options.forms) - set(FORMS))
    if unknown:
        parser.error(f"no long form {', '.join(unknown)}: there are {', '.join(FORMS)}")
    if options.list:
        for name, form in FORMS.items():
            print(f"{name}: {form.says}")
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name in options.forms or FORMS:
        print(f"== {name}: {FORMS[name].says}", flush=True)
        outcomes.append(run(name))
    print("\n| long form | result | tests | min:s |\n|---|---|---|---|")
    for outcome in outcomes:
        print(outcome.row)
    failed = [outcome.name for outcome in outcomes if not outcome.passed]
    if failed:
        print(f"failed: {', '.join(failed)}; what pytest said is in {LOGS.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
