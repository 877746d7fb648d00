"""How much of what is known of a site's jobs may come from one user."""

from collections.abc import Mapping
from typing import TypeVar

MAX_USER_SHARE = 0.2
"""Of what is known or planned for all; where fewer than five users are known, an equal share."""

_User = TypeVar("_User")


def largest_share(users: int) -> float:
    """Return the largest share that one of so many users may have."""
    return max(MAX_USER_SHARE, 1.0 / max(users, 1))


def within_share(amounts: Mapping[_User, float], users: int, others: float = 0.0) -> Mapping[_User, float]:
    """Return the amounts with the largest cut, so that none is more than one user's share of all.

    Args:
        amounts: By user.
        users: Who are known.
        others: What is of no user, and is part of the whole.
    """
    most = largest_share(users)
    ordered = sorted(amounts.values(), reverse=True)
    left = sum(ordered) + others
    for cut, amount in enumerate(ordered):
        free = 1.0 - most * cut
        if free <= 1e-9:
            return {user: min(value, ordered[cut - 1]) for user, value in amounts.items()}
        limit = most * left / free
        if amount <= limit * (1.0 + 1e-9):
            return dict(amounts) if cut == 0 else {user: min(value, limit) for user, value in amounts.items()}
        left -= amount
    free = 1.0 - most * len(ordered)
    limit = most * max(left, 0.0) / free if free > 1e-9 else min(ordered, default=0.0)
    return {user: min(value, limit) for user, value in amounts.items()}
