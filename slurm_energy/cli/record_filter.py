"""Which records are meant, and where they may lie."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs; None leaves a filter out."""

    job_id: int | None = None
    user_name: str | None = None
    partition: str | None = None
    since_seconds: float | None = None
    until_seconds: float | None = None
    limit: int | None = None

    def fields(self, subject: str) -> dict[str, str]:
        """Return the fields of a `query`."""
        found = {
            "what": subject,
            "job": self.job_id,
            "user": self.user_name,
            "partition": self.partition,
            "since": None if self.since_seconds is None else f"{self.since_seconds:.3f}",
            "until": None if self.until_seconds is None else f"{self.until_seconds:.3f}",
            "limit": self.limit,
        }
        return {key: str(value) for key, value in found.items() if value is not None}


def sqlite_path(url: str) -> Path | None:
    """Return the file of an SQLite URL, None for another database."""
    scheme, _, rest = url.partition(":///")
    return Path(rest.partition("?")[0]) if scheme.partition("+")[0] == "sqlite" and rest else None
