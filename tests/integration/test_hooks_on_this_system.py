"""Hooks against the real munge, a full disk, a read-only one, and a slurmd that gives them little to work with."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hook_node import HOOK, HookNode, entry

from slurm_energy.domain.ids import JobId

UNSHARE = ("/usr/bin/unshare", "--mount", "--propagation=private")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems in a private namespace")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[HookNode]:
    root = tmp_path / "node"
    root.mkdir()
    node = HookNode(root)
    node.configure(sampler="off")
    yield node
    node.end_samplers()


def in_namespace(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in private mount and PID namespaces; its processes end with it."""
    return subprocess.run(
        [*UNSHARE, "--pid", "--fork", "--kill-child", "/bin/sh", "-euc", script],
        env={"PATH": SYSTEM_PATH, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(shutil.which("munged", path="/usr/sbin:/usr/bin") is None, reason="munge is not installed")
def test_report_is_proven_by_munge_once() -> None:
    code = textwrap.dedent(
        """
        from slurm_energy.errors import AuthenticationError
        from slurm_energy.wire.authentication import ReplayGuard, sign, verify
        body = '{"note":"\\u00fc and a\\\\n\\\\nblank line"}'.encode()
        message = sign(body)
        done = verify(message, key=None, replay=ReplayGuard())
        assert (done.body, done.user_id) == (body, 0), done
        for broken in (message, type(message)("report", {"auth": "munge", "credential": "MUNGE:AAAA:"})):
            try:
                verify(broken, key=None, replay=ReplayGuard())
            except AuthenticationError as error:
                print(error)
            else:
                raise SystemExit("taken twice")
        try:
            verify(sign(body), key=None, replay=ReplayGuard(), allowed_user_ids=(12345,))
        except AuthenticationError as error:
            print(error)
        """
    )
    script = """
        mount -t tmpfs none /run
        mkdir -m 755 /run/munge
        head -c 64 /dev/urandom >/run/munge/key
        chmod 400 /run/munge/key
        chown -R munge: /run/munge
        setpriv --reuid munge --regid munge --clear-groups munged --key-file /run/munge/key \
            --pid-file /run/munge/p --log-file /run/munge/log --seed-file /run/munge/seed --num-threads 1
        exec "$PYTHON" -I -c "$CODE"
    """
    done = in_namespace(script, PYTHON=sys.executable, CODE=code)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert "Replayed credential" in told[0] and "uid 0, allowed: [12345]" in told[2]


def test_full_disk_changes_no_clock_and_exits_0(node: HookNode) -> None:
    script = """
        mkdir -p "$SPOOL"
        mount -t tmpfs -o size=64k,mode=700 none "$SPOOL"
        for folder in active pending done reports rejected locks; do mkdir -m 700 "$SPOOL/$folder"; done
        head -c 1M /dev/zero >"$SPOOL/fill" 2>/dev/null || true
        exec "$@"
    """
    done = hook_in_namespace(node, script, "prolog")
    assert done.returncode == 0 and "No space left" in done.stderr
    assert node.locks() == [None] * 4


def hook_in_namespace(node: HookNode, script: str, verb: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UNSHARE, "/bin/sh", "-ec", script, "sh", *HOOK, verb],
        env={**node.environment(7, "0", entry()), "PATH": SYSTEM_PATH, "SPOOL": str(node.spool.root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_read_only_disk_restores_the_clock_and_exits_0(node: HookNode) -> None:
    node.prolog(7, "0", entry())
    script = 'mount --bind "$SPOOL" "$SPOOL"; mount -o remount,bind,ro "$SPOOL"; exec "$@"'
    done = hook_in_namespace(node, script, "epilog")
    assert done.returncode == 0 and "Read-only file system" in done.stderr
    assert node.locks() == [None] * 4
    assert node.spool.read_state(JobId(7)) is not None
    node.epilog(7, "0")
    assert [report.job_id for report in node.reports()] == [7]


def limited(kind: int, value: int) -> Callable[[], None]:
    """Return what sets a limit of the process."""
    return lambda: resource.setrlimit(kind, (value, value))


@pytest.mark.parametrize(
    ("before", "works"),
    [
        pytest.param(lambda: os.closerange(0, 3), True, id="its first three files are closed"),
        pytest.param(limited(resource.RLIMIT_NOFILE, 4), False, id="no file may be opened"),
        pytest.param(limited(resource.RLIMIT_FSIZE, 0), False, id="no file may be written"),
        pytest.param(limited(resource.RLIMIT_AS, 64 << 20), True, id="little memory"),
        pytest.param(lambda: os.umask(0o777) and None, True, id="umask 777"),
        pytest.param(lambda: os.umask(0) and None, True, id="umask 0"),
        pytest.param(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32)) and None, True, id="no signals"),
        pytest.param(
            lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN) and None, True, id="ends of children ignored"
        ),
    ],
)
def test_whatever_slurmd_leaves_a_hook_it_exits_0_and_locks_no_clock_for_the_next_job(
    node: HookNode, before: Callable[[], None], *, works: bool
) -> None:
    for verb in ("prolog", "epilog"):
        environment = node.environment(7, "0", entry())
        done = subprocess.run(
            [*HOOK, verb], env=environment, preexec_fn=before, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0
        assert (node.locks()[0] is not None) == (works and verb == "prolog")
    node.prolog(8, "0", entry())
    assert node.locks()[0] == (210, 1275)
    node.epilog(8, "0")
    assert node.locks() == [None] * 4
    assert [int(report.job_id) for report in node.reports()] == ([7, 8] if works else [8])
    assert {path.stat().st_mode & 0o022 for path in node.spool.root.rglob("*")} == {0}
