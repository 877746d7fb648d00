"""The hooks' log: one line per event, bounded in size, and never a reason to fail."""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MAX_LOG_BYTES = 1_048_576
MAX_LINE_CHARACTERS = 2000

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    """Return the text without line breaks and terminal controls."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text[:MAX_LINE_CHARACTERS])


class HookLog:
    """Appends to `path`, which may be empty for none, and tells `echo` the same; neither can raise."""

    def __init__(self, path: str, prefix: str, echo: Callable[[str], None]) -> None:
        self._path = path
        self._prefix = prefix
        self._echo = echo

    def write(self, text: str) -> None:
        """Log one event."""
        line = one_line(f"{self._prefix}: {text}")
        with suppress(OSError):
            self._echo(line)
        append_line(self._path, line)


def append_line(path: str, line: str) -> None:
    """Append a dated line; over 1 MiB the file is moved to `.1` first."""
    if not path:
        return
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            if os.fstat(descriptor).st_size > MAX_LOG_BYTES:
                Path(path).replace(f"{path}.1")
            os.write(descriptor, f"{stamp} {line}\n".encode("utf-8", "replace"))
        finally:
            os.close(descriptor)
