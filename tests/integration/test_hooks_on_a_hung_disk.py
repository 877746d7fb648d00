"""A file system on which every write waits in the kernel, where no signal ends it: as a hung NFS, but made here."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hook_node import HOOK, HookNode, entry

TOOLS = ("/usr/sbin/mkfs.ext4", "/usr/sbin/fsfreeze", "/usr/bin/mount", "/usr/bin/umount")
LIMIT_SECONDS = 3.0
PATIENCE_SECONDS = 60.0
"""A hook that waits for the disk never ends; one that does not is far below."""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(tool) for tool in TOOLS), reason="needs root, ext4 and fsfreeze"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    image.write_bytes(b"\0" * (16 << 20))
    folder.mkdir()
    subprocess.run([TOOLS[0], "-q", image], check=True)
    mounted = subprocess.run([TOOLS[2], "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    folder.chmod(0o755)
    yield folder
    subprocess.run([TOOLS[3], "--lazy", folder], check=True)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[HookNode]:
    root = tmp_path / "node"
    root.mkdir()
    node = HookNode(root)
    node.configure(sampler="off")
    yield node
    node.end_samplers()


class Frozen:
    """The disk hangs inside of this."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk

    def __enter__(self) -> None:
        subprocess.run([TOOLS[1], "-f", self._disk], check=True)

    def __exit__(self, *_: object) -> None:
        subprocess.run([TOOLS[1], "-u", self._disk], check=True)


def hook(node: HookNode, verb: str, job_id: int) -> str:
    """Run the hook; return what it said."""
    environment = node.environment(job_id, "0", entry())
    done = node.run(verb, environment, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0
    return done.stderr


def test_log_on_a_hung_disk_costs_neither_the_clock_nor_the_report(node: HookNode, disk: Path) -> None:
    node.configure(log_path=str(disk / "log"), time_limit_seconds=30.0)
    hook(node, "prolog", 1)
    hook(node, "epilog", 1)
    with Frozen(disk):
        assert "gave up" not in hook(node, "prolog", 7)
        assert node.locks()[0] == (210, 1275)
        assert "gave up" not in hook(node, "epilog", 7)
        assert node.locks()[0] is None
    assert sorted(report.job_id for report in node.reports()) == [1, 7]


@pytest.mark.parametrize("verb", ["prolog", "epilog"])
def test_spool_on_a_hung_disk_ends_at_the_limit(node: HookNode, disk: Path, verb: str) -> None:
    node.configure(spool_directory=str(disk / "spool"), time_limit_seconds=LIMIT_SECONDS)
    hook(node, "prolog", 1)
    with Frozen(disk):
        assert f"{verb}: job 7: gave up after 3.0 s" in hook(node, verb, 7)
    assert node.locks()[1:] == [None] * 3


def test_spool_log_and_stderr_on_a_hung_disk_end_at_the_limit(node: HookNode, disk: Path) -> None:
    node.configure(spool_directory=str(disk / "spool"), log_path=str(disk / "log"), time_limit_seconds=LIMIT_SECONDS)
    hook(node, "prolog", 1)
    with (disk / "stderr").open("wb") as stderr, Frozen(disk):
        process = subprocess.Popen(
            [*HOOK, "epilog"], env=node.environment(1, "0"), stderr=stderr, start_new_session=True
        )
        try:
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.send_signal(signal.SIGKILL)
