"""What an update of the graph changed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What an update changed, by slots: what the network has to work out again."""

    nodes: frozenset[int] = frozenset()
    """Nodes of which something inside is different: columns, devices, links, running jobs."""
    groups: frozenset[int] = frozenset()
    """Groups with a changed node, other members, another link or switch, or other partitions of a node."""
    tasks: frozenset[int] = frozenset()
    """Jobs of the queue in whose part of the dependency graph something is different: whole parts."""
    gone_nodes: frozenset[int] = frozenset()
    """Slots that are no longer in use, here and below; one that was given out again counts as changed."""
    gone_groups: frozenset[int] = frozenset()
    gone_tasks: frozenset[int] = frozenset()
    """Also jobs that run now and that nobody waits for: no longer in the queue, though they are still vertices."""
    top: bool = False
    """Whether anything of the top is different."""
    rebuilt: bool = False
    """Whether every slot and every number is new: partitions or clusters came, went or changed places."""

    def __bool__(self) -> bool:
        return self != _NOTHING


_NOTHING = Changes()
