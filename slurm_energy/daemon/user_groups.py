"""Groups of the users in the queue, for partitions that admit certain groups; looked up where nobody waits."""

import grp
import os
import pwd
from collections.abc import Iterable

from slurm_energy.daemon.frames import MAX_ITEMS, UserGroups
from slurm_energy.slurm.client import ClusterReading

KEEP_SECONDS = 600.0
MAX_LOOKUPS = 100
"""Per reading: a slow directory service must not make the snapshot old."""


class GroupCache:
    """Remembers who is in which groups for ten minutes."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def news(self, reading: ClusterReading, now_seconds: float) -> list[UserGroups]:
        """Return the groups of users not looked up lately; nothing where no partition asks for groups."""
        if not any(partition.allow_groups for partition in reading.partitions):
            return []
        users = dict.fromkeys(job.user_id for job in reading.jobs)
        due = [user for user in users if now_seconds - self._known.get(user, float("-inf")) >= KEEP_SECONDS]
        found = self._look_up(due[:MAX_LOOKUPS], now_seconds)
        return [UserGroups(groups=tuple(found[at : at + MAX_ITEMS])) for at in range(0, len(found), MAX_ITEMS)]

    def _look_up(self, users: Iterable[int], now_seconds: float) -> list[tuple[int, frozenset[str]]]:
        found: list[tuple[int, frozenset[str]]] = []
        for user in users:
            self._known[user] = now_seconds
            groups = groups_of(user)
            if groups is not None:
                found.append((user, groups))
        return found


def groups_of(user_id: int) -> frozenset[str] | None:
    """Return the names of a user's groups, None for an unknown user."""
    try:
        user = pwd.getpwuid(user_id)
        numbers = os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError, OverflowError):
        return None
    names: set[str] = set()
    for number in numbers:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return frozenset(names)
