"""When the last of the jobs that run is expected to end."""

from heapq import heappop, heappush
from math import inf


class LatestEnd:
    """Expected ends of running jobs, the last one first; each start and end costs the logarithm of their number."""

    def __init__(self) -> None:
        self._expected: dict[int, float] = {}
        self._last_first: list[tuple[float, int]] = []

    def started(self, job_id: int, end_seconds: float) -> None:
        """Take in a start, or another one of a job that was requeued; an end that never comes says nothing."""
        self._expected.pop(job_id, None)
        if end_seconds < inf:
            self._expected[job_id] = end_seconds
            heappush(self._last_first, (-end_seconds, job_id))

    def ended(self, job_id: int) -> None:
        """Take in that a job is over, whenever it was expected to be."""
        self._expected.pop(job_id, None)

    def seconds_left(self, now_seconds: float) -> float:
        """Return how long from now until the last of them is expected to end; 0 where none is expected to run on."""
        heap, expected = self._last_first, self._expected
        while heap and expected.get(heap[0][1]) != -heap[0][0]:
            heappop(heap)
        return max(0.0, -heap[0][0] - now_seconds) if heap else 0.0
