"""The measured data that tests compare with: selections of published data sets in tests/data/measured."""

import lzma
from pathlib import Path

MEASURED = Path(__file__).parents[1] / "data" / "measured"
PHILLY_JOBS = MEASURED / "philly_trace" / "philly_jobs.csv.xz"


def write_philly_jobs(folder: Path) -> Path:
    """Write the whole Philly trace as CSV, which is kept compressed, and return its path."""
    path = folder / "philly_jobs.csv"
    path.write_bytes(lzma.decompress(PHILLY_JOBS.read_bytes()))
    return path
