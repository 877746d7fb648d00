"""What the answering process counts of its decisions, and keeps over a restart.

The file is read and removed at the start and written at the end: after a kill the counts begin at zero, which
Prometheus takes for what it is. Counts that went back a little would look like all decisions made once more.
"""

import json
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_energy.errors import SpoolError
from slurm_energy.files import write_atomically

logger = logging.getLogger(__name__)

FILE_NAME = "decision-counts.json"
BUCKET_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
"""Upper ends of the latency's buckets; the plugin waits for 0.05 s."""
_FORMAT = 1


class DecisionCounts:
    """Decisions by mode and reason, how long they took, and what else is counted."""

    def __init__(self) -> None:
        self.modes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.buckets = [0] * (len(BUCKET_SECONDS) + 1)
        """Decisions in each bucket alone; the last one has those over all ends."""
        self.seconds = 0.0
        self.earlier: Counter[str] = Counter()
        """Of the daemons before this one: what `DaemonState.counters` counts."""

    def decided(self, mode: str, reasons: Iterable[str], seconds: float) -> None:
        """Count one decision."""
        self.modes[mode] += 1
        self.reasons.update(reasons)
        self.buckets[bisect_left(BUCKET_SECONDS, seconds)] += 1
        self.seconds += seconds

    def document(self, counters: Mapping[str, int]) -> dict[str, object]:
        """Return all counts as JSON takes them, with those of this daemon added to earlier ones."""
        return {
            "format": _FORMAT,
            "modes": dict(self.modes),
            "reasons": dict(self.reasons),
            "buckets": list(self.buckets),
            "seconds": self.seconds,
            "events": dict(self.earlier + Counter(counters)),
        }


def load_counts(directory: Path) -> DecisionCounts:
    """Return the counts of the daemon that ran here last, if it ended in order; its file is removed."""
    counts, path = DecisionCounts(), directory / FILE_NAME
    try:
        document = json.loads(path.read_bytes())
        path.unlink()
        if document["format"] == _FORMAT and len(document["buckets"]) == len(counts.buckets):
            counts.modes.update({str(name): int(number) for name, number in document["modes"].items()})
            counts.reasons.update({str(name): int(number) for name, number in document["reasons"].items()})
            counts.earlier.update({str(name): int(number) for name, number in document["events"].items()})
            counts.buckets = [int(number) for number in document["buckets"]]
            counts.seconds = float(document["seconds"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("counts of the daemon before are not known path=%s error=%s", path, error)
        return DecisionCounts()
    return counts


def save_counts(directory: Path, counts: DecisionCounts, counters: Mapping[str, int]) -> None:
    """Keep the counts for the next daemon; where they cannot be written, it begins at zero."""
    try:
        write_atomically(directory / FILE_NAME, json.dumps(counts.document(counters)).encode(), mode=0o640)
    except (OSError, SpoolError) as error:
        logger.warning("counts not kept error=%s", error)
