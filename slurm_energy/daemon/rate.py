"""How often one user may ask."""

MAX_USERS = 10_000


class RateLimit:
    """A token bucket for each user."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: dict[int, tuple[float, float]] = {}

    def allows(self, user_id: int, now_seconds: float) -> bool:
        """Return whether the user may ask once more at `now_seconds` of a monotonic clock."""
        if len(self._buckets) > MAX_USERS:
            self._buckets.clear()
        tokens, at = self._buckets.get(user_id, (self._burst, now_seconds))
        tokens = min(self._burst, tokens + (now_seconds - at) * self._per_second)
        allowed = tokens >= 1.0
        self._buckets[user_id] = (tokens - 1.0 if allowed else tokens, now_seconds)
        return allowed
