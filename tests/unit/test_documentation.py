"""The pages: links lead somewhere, and the project speaks of itself alone."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_NAMED_TEST = re.compile(r"`((?:e2e|unit|integration|plugin)/[\w/]+\.(?:py|c))`")


def test_every_link_leads_to_a_file() -> None:
    targets = [(page, target) for page in PAGES for target in _LINK.findall(page.read_text(encoding="utf-8"))]
    assert [
        f"{page.relative_to(ROOT)}: {target}"
        for page, target in targets
        if "://" not in target and not (page.parent / target).exists()
    ] == []


def test_every_test_that_a_page_names_exists() -> None:
    named = [(page, name) for page in PAGES for name in _NAMED_TEST.findall(page.read_text(encoding="utf-8"))]
    assert [f"{page.relative_to(ROOT)}: {name}" for page, name in named if not (ROOT / "tests" / name).exists()] == []


def test_the_pages_were_found() -> None:
    assert len(PAGES) >= 12
