"""What the network is made of: every switch of the paper's ablation, and the sizes."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from slurm_energy.errors import ConfigError
from slurm_energy.forms import shown

Hierarchy = Literal["hierarchical", "flat", "vector"]
Propagation = Literal["hybrid", "spatial", "spectral"]
Pooling = Literal["mixed", "coarsening", "differentiable", "edge"]
Sampling = Literal["full", "sampled"]
Attention = Literal["objectives", "plain", "none"]
Clocks = Literal["oracle", "learned"]
Policy = Literal["options", "prices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """Settings of a network; a checkpoint keeps them, so that it is rebuilt as it was trained."""

    hierarchy: Hierarchy = "hierarchical"
    """`flat`: one graph of all vertices, no pooling (section 4.3 of the paper); `vector`: no graph, one flat vector."""
    propagation: Propagation = "hybrid"
    """Spatial attention and spectral convolution with a learned gate, or one of them."""
    pooling: Pooling = "mixed"
    """How devices become nodes; `mixed` weighs all three by a learned gate."""
    sampling: Sampling = "full"
    """`sampled`: node, layer and subgraph sampling when the state is recomputed."""
    attention: Attention = "objectives"
    """At the top: heads tied to time, energy and fairness, heads without a tie, or a plain mean."""
    policy: Policy = "options"
    """`options`: a probability for every way of running a job; `prices`: what the exact optimiser pays for what."""
    hidden: int = 48
    """Width of every embedding; a multiple of `heads`."""
    heads: int = 6
    """Attention heads; a multiple of 3: one third each for time, energy and fairness."""
    device_layers: int = 2
    """Propagation layers between the devices of a node."""
    fabric_layers: int = 1
    """Propagation layers between the nodes of a group and their switch."""
    task_layers: int = 2
    """Propagation layers along dependencies."""
    top_layers: int = 2
    """Attention layers between partitions, queues, constraints and the job."""
    chebyshev_order: int = 3
    """Number of Chebyshev polynomials in the spectral convolution."""
    pooled_vertices: int = 2
    """Vertices into which differentiable pooling brings the devices of a node."""
    quantiles: int = 16
    """Quantiles of the critics' return."""
    sampling_rate: float = 0.12
    """Share of the nodes that is kept when `sampled`."""
    vector_partitions: int = 8
    """Partitions, and clusters, for which a `vector` network has room."""

    def __post_init__(self) -> None:
        bounds = {
            "hidden": (6, 1024),
            "heads": (3, 48),
            "device_layers": (1, 8),
            "fabric_layers": (1, 4),
            "task_layers": (0, 8),
            "top_layers": (1, 8),
            "chebyshev_order": (1, 8),
            "pooled_vertices": (1, 16),
            "quantiles": (1, 256),
            "sampling_rate": (0.01, 1.0),
            "vector_partitions": (1, 64),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"network setting {name} is {shown(value)}, it must be between {low} and {high}")
        if self.hierarchy != "hierarchical" and self.sampling == "sampled":
            raise ConfigError(
                f'network settings hierarchy="{self.hierarchy}" and sampling="sampled" do not go together: a sample of '
                "the nodes stands for the others through the levels above them"
            )
        if self.hierarchy == "vector" and self.attention != "none":
            raise ConfigError(
                f'network settings hierarchy="vector" and attention="{self.attention}" do not go together: a flat '
                'vector has no vertices to look at; attention="none" is needed'
            )
        if self.heads % 3 or self.hidden % self.heads:
            raise ConfigError(
                f"network settings hidden={self.hidden} and heads={self.heads}: heads must be a multiple of 3 and "
                "divide hidden"
            )

    def document(self) -> dict[str, Any]:
        """Return the settings as they are written to JSON."""
        return asdict(self)

    @classmethod
    def parse(cls, document: object) -> "NetworkConfig":
        """Return the settings of a JSON document; missing ones have their default.

        Raises:
            ConfigError: it is no table, or has an unknown key, a value of another type or one outside its bound.
        """
        if not isinstance(document, dict):
            raise ConfigError("network settings are no table")
        known = {item.name: item for item in fields(cls)}
        for key, value in document.items():
            if key not in known:
                raise ConfigError(f"network setting {shown(key)} does not exist; known: {', '.join(known)}")
            kind: Any = known[key].type
            choices = get_args(kind)
            if choices and value not in choices:
                raise ConfigError(f"network setting {key} is {shown(value)}, allowed: {', '.join(choices)}")
            if not choices and (isinstance(value, bool) or not isinstance(value, kind)):
                raise ConfigError(f"network setting {key} is {shown(value)}, {kind.__name__} is needed")
        return cls(**document)
