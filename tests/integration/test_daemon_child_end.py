"""A child that is ending is left in peace: SIGTERM, which the daemon sends all the same, is no line in the log."""

import socket
import subprocess
import sys

import pytest

KILLED_AT_EXIT = """
import atexit, os, signal, sys
from slurm_energy.daemon.{module} import main
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("module", ["policy.process", "snapshot.process", "recorder.process"])
def test_a_sigterm_while_a_child_ends_is_no_traceback(module: str) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    numbers = [theirs.fileno() for _, theirs in pairs]
    for ours, _ in pairs:
        ours.close()  # the daemon has gone
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EXIT.format(module=module), *map(str, numbers)],
        pass_fds=numbers,
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
    )
    for _, theirs in pairs:
        theirs.close()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
