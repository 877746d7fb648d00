"""From the features of a vertex type to its first embedding."""

from torch import Tensor, nn

from slurm_energy.errors import ValueRangeError


class VertexEncoder(nn.Module):
    r"""Bring the features of one vertex type to the width of the network.

    .. math::
        \mathbf{h} = \mathrm{LayerNorm}(\mathbf{W}_2\,\mathrm{ReLU}(\mathbf{W}_1\mathbf{x} + \mathbf{b}_1)
            + \mathbf{b}_2)

    Each vertex type has an encoder of its own, since their features share neither number nor meaning.

    Args:
        features: Columns of the vertex type in `graph/schema.py`, at least 1.
        hidden: Width of the embedding, at least 1.

    Shapes:
        - **input:** features [vertices, features]; no vertices is allowed
        - **output:** embeddings [vertices, hidden]

    Raises:
        ValueRangeError: there are no features or no channels, or the input has another number of columns.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        if features < 1 or hidden < 1:
            raise ValueRangeError(f"encoder of {features} features to {hidden} channels: both must be at least 1")
        self.features = features
        self.hidden = hidden
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.LayerNorm(hidden)
        )

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        for layer in self.layers:
            if isinstance(layer, nn.Linear | nn.LayerNorm):
                layer.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings."""
        if x.shape[-1] != self.features:
            raise ValueRangeError(f"vertices have {x.shape[-1]} features, this encoder takes {self.features}")
        embedding: Tensor = self.layers(x)  # [vertices, hidden]
        return embedding

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.features}, {self.hidden})"
