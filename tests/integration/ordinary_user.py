"""Run commands as an ordinary user, each in a process of its own that has everything imported already.

A program: it starts clean, before any test has threads, imports everything once and becomes several runners by forking.
Each reads one case a line at a socket of its own, forks for each case and writes one result a line, so that a thousand
commands cost minutes and not hours.
"""

import gc
import importlib
import json
import os
import pwd
import queue
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

USER = "nobody"
CASE_SECONDS = 120.0
RUNNERS = 6
MAX_OUTPUT = 200_000
_PROGRAMS = {
    "slurm-energy": ("slurm_energy.cli.main", "main"),
    "slurm-energyd": ("slurm_energy.daemon.app", "main"),
    "energy-sbatch": ("slurm_energy.cli.energy_sbatch", "main"),
    "slurm-energy-hook": ("slurm_energy.node.main", "run"),
}
_SHORTER = (
    ("slurm_energy.cli.records", "QUERY_SECONDS"),
    ("slurm_energy.cli.status", "STATUS_SECONDS"),
    ("slurm_energy.cli.doctor.daemon_checks", "PING_SECONDS"),
    ("slurm_energy.cli.doctor.daemon_checks", "STATUS_SECONDS"),
    ("slurm_energy.cli.doctor.cluster_checks", "STATUS_SECONDS"),
    ("slurm_energy.cli.doctor.storage_checks", "LOCK_SECONDS"),
)
"""Waits that only make a test long."""
_IMPORTED_LATE = (
    "cli.comparison", "cli.records", "cli.sbatch.dry_run", "cli.sbatch.options", "daemon.lifecycle",
    "device.nvml", "energy_model.calibration.parts",
    "evaluation.arena.plan", "evaluation.arena.run", "evaluation.decision_speed.in_process", "evaluation.replay",
    "lab.demo", "node.commands", "node.flush", "node.repair", "node.status",
    "policy.registry", "reporting.explanation", "store.explain", "store.reports",
    "store.schema", "twin.snapshot.nodes",
)  # fmt: skip
"""What commands import only when they are called, without torch: it would make every fork twice as long."""


class OrdinaryUser:
    """Runs commands; a context manager.

    A case: `argv`, `env`, `cwd`, `stdout` (`kept`, `reader-gone`, `closed`, `full`). A result: `code`, `out`, `err`;
    a command that did not end has no code.
    """

    def __enter__(self) -> "OrdinaryUser":
        pairs = [socket.socketpair() for _ in range(RUNNERS)]
        numbers = [theirs.fileno() for _, theirs in pairs]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, numbers)], stdin=subprocess.DEVNULL, pass_fds=numbers
        )
        for _, theirs in pairs:
            theirs.close()
        self._runners = [ours for ours, _ in pairs]
        return self

    def __exit__(self, *exception: object) -> None:
        for runner in self._runners:
            runner.close()
        self._process.wait(timeout=CASE_SECONDS)

    def run(self, cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the results of cases, in their order; several run at a time, since most of them wait."""
        idle: queue.SimpleQueue[TextIO] = queue.SimpleQueue()
        for runner in self._runners:
            idle.put(runner.makefile("rw", encoding="utf-8"))

        def result(case: dict[str, Any]) -> dict[str, Any]:
            runner = idle.get()
            try:
                runner.write(json.dumps(case) + "\n")
                runner.flush()
                found: dict[str, Any] = json.loads(runner.readline())
                return found
            finally:
                idle.put(runner)

        with ThreadPoolExecutor(RUNNERS) as threads:
            return list(threads.map(result, cases))


def prepare() -> None:
    """Import what the commands import, once for all of them."""
    from slurm_energy.cli import reference
    from slurm_energy.cli.main import cli

    list(reference.walk(cli, ("slurm-energy",)))
    for module, _function in _PROGRAMS.values():
        importlib.import_module(module)
    for module, name in _SHORTER:
        setattr(importlib.import_module(module), name, 1.0)
    for module in _IMPORTED_LATE:
        importlib.import_module(f"slurm_energy.{module}")


def serve(sockets: Sequence[int]) -> None:
    """Become one runner for each socket, and return when all have ended."""
    gc.freeze()  # what is shared with every command stays shared
    for number in sockets:
        if os.fork() == 0:
            for other in sockets:
                if other != number:
                    os.close(other)
            with socket.socket(fileno=number).makefile("rw", encoding="utf-8") as cases:
                while line := cases.readline():
                    cases.write(json.dumps(run(json.loads(line))) + "\n")
                    cases.flush()
            os._exit(0)
    for number in sockets:
        os.close(number)
    for _ in sockets:
        os.wait()


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Run one command and return how it ended."""
    out, out_writer = os.pipe()
    err, err_writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        os.close(err)
        _be_the_command(case, out_writer, err_writer)
    os.close(out_writer)
    os.close(err_writer)
    if case.get("stdout") == "reader-gone":
        os.close(out)
        texts = _read({err: b""})
        found = {"out": "", "err": texts[err].decode("utf-8", "replace")}
    else:
        texts = _read({out: b"", err: b""})
        found = {"out": texts[out].decode("utf-8", "replace"), "err": texts[err].decode("utf-8", "replace")}
    return {**found, "code": _ended(child)}


def _be_the_command(case: dict[str, Any], out: int, err: int) -> None:
    status = 99
    try:
        os.setsid()
        kind = case.get("stdout", "kept")
        if kind == "full":
            out = os.open("/dev/full", os.O_WRONLY)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if kind == "closed":
            os.close(1)
        os.closerange(3, 1024)
        # The folder a person stands in may be closed to whom he became: entered first, as su does.
        os.chdir(case.get("cwd", "/"))
        if os.geteuid() == 0:
            entry = pwd.getpwnam(USER)
            os.setgroups([])
            os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
            os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
        os.environ.clear()
        os.environ.update(case.get("env", {}))
        encoding = case.get("env", {}).get("PYTHONIOENCODING", "utf-8")
        sys.stdin = _stream(0, "r", encoding)
        sys.stdout = None if kind == "closed" else _stream(1, "w", encoding)
        sys.stderr = _stream(2, "w", encoding, errors="backslashreplace")
        program, *words = case["argv"]
        sys.argv = [program, *words]
        module, function = _PROGRAMS[program]
        main = getattr(sys.modules[module], function)
        arguments = [os.fsencode(word) for word in words] if program == "energy-sbatch" else words
        try:
            status = main(arguments)
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except BaseException:
            import traceback

            os.write(2, traceback.format_exc().encode("utf-8", "replace"))
            status = 98
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                try:
                    stream.flush()
                except OSError as error:
                    os.write(2, f"Exception ignored in: {error!r}\n".encode())
                    status = 120
    finally:
        os._exit(status if isinstance(status, int) else 97)


def _stream(descriptor: int, mode: str, encoding: str, errors: str = "strict") -> Any:
    """Return a standard stream as Python makes it at its start."""
    return os.fdopen(descriptor, mode, encoding=encoding, errors=errors, closefd=False)


def _read(buffers: dict[int, bytes]) -> dict[int, bytes]:
    end = time.monotonic() + CASE_SECONDS
    open_pipes = set(buffers)
    while open_pipes and time.monotonic() < end:
        ready, _, _ = select.select(list(open_pipes), [], [], 1.0)
        for descriptor in ready:
            chunk = os.read(descriptor, 65_536)
            if not chunk:
                open_pipes.discard(descriptor)
            buffers[descriptor] = (buffers[descriptor] + chunk)[:MAX_OUTPUT]
    for descriptor in buffers:
        os.close(descriptor)
    return buffers


def _ended(child: int) -> int | None:
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    sys.path[0:0] = [str(Path(__file__).parents[2])]
    prepare()
    serve([int(number) for number in sys.argv[1:]])
