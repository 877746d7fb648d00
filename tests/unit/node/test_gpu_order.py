"""The order that slurmd itself tells: learned, kept, checked, and never used when it may not be the one in force."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_energy.node.gpu_order import GpuOrder, OrderFinder, order_files
from slurm_energy.node.slurm_gpus import parse_slurmd

MIXED = """\
slurmd: Gres Name=gpu Type=a40 Count=2 Index=0 ID=7696487 File=/dev/nvidia[2-3] (null)
slurmd: Gres Name=gpu Type=a100 Count=2 Index=0 ID=7696487 File=/dev/nvidia[0-1] Links=(null) Flags=HAS_FILE,HAS_TYPE
"""
DETECTED = """\
slurmd: gpu/nvml: _get_system_gpu_list_nvml: 2 GPU system device(s) detected
slurmd: Gres Name=gpu Type=h200 Count=1 Index=7 ID=7696487 File=/dev/nvidia7 Cores=0-1 CoreCnt=2 Links=-1,18
slurmd: Gres Name=gpu Type=h200 Count=1 Index=6 ID=7696487 File=/dev/nvidia6 Cores=0-1 CoreCnt=2 Links=18,-1
slurmd: Gres Name=gpu Type=(null) Count=1 ID=7696487 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22] Links=(null)
slurmd: Gres Name=shard Type=(null) Count=8 ID=1 Links=(null) Flags=
"""
MIXED_CONF = """\
NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia[0-1]
NodeName=n1 Name=gpu Type=a40 File=/dev/nvidia[2-3]
"""


class Node:
    """A node with a program in slurmd's place, Slurm's files, and a /proc in which slurmd may run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = root / "proc"
        self.proc.mkdir()
        (self.proc / "uptime").write_text("1000.0 0\n")
        self.program, self.calls = root / "slurmd", root / "calls"
        self.finder = OrderFinder(
            path=root / "gpu-order.json",
            node="n1",
            boot_id="boot-1",
            slurm_conf=str(root / "slurm.conf"),
            slurmd_paths=(str(self.program),),
            proc=self.proc,
        )
        (root / "slurm.conf").write_text("NodeName=n1 Gres=gpu:a40:2,gpu:a100:2\n")
        self.configure(MIXED_CONF, MIXED)

    def configure(self, gres_conf: str, told: str, code: int = 0) -> None:
        path = self.root / "gres.conf"
        path.write_text(gres_conf)
        os.utime(path, (1000, 1000 + len(gres_conf) + len(told)))
        (self.root / "told").write_text(told)
        self.program.write_text(
            f'#!/bin/sh\necho "$@" >>{self.calls}\ncat {self.root}/told >&2\n[ "$3$4" = -Nn1 ] || exit 9\nexit {code}\n'
        )
        self.program.chmod(0o755)

    def start_slurmd(self, pid: int, ticks: int) -> None:
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "exe").symlink_to(self.program)
        (folder / "cmdline").write_bytes(b"/usr/sbin/slurmd\0-N\0n1\0")
        (folder / "stat").write_text(f"{pid} (slurmd) S 1 {' '.join(['0'] * 17)} {ticks} 0\n")

    def end_slurmd(self, pid: int) -> None:
        for path in (self.proc / str(pid)).iterdir():
            path.unlink()
        (self.proc / str(pid)).rmdir()

    @property
    def times_asked(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def minors(order: GpuOrder) -> list[str]:
    return [file.removeprefix("/dev/nvidia") for file in order_files(order.gpus)]


def test_slurmds_list_is_read_file_by_file() -> None:
    order = parse_slurmd(MIXED)
    assert minors(order) == ["2", "3", "0", "1"]
    assert [gpu.gpu_type for gpu in order.gpus] == ["a40", "a40", "a100", "a100"]
    assert order.ways == ("slurmd -G",) and not order.problem and not order.shares_gpus


def test_detected_gpus_and_slices_are_read() -> None:
    order = parse_slurmd(DETECTED)
    assert minors(order) == ["7", "6", "0"]
    assert [(gpu.gpu_type, gpu.is_slice) for gpu in order.gpus] == [("h200", False), ("h200", False), (None, True)]
    assert order.shares_gpus


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no GPU"),
        ("slurmd: Gres Name=gpu Type=(null) Count=4 ID=1 (null)", "0 files for 4 GPUs"),
        ("slurmd: Gres Name=gpu Type=x Count=3 Index=0 ID=1 File=/dev/nvidia[0-1] (null)", "2 files for 3 GPUs"),
        ("slurmd: Gres Name=gpu Type=x Count=0 ID=1 (null)", "names no GPU"),
    ],
)
def test_list_that_is_not_understood_is_no_order(text: str, reason: str) -> None:
    order = parse_slurmd(text)
    assert order.gpus == () and reason in order.problem


def test_order_is_asked_of_slurmd_once_and_both_ways_agree(node: Node) -> None:
    first, second = node.finder.order(), node.finder.order()
    assert first == second and minors(first) == ["2", "3", "0", "1"]
    assert first.ways == ("slurmd -G", "gres.conf") and not first.problem
    assert node.times_asked == 1
    assert node.calls.read_text().split() == ["-G", "-v", "-N", "n1", "-f", str(node.root / "slurm.conf")]


def test_order_that_the_files_contradict_is_not_used(node: Node) -> None:
    node.configure(MIXED_CONF, MIXED.replace("[2-3]", "[4-5]"))
    order = node.finder.order()
    assert "counts nvidia4,nvidia5" in order.problem and "state nvidia2,nvidia3" in order.problem


@pytest.mark.parametrize("count", [2, 4])
def test_list_of_more_or_fewer_gpus_than_slurm_conf_counts_is_not_used(node: Node, count: int) -> None:
    (node.root / "slurm.conf").write_text(f"NodeName=n1 Gres=gpu:{count}\n")
    node.configure("AutoDetect=nvml\n", DETECTED)
    assert node.finder.order().problem == f"slurmd -G counts 3 GPUs, Gres= in slurm.conf {count}"


def test_order_that_only_slurmd_knows_is_its_own(node: Node) -> None:
    (node.root / "slurm.conf").write_text("NodeName=n1 Gres=gpu:h200:2,gpu:1\n")
    node.configure("AutoDetect=nvml\n", DETECTED)
    order = node.finder.order()
    assert minors(order) == ["7", "6", "0"] and order.ways == ("slurmd -G",) and order.stated is None


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.configure(MIXED_CONF + "NodeName=n2 Name=gpu File=/dev/nvidia0\n", MIXED),
        lambda node: node.start_slurmd(7, ticks=50),
        lambda node: setattr(node, "finder", replace(node.finder, boot_id="boot-2")),
    ],
)
def test_order_is_asked_again_when_files_slurmd_or_boot_are_others(node: Node, change: object) -> None:
    node.finder.order()
    assert callable(change)
    change(node)
    node.finder.order()
    node.finder.order()
    assert node.times_asked == 2


def test_files_written_again_with_what_they_held_cost_no_question(node: Node) -> None:
    node.start_slurmd(7, ticks=50)
    node.finder.order()
    os.utime(node.root / "gres.conf", (2000, 2000))
    with (node.root / "slurm.conf").open("a") as file:
        file.write("NodeName=n2 Gres=gpu:8\n# a word\n")
    assert not node.finder.order().problem and node.times_asked == 1


def test_order_that_changed_under_the_running_slurmd_is_not_used_until_it_starts_again(node: Node) -> None:
    node.start_slurmd(7, ticks=50)
    node.finder.order()
    node.configure(MIXED_CONF.replace("[2-3]", "[4-5]"), MIXED.replace("[2-3]", "[4-5]"))
    changed = node.finder.order()
    assert "restart slurmd" in changed.problem and minors(changed) == ["2", "3", "0", "1"]
    assert node.finder.refresh().problem == changed.problem
    node.end_slurmd(7)
    node.start_slurmd(8, ticks=900)
    after = node.finder.order()
    assert not after.problem and minors(after) == ["4", "5", "0", "1"]


def test_order_that_is_put_back_under_the_running_slurmd_is_used_again(node: Node) -> None:
    node.start_slurmd(7, ticks=50)
    node.finder.order()
    node.configure(MIXED_CONF.replace("[2-3]", "[4-5]"), MIXED.replace("[2-3]", "[4-5]"))
    assert node.finder.order().problem
    node.configure(MIXED_CONF, MIXED)
    assert not node.finder.order().problem


def test_gres_conf_younger_than_slurmd_is_not_the_order_in_force(node: Node) -> None:
    node.start_slurmd(7, ticks=50)
    os.utime(node.root / "gres.conf")
    order = node.finder.order()
    assert order.gpus == () and f"restart slurmd: {node.root}/gres.conf was changed after it" in order.problem


def test_slurmd_that_fails_leaves_the_order_unknown_and_repair_asks_again(node: Node) -> None:
    node.start_slurmd(7, ticks=500_000)
    node.configure(MIXED_CONF, "slurmd: error: Unable to determine this slurmd's NodeName\n", code=1)
    order = node.finder.order()
    assert order.gpus == () and "exit code 1: slurmd: error: Unable" in order.problem
    assert order.stated is not None
    node.finder.order()
    assert node.times_asked == 1
    node.program.write_text(node.program.read_text().replace("exit 1", "exit 0"))
    (node.root / "told").write_text(MIXED)
    assert not node.finder.refresh().problem and not node.finder.order().problem


def test_failure_is_tried_again_by_a_hook_after_a_minute(node: Node) -> None:
    node.configure(MIXED_CONF, "", code=1)
    assert node.finder.order().problem
    os.utime(node.finder.path, (1000, 1000))
    node.finder.order()
    assert node.times_asked == 2


def test_failure_of_a_timer_leaves_the_hooks_to_ask_for_themselves(node: Node) -> None:
    node.start_slurmd(7, ticks=50)
    node.configure(MIXED_CONF, "", code=1)
    assert "exit code 1" in node.finder.refresh().problem
    assert not node.finder.path.exists()


def test_timer_does_not_ask_while_no_slurmd_runs(node: Node) -> None:
    assert "slurmd does not run" in node.finder.refresh().problem
    assert node.times_asked == 0


def test_missing_program_and_missing_configuration_are_named(node: Node) -> None:
    node.program.unlink()
    assert "slurmd is in none of" in node.finder.order().problem
    assert "gone.conf does not exist" in replace(node.finder, slurm_conf="/gone.conf").order().problem


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"format":1}', b'{"format":9}'])
def test_damaged_file_is_learned_anew(node: Node, content: bytes) -> None:
    node.finder.order()
    node.finder.path.write_bytes(content)
    assert minors(node.finder.order()) == ["2", "3", "0", "1"] and node.times_asked == 2


def test_spool_that_cannot_be_written_costs_only_the_memory(node: Node) -> None:
    finder = replace(node.finder, path=node.root / "gone" / "gpu-order.json")
    assert minors(finder.order()) == ["2", "3", "0", "1"]
