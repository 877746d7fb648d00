"""How often one caller may ask, and how much of the time that what he asks may take."""

from collections.abc import Hashable, Iterable

MAX_CALLERS = 10_000


class RateLimit:
    """A token bucket for each caller."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: dict[Hashable, tuple[float, float]] = {}

    def allows(self, caller: Hashable, now_seconds: float) -> bool:
        """Return whether the caller may ask once more at `now_seconds` of a monotonic clock."""
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.clear()
        tokens, at = self._buckets.get(caller, (self._burst, now_seconds))
        tokens = min(self._burst, tokens + (now_seconds - at) * self._per_second)
        allowed = tokens >= 1.0
        self._buckets[caller] = (tokens - 1.0 if allowed else tokens, now_seconds)
        return allowed


class CostLimit:
    """A share of the time for each caller: what was done for him is charged afterwards, as long as it took."""

    def __init__(self, share: float, burst_seconds: float) -> None:
        self._share = share
        self._burst_seconds = burst_seconds
        self._left: dict[Hashable, tuple[float, float]] = {}

    def allows(self, callers: Iterable[Hashable], now_seconds: float) -> bool:
        """Return whether each of the callers has time left at `now_seconds` of a monotonic clock."""
        return all(self._left_of(caller, now_seconds) > 0.0 for caller in callers)

    def charge(self, callers: Iterable[Hashable], seconds: float, now_seconds: float) -> None:
        """Note what was done for the callers."""
        if len(self._left) > MAX_CALLERS:
            self._left.clear()
        for caller in callers:
            self._left[caller] = (self._left_of(caller, now_seconds) - seconds, now_seconds)

    def _left_of(self, caller: Hashable, now_seconds: float) -> float:
        left, at = self._left.get(caller, (self._burst_seconds, now_seconds))
        return min(self._burst_seconds, left + (now_seconds - at) * self._share)
