"""Every test runs at one named revision: a checkout with changes would keep no runs."""

import pytest

from research.results import provenance


@pytest.fixture(autouse=True)
def at_a_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the revision of the source."""
    monkeypatch.setattr(provenance, "revision", lambda: "abc")
