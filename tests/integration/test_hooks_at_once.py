"""slurmd runs the hooks of several jobs at once: what they share holds, also when some of them are killed."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hook_node import HOOK, HookNode, children_of, entry

JOBS = tuple(range(1, 13))
UNHURRIED = {"SLURM_ENERGY_NODE_TIME_LIMIT_SECONDS": "60"}
"""A busy machine serves many hooks at once."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[HookNode]:
    """Two GPUs of which every job may have a share; the sampler, which has no part in this, is off."""
    root = tmp_path / "node"
    root.mkdir()
    node = HookNode(root, count=2)
    (root / "etc" / "slurm.conf").write_text(
        "ClusterName=lab\nSlurmctldHost=localhost\nGresTypes=gpu,shard\nNodeName=n1 CPUs=4 Gres=gpu:2,shard:16\n"
    )
    (root / "etc" / "gres.conf").write_text("Name=gpu File=/dev/tty[0-1]\nName=shard Count=16\n")
    node.configure(sampler="off")
    yield node
    node.end_samplers()


def gpus_of(job_id: int) -> str:
    return ("0", "1", "0,1")[job_id % 3]


def decision_of(job_id: int) -> str | None:
    return (None, entry(1200), entry(900), entry(1275))[job_id % 4]


def start(node: HookNode, verb: str, job_id: int) -> "subprocess.Popen[bytes]":
    environment = node.environment(job_id, gpus_of(job_id), decision_of(job_id), **UNHURRIED)
    return subprocess.Popen([*HOOK, verb], env=environment, stderr=subprocess.DEVNULL)


def all_at_once(node: HookNode, verb: str) -> None:
    running = [start(node, verb, job_id) for job_id in JOBS]
    assert {process.wait(timeout=120) for process in running} == {0}


def assert_nothing_left(node: HookNode) -> None:
    assert node.locks() == [None, None]
    assert list(node.spool.active.iterdir()) == []
    assert list((node.root / "run" / "n1").glob("*")) == []
    assert sorted(report.job_id for report in node.reports()) == list(JOBS)


def test_jobs_that_begin_and_end_at_once_leave_no_clock(node: HookNode) -> None:
    all_at_once(node, "prolog")
    assert node.locks() == [None, None]  # each has several jobs, of which not all agreed to any clock
    all_at_once(node, "epilog")
    assert_nothing_left(node)


def test_jobs_that_come_and_go_leave_no_clock(node: HookNode) -> None:
    """Prologs and epilogs of different jobs meet on one GPU, in an order that the machine makes."""
    epilogs = []
    for job_id in JOBS:
        prolog = start(node, "prolog", job_id)
        if job_id % 2:
            assert prolog.wait(timeout=120) == 0
            epilogs.append(start(node, "epilog", job_id))
        else:
            epilogs.append(prolog)
    assert {process.wait(timeout=120) for process in epilogs} == {0}
    even = [start(node, "epilog", job_id) for job_id in JOBS if job_id % 2 == 0]
    assert {process.wait(timeout=120) for process in even} == {0}
    assert_nothing_left(node)


@pytest.mark.parametrize("seed", range(3))
def test_hooks_that_are_killed_in_the_crowd_leave_no_clock(node: HookNode, seed: int) -> None:
    choose = random.Random(seed)
    for verb in ("prolog", "epilog"):
        running = [start(node, verb, job_id) for job_id in JOBS]
        for process in choose.sample(running, 6):
            time.sleep(choose.uniform(0.0, 0.1))
            kill_family(process.pid)
        for process in running:
            process.wait(timeout=120)
    all_at_once(node, "epilog")  # what Slurm would have run
    assert node.locks() == [None, None]
    assert list(node.spool.active.glob("*.json")) == []
    assert list((node.root / "run" / "n1").glob("*.json")) == []
    assert sorted(report.job_id for report in node.reports()) == list(JOBS)


def kill_family(pid: int) -> None:
    """End a hook and the process that works for it."""
    for member in (*children_of(pid), pid):
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)


def test_spool_that_is_removed_while_hooks_run_leaves_no_clock(node: HookNode) -> None:
    all_at_once(node, "prolog")
    running = [start(node, "epilog", job_id) for job_id in JOBS[:6]]
    shutil.rmtree(node.spool.root, ignore_errors=True)
    assert {process.wait(timeout=120) for process in running} == {0}
    all_at_once(node, "epilog")
    assert node.locks() == [None, None]
    assert list((node.root / "run" / "n1").glob("*.json")) == []
