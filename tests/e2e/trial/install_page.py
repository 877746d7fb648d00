"""The commands of docs/how-to/install.md, as they stand there and in their order."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "install.md"
_HEADING = re.compile(r"^#{2,3} (.+)$")
_COMMENT = re.compile(r"\s{2,}#.*$")


def console_blocks(page: Path = PAGE) -> dict[str, list[str]]:
    """Return the commands that root types, by the heading under which they stand; every heading is there."""
    found: dict[str, list[str]] = {}
    heading, within = "", False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            within = line.strip() == "```console"
            continue
        title = _HEADING.match(line)
        if title and not within:
            heading = title[1]
            found[heading] = []
        elif within and line.startswith("# "):
            found[heading].append(_COMMENT.sub("", line[2:]))
    return found
