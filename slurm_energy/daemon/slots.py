"""Places for connections that have not shown yet who they are: a newcomer takes the place of the slowest."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Slot:
    """The place of one connection."""

    owner: Hashable
    evict: Callable[[], None]
    held_bytes: int = field(default=0)


class Slots:
    """Bounds connections by owner and in all, and what they hold in memory together.

    Nobody is refused for what others do: whoever sends a whole message at once is through before his turn to be
    evicted comes, and those who only hold a place lose it.
    """

    def __init__(self, per_owner: int, total: int, total_bytes: int) -> None:
        self._per_owner = per_owner
        self._total = total
        self._total_bytes = total_bytes
        self._slots: dict[Slot, None] = {}
        self._by_owner: Counter[Hashable] = Counter()
        self._held_bytes = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._slots)

    def enter(self, owner: Hashable, evict: Callable[[], None]) -> Slot:
        """Return a place; `evict` ends the connection when another one needs it, and must not raise."""
        if self._by_owner[owner] >= self._per_owner:
            self._evict(next(slot for slot in self._slots if slot.owner == owner))
        elif len(self._slots) >= self._total:
            (crowd, _count) = self._by_owner.most_common(1)[0]
            self._evict(next(slot for slot in self._slots if slot.owner == crowd))
        slot = Slot(owner, evict)
        self._slots[slot] = None
        self._by_owner[owner] += 1
        return slot

    def grow(self, slot: Slot, count: int) -> None:
        """Note that a connection has sent so much more; whoever holds most gives way when all hold too much."""
        if slot not in self._slots:
            return
        slot.held_bytes += count
        self._held_bytes += count
        while self._held_bytes > self._total_bytes:
            self._evict(max(self._slots, key=lambda held: held.held_bytes))

    def leave(self, slot: Slot) -> None:
        """Give a place back; one that was evicted has none."""
        if slot not in self._slots:
            return
        del self._slots[slot]
        self._held_bytes -= slot.held_bytes
        self._by_owner[slot.owner] -= 1
        if not self._by_owner[slot.owner]:
            del self._by_owner[slot.owner]

    def _evict(self, slot: Slot) -> None:
        self.leave(slot)
        self.evicted += 1
        slot.evict()
