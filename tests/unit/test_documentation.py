"""The pages: links lead somewhere, and the project speaks of itself alone."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_NAMED_TEST = re.compile(r"`((?:e2e|unit|integration|plugin)/[\w/]+\.(?:py|c))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    targets = [target for target in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = _NAMED_TEST.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


def test_the_pages_were_found() -> None:
    assert len(PAGES) >= 12
