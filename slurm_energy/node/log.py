"""The hooks' log: one line per event, bounded in size, and never a reason to fail."""

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

MAX_LOG_BYTES = 1_048_576
MAX_LINE_CHARACTERS = 2000

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"


def one_line(text: str) -> str:
    """Return the text without line breaks and terminal controls."""
    text = text[:MAX_LINE_CHARACTERS]
    if text.isprintable():
        return text
    return re.sub(_CONTROL, lambda match: f"\\x{ord(match.group()):02x}", text)


class HookLog:
    """Appends to `path`, which may be empty for none, and tells `echo` the same; neither can raise.

    With `kept`, lines are put there instead, for who writes them at the end: a log that hangs must not stop the work.
    """

    def __init__(self, path: str, prefix: str, echo: Callable[[str], None], kept: list[str] | None = None) -> None:
        self._path = path
        self._prefix = prefix
        self._echo = echo
        self._kept = kept

    def write(self, text: str) -> None:
        """Log one event."""
        line = one_line(f"{self._prefix}: {text}")
        with suppress(OSError):
            self._echo(line)
        if self._kept is None:
            append_line(self._path, line)
        else:
            self._kept.append(line)


def append_line(path: str, line: str) -> None:
    """Append one dated line."""
    append_lines(path, [line])


def append_lines(path: str, lines: Sequence[str]) -> None:
    """Append dated lines; over 1 MiB the file is moved to `.1`. Follows no link, and waits for no pipe."""
    if not path or not lines:
        return
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = "".join(f"{stamp} {line}\n" for line in lines)
    with suppress(OSError, ValueError):
        descriptor = os.open(path, _APPEND, 0o640)
        try:
            os.write(descriptor, text.encode("utf-8", "replace"))
            size, number = os.fstat(descriptor).st_size, os.fstat(descriptor).st_ino
            # Of hooks that come here at once only one still finds its file under this name.
            if size > MAX_LOG_BYTES and os.lstat(path).st_ino == number:
                os.replace(path, f"{path}.1")  # noqa: PTH105  # starts faster without pathlib
        finally:
            os.close(descriptor)
