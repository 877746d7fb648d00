"""What a rank holds of the graph, and the exchange of halo vertices while it computes on its own.

A halo vertex is one of another rank that an edge into an own vertex comes from. Own vertices that have none are
interior and stand first: their rows are complete before anything has arrived. A transfer is started before the rows of
the own vertices are computed and waited for after them, in both directions.

With `stale` halos an epoch computes with the halos, and with the gradients for them, that were sent an epoch before
(PipeGCN, Wan et al., ICLR 2022, algorithm 1), smoothed as its section 3.4 says: kept = smoothing * kept + (1 -
smoothing) * received. Departure: the first epoch, and the first after parts have moved, waits for its halos.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd import Function

from slurm_energy.errors import TrainingError
from slurm_energy.hyperscale.lost_ranks import talking
from slurm_energy.hyperscale.part_files import HeldParts


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGraph:
    """A rank's vertices and the edges into them, in its own numbers: interior, boundary, then halo vertices."""

    vertices: Tensor
    """Numbers in the file of parts, interior ones first, [num_own]."""
    num_interior: int
    halo: Tensor
    """Numbers in the file of parts, by the rank that owns them, [num_halo]."""
    halo_counts: tuple[int, ...]
    """How many come from each rank."""
    source: Tensor
    """Of each edge, sorted by target, below num_own + num_halo, [num_edges]."""
    target: Tensor
    """Below num_own, [num_edges]."""

    @property
    def num_own(self) -> int:
        """How many vertices the rank owns."""
        return len(self.vertices)


def local_graph(
    holding: HeldParts, vertex_offsets: Sequence[int], rank_of_part: Sequence[int]
) -> tuple[LocalGraph, Tensor]:
    """Return the graph of a rank's parts, and the rows of the holding in the order of its vertices.

    Args:
        holding: The rank's parts.
        vertex_offsets: First vertex of each part, then their number.
        rank_of_part: The rank of every part.
    """
    own, (source, target) = holding.vertices, holding.edge_index
    is_own = torch.isin(source, own, assume_unique=False)
    row = torch.searchsorted(own, target)
    is_boundary = torch.zeros(len(own), dtype=torch.bool)
    is_boundary[row[~is_own]] = True
    order = torch.argsort(is_boundary.to(torch.int8), stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    outside = torch.unique(source[~is_own])
    part = torch.searchsorted(torch.tensor(vertex_offsets), outside, right=True) - 1
    rank = torch.tensor(rank_of_part)[part]
    halo = outside[torch.argsort(rank, stable=True)]
    counts = torch.bincount(rank, minlength=max(rank_of_part) + 1)
    sorted_halo, place_of_halo = torch.sort(halo)
    local_source = torch.empty_like(source)
    local_source[is_own] = place[torch.searchsorted(own, source[is_own])]
    local_source[~is_own] = len(own) + place_of_halo[torch.searchsorted(sorted_halo, source[~is_own])]
    local_target = place[row]
    by_target = torch.argsort(local_target, stable=True)
    graph = LocalGraph(
        vertices=own[order],
        num_interior=len(own) - int(is_boundary.sum()),
        halo=halo,
        halo_counts=tuple(counts.tolist()),
        source=local_source[by_target],
        target=local_target[by_target],
    )
    return graph, order


@dataclass(slots=True)
class Arriving:
    """For how long this rank has waited for others."""

    seconds: float = 0.0
    sent_bytes: int = 0


class Routes:
    """Which own rows go to which rank, and from whom halo rows come."""

    def __init__(self, graph: LocalGraph, ranks: int, device: torch.device) -> None:
        """Agree with the other ranks about the rows: every rank must construct this at the same time."""
        self.receive_counts = list(graph.halo_counts) + [0] * (ranks - len(graph.halo_counts))
        self.waiting = Arriving()
        self.is_alone = ranks == 1
        if self.is_alone:
            self.send_counts, self.rows = [0], torch.empty(0, dtype=torch.int64, device=device)
            return
        counts = torch.empty(ranks, dtype=torch.int64)
        with talking():
            distributed.all_to_all_single(counts, torch.tensor(self.receive_counts))
            self.send_counts = counts.tolist()
            wanted = torch.empty(sum(self.send_counts), dtype=torch.int64)
            distributed.all_to_all_single(wanted, graph.halo, self.send_counts, self.receive_counts)
        vertices, place = torch.sort(graph.vertices)
        self.rows = place[torch.searchsorted(vertices, wanted)].to(device)

    def start(self, rows: Tensor, *, reverse: bool = False) -> "Transfer":
        """Start to send rows to their ranks, or with `reverse` halo rows back to their owners."""
        send, receive = self.send_counts, self.receive_counts
        if reverse:
            send, receive = receive, send
        rows = rows.contiguous()
        received = rows.new_empty((sum(receive), *rows.shape[1:]))
        if self.is_alone:
            return Transfer(received, rows, lambda: None, self.waiting)
        self.waiting.sent_bytes += rows.numel() * rows.element_size()
        with talking():
            work = distributed.all_to_all_single(received, rows, receive, send, async_op=True)
        assert work is not None
        return Transfer(received, rows, work.wait, self.waiting)


class Transfer:
    """One transfer under way; what is sent must stay until it has ended."""

    def __init__(self, received: Tensor, sent: Tensor, wait: Callable[[], object], waiting: Arriving) -> None:
        """Store what is under way."""
        self._received = received
        self._sent: Tensor | None = sent
        self._wait = wait
        self._waiting = waiting

    def result(self) -> Tensor:
        """Wait for the end and return what came."""
        if self._sent is not None:
            if self._received.is_cuda:  # or its own kernels would count as waiting
                torch.cuda.current_stream().synchronize()
            began = time.perf_counter()
            with talking():
                self._wait()
            self._waiting.seconds += time.perf_counter() - began
            self._sent = None
        return self._received


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """Compute with what was sent an epoch before."""

    smoothing: float = 0.0
    """Share of what is kept of earlier epochs' rows, 0 to below 1."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.smoothing < 1.0:
            raise TrainingError(f"smoothing of stale halos is {self.smoothing:g}, it must be 0 to below 1")


class Flow:
    """One direction of a channel: what arrives is this epoch's, or with stale halos that of the epoch before."""

    def __init__(self, routes: Routes, stale: Stale | None, *, reverse: bool) -> None:
        """Store how rows travel."""
        self._routes = routes
        self._stale = stale
        self._reverse = reverse
        self._under_way: Transfer | None = None
        self._kept: Tensor | None = None

    def start(self, rows: Tensor) -> None:
        """Start to send rows."""
        earlier, self._under_way = self._under_way, self._routes.start(rows, reverse=self._reverse)
        if self._stale is None:
            return
        received = (earlier or self._under_way).result()
        if self._kept is None or earlier is None:
            self._kept = received
        else:
            self._kept = torch.lerp(received, self._kept, self._stale.smoothing)

    def finish(self) -> Tensor:
        """Return the rows to compute with."""
        if self._stale is not None:
            assert self._kept is not None
            return self._kept
        assert self._under_way is not None
        received, self._under_way = self._under_way.result(), None
        return received

    def drain(self) -> None:
        """Wait for what is under way and forget it."""
        if self._under_way is not None:
            self._under_way.result()
        self._under_way = self._kept = None


class Channel:
    """The exchange of one layer: rows of boundary vertices one way, gradients of halo rows the other way."""

    def __init__(self, routes: Routes, stale: Stale | None = None) -> None:
        """Store how rows travel; exact halos where `stale` is None."""
        self.routes = routes
        self.values = Flow(routes, stale, reverse=False)
        self.gradients = Flow(routes, stale, reverse=True)

    def drain(self) -> None:
        """Wait for what is under way and forget it."""
        self.values.drain()
        self.gradients.drain()


class _Post(Function):
    """Starts the transfer of boundary rows; backward adds what came back for them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, channel: Channel) -> Tensor:
        """Return a tensor without rows that ties the transfer to its end."""
        ctx.channel, ctx.shape = channel, values.shape
        channel.values.start(values.index_select(0, channel.routes.rows))
        return values.new_empty((0, *values.shape[1:]))

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        """Return the gradient that the other ranks computed."""
        received = ctx.channel.gradients.finish()
        return received.new_zeros(ctx.shape).index_add_(0, ctx.channel.routes.rows, received), None


class _Wait(Function):
    """Ends the transfer; backward starts the one of the gradients."""

    @staticmethod
    def forward(ctx: Any, tie: Tensor, channel: Channel) -> Tensor:
        """Return the halo rows."""
        ctx.channel, ctx.tie_shape = channel, tie.shape
        return channel.values.finish().detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Send the gradients of halo rows to their owners."""
        ctx.channel.gradients.start(gradients[0])
        return gradients[0].new_zeros(ctx.tie_shape), None


def post(values: Tensor, channel: Channel) -> Tensor:
    """Start to send the boundary rows of own values [num_own, ...]; hand the result to `wait`."""
    tie: Tensor = _Post.apply(values, channel)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return tie


def wait(tie: Tensor, channel: Channel) -> Tensor:
    """Return the halo rows [num_halo, ...]; what is computed between `post` and this overlaps with the transfer."""
    rows: Tensor = _Wait.apply(tie, channel)  # type: ignore[no-untyped-call]  # likewise
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The edges of a local graph as weighted matrices, with their transposes for the way back."""

    own: Tensor
    """[num_own, num_own], CSR."""
    halo: Tensor
    """[num_boundary, num_halo], CSR: interior rows have no halo vertex."""
    own_back: Tensor
    halo_back: Tensor


def matrices(graph: LocalGraph, source: Tensor, target: Tensor, weight: Tensor) -> Weights:
    """Return the weighted edges of a local graph as matrices."""
    num_own, num_halo, first = graph.num_own, len(graph.halo), graph.num_interior
    is_own = source < num_own
    rows, columns, values = target[is_own], source[is_own], weight[is_own]
    halo_rows, halo_columns, halo_values = target[~is_own] - first, source[~is_own] - num_own, weight[~is_own]
    return Weights(
        own=sparse_rows(rows, columns, values, (num_own, num_own)),
        own_back=sparse_rows(columns, rows, values, (num_own, num_own)),
        halo=sparse_rows(halo_rows, halo_columns, halo_values, (num_own - first, num_halo)),
        halo_back=sparse_rows(halo_columns, halo_rows, halo_values, (num_halo, num_own - first)),
    )


def sparse_rows(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a CSR matrix of entries in any order; two at one place add up."""
    order = torch.argsort(rows * max(1, shape[1]) + columns)
    starts = torch.zeros(shape[0] + 1, dtype=torch.int64, device=rows.device)
    starts[1:] = torch.cumsum(torch.bincount(rows, minlength=shape[0]), 0)
    return sparse(starts.int(), columns[order], values[order], shape[1])


def sparse(starts: Tensor, columns: Tensor, values: Tensor, width: int) -> Tensor:
    """Return the CSR matrix of entries in the order of their rows."""
    shape = (len(starts) - 1, width)
    matrix: Tensor = torch.sparse_csr_tensor(starts, columns.int(), values, shape, check_invariants=False)
    return matrix


class _Aggregate(Function):
    """Weighted sums over neighbours, own ones while the halo is under way; nothing is kept for the way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Weights, channel: Channel, first: int) -> Tensor:
        """Return the sums of all own vertices, [num_own, channels]."""
        ctx.weights, ctx.channel, ctx.first = weights, channel, first
        channel.values.start(values.index_select(0, channel.routes.rows))
        sums = weights.own @ values
        halo = channel.values.finish()
        if len(halo):
            sums[first:] += weights.halo @ halo
        return sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of own values, that from other ranks added."""
        (gradient,), channel, weights = gradients, ctx.channel, ctx.weights
        channel.gradients.start(weights.halo_back @ gradient[ctx.first :])
        back = weights.own_back @ gradient
        back.index_add_(0, channel.routes.rows, channel.gradients.finish())
        return back, None, None, None


def aggregate(values: Tensor, weights: Weights, channel: Channel, graph: LocalGraph) -> Tensor:
    """Return the weighted sums over the neighbours of own vertices, [num_own, channels]."""
    sums: Tensor = _Aggregate.apply(values, weights, channel, graph.num_interior)  # type: ignore[no-untyped-call]
    return sums
