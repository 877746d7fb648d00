"""The observation as a heterogeneous graph for torch_geometric: cluster, places, the job and what may be answered.

Both libraries are loaded when the first graph is made and not before; the arrays need neither.
"""

from importlib import import_module
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slurm_energy.errors import ConfigError
from slurm_energy.twin.environment_choices import ActionSizes
from slurm_energy.twin.environment_observation import Arrays

NODE_TYPES = ("cluster", "place", "job", "option")


class GraphSpace(spaces.Space[Any]):
    """The space of graphs with these vertex types; it knows members and cannot draw any."""

    def __init__(self) -> None:
        """Store nothing: the number of options differs from graph to graph."""
        super().__init__(shape=None, dtype=None)

    @property
    def is_np_flattenable(self) -> bool:
        """A graph has no fixed length."""
        return False

    def contains(self, x: Any) -> bool:
        """Return whether a value is such a graph."""
        return set(getattr(x, "node_types", ())) == set(NODE_TYPES)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Refuse: graphs come from runs.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("graphs of a cluster cannot be drawn at random: take them from reset and step")


def require_torch_geometric() -> None:
    """Check that graphs can be made.

    Raises:
        ConfigError: torch_geometric or torch cannot be imported.
    """
    try:
        import_module("torch")
        import_module("torch_geometric")
    except ImportError as error:
        raise ConfigError(
            f'observation="graph" needs torch and torch_geometric: {error}; install them, or take observation="arrays"'
        ) from error


def graph_of(arrays: Arrays, mask: NDArray[np.int8], sizes: ActionSizes) -> Any:
    """Return an observation as a HeteroData.

    Vertices: `cluster` (1), `place` (all), `job` (1), `option` (one for every legal placement, with the number of its
    action in `action`). Edges: job to its options, options to their place, places to the cluster, and each backwards.

    Args:
        arrays: The same observation as arrays.
        mask: Legal actions, [actions]; the last one waits and is no vertex.
        sizes: Of the action space.
    """
    torch: Any = import_module("torch")
    legal = np.flatnonzero(mask[:-1])
    data: Any = import_module("torch_geometric.data").HeteroData()
    data["cluster"].x = torch.from_numpy(arrays["cluster"][None, :])
    data["place"].x = torch.from_numpy(arrays["places"])
    data["job"].x = torch.from_numpy(arrays["job"][None, :])
    data["option"].x = torch.from_numpy(arrays["options"][legal])
    data["option"].action = torch.from_numpy(legal.astype(np.int64))
    data.may_wait = bool(mask[-1])
    options, places = np.arange(len(legal)), np.arange(sizes.places)
    for source, relation, target, ends in (
        ("job", "may_take", "option", (np.zeros_like(options), options)),
        ("option", "uses", "place", (options, legal // (sizes.counts * sizes.clocks))),
        ("place", "belongs_to", "cluster", (places, np.zeros_like(places))),
    ):
        edges = torch.from_numpy(np.stack(ends).astype(np.int64))
        data[source, relation, target].edge_index = edges
        data[target, f"rev_{relation}", source].edge_index = edges.flip(0)
    return data
