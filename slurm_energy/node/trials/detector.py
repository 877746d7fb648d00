"""Ask the detector about two windows, in a process of its own, without waiting for it."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

MAX_SECONDS = 60.0
"""Wall time after which the process is killed."""
MAX_ANSWER_BYTES = 4096
_START = "from slurm_energy.estimation.iterations.answer import main; main()"


class DetectorProcess:
    """One question; `answer` is asked until it has one."""

    def __init__(
        self, pairs: Sequence[Mapping[str, Any]], now_seconds: float, executable: str = sys.executable
    ) -> None:
        """Start the process; one that cannot be started has an answer at once: none."""
        self._end_seconds = now_seconds + MAX_SECONDS
        folders = [folder for folder in sys.path if folder.startswith("/")]
        start = f"import sys; sys.path[:] = {folders!r}; {_START}"
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
        if "LD_LIBRARY_PATH" in os.environ:
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        self._pid: int | None = None
        self._answer = -1
        self._problem = "the detector was ended"
        try:
            question = os.memfd_create("windows", os.MFD_CLOEXEC)
            self._answer = os.memfd_create("answer", os.MFD_CLOEXEC)
            os.write(question, json.dumps({"pairs": list(pairs)}).encode())
            os.lseek(question, 0, os.SEEK_SET)
            self._pid = os.posix_spawn(
                executable,
                [executable, "-I", "-S", "-c", start],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, question, 0),
                    (os.POSIX_SPAWN_DUP2, self._answer, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
            )
            os.close(question)
        except OSError as error:
            self._problem = f"the detector cannot be started with {executable!r}: {error.strerror}"

    def answer(self, now_seconds: float) -> dict[str, Any] | None:
        """Return what it said, None while it works; one that failed or took too long has said nothing."""
        if self._pid is None:
            return {"unknown": self._problem}
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0 and now_seconds <= self._end_seconds:
            return None
        if pid == 0:
            self.close()
            return {"unknown": f"the detector took longer than {MAX_SECONDS:.0f} s"}
        self._pid = None
        content = os.pread(self._answer, MAX_ANSWER_BYTES, 0)
        self.close()
        if status != 0:
            return {"unknown": f"the detector ended with status {status}"}
        return _checked(content)

    def close(self) -> None:
        """End the process, if it still runs."""
        if self._pid is not None:
            os.kill(self._pid, 9)
            os.waitpid(self._pid, 0)
            self._pid = None
        if self._answer >= 0:
            os.close(self._answer)
            self._answer = -1


def _checked(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
        if "unknown" in found:
            return {"unknown": str(found["unknown"])[:200], "longer_may_help": found.get("longer_may_help") is True}
        slowdown, error = float(found["slowdown"]), float(found["error"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return {"unknown": "the detector gave no answer"}
    if not (isfinite(slowdown) and isfinite(error) and error >= 0.0):
        return {"unknown": "the detector gave no finite answer"}
    return {"slowdown": slowdown, "error": error}
