"""Messages on stderr, and text of users made safe for terminals and spreadsheets.

Nothing is dropped: control characters become visible.
"""

import os
import re

_HIDDEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # controls, ESC of ANSI sequences among them
    "\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible, line breaks, direction changes
    "\ud800-\udfff"  # bytes that are not UTF-8
    "\U000e0000-\U000e007f"  # tags
    "]"
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def visible(text: str, width: int | None = None) -> str:
    r"""Return one line with hidden characters as `\xNN`, `\uNNNN`; over `width` characters it ends in `…`."""
    line = _HIDDEN.sub(_escape, text)
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def spreadsheet_cell(text: str) -> str:
    """Return the text for a CSV cell: visible, and with a leading ' where a spreadsheet would run it as a formula."""
    stripped = text.lstrip(" ")
    line = visible(text)
    return f"'{line}" if text.startswith(_FORMULA_STARTS) or stripped.startswith(_FORMULA_STARTS) else line


def say(text: str, program: str = "energy-sbatch") -> None:
    """Write one line on stderr; a closed stderr is no error."""
    try:
        os.write(2, f"{program}: {visible(text)}\n".encode("utf-8", "replace"))
    except OSError:
        return
