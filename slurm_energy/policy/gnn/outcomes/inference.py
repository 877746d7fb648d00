"""The network of option outcomes in plain arrays: what is served; `learning.outcomes` trains the same in torch.

run      r = relu(W [run, its type])
name     n = relu(W mean(r) + b);  user u, family f = relu(W mean(n) + b);  site s = relu(W mean(u) + b)
option   o = relu(W option + W u + W f + W s + attention over measurements (GATv2, Brody et al. 2022))
clock    MLP [o, clock]: expected share of the slowdown of work that the clock alone paces, its median and upper
quantile; expected exponent of energy over the clock, with three quantiles
time     MLP o: three quantiles of the logarithm of the run time
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.predicted_clocks import PredictedClocks, PredictedWork
from slurm_energy.errors import CheckpointError
from slurm_energy.policy.gnn.outcomes.graph import (
    CLOCK_WIDTH,
    EDGE_WIDTH,
    KNOTS,
    OPTION_WIDTH,
    RUN_WIDTH,
    TYPE_WIDTH,
    Ask,
    FloatArray,
    IntArray,
    OptionGraph,
    RunGraph,
    clock_columns,
    option_graph,
)
from slurm_energy.policy.weights_file import check_weights

SHIPPED = Path(__file__).with_name("outcomes.safetensors")
MAX_BYTES = 5 * 1024 * 1024
HEADS, HIDDEN = 2, 32
CLOCK_OUTPUTS, TIME_OUTPUTS = 7, 3
SLOPE = 0.2
"""Of GATv2's activation below 0."""
_AT_ONCE = 128
_FORMAT = "slurm-energy outcomes 1"
_MIN_EXPONENT, _MAX_EXPONENT = -1.0, 3.0


def layer_shapes() -> dict[str, tuple[int, ...]]:
    """Return the tensors of the network with their shapes."""
    wide = {
        "run": (HIDDEN, RUN_WIDTH + TYPE_WIDTH),
        "name": (HIDDEN, HIDDEN),
        "user": (HIDDEN, HIDDEN),
        "family": (HIDDEN, HIDDEN),
        "site": (HIDDEN, HIDDEN),
        "option": (HIDDEN, OPTION_WIDTH),
        "clock_in": (HIDDEN, HIDDEN + CLOCK_WIDTH),
        "clock_out": (CLOCK_OUTPUTS, HIDDEN),
        "time_in": (HIDDEN, HIDDEN),
        "time_out": (TIME_OUTPUTS, HIDDEN),
        "measured.lin_l": (HIDDEN, HIDDEN),
        "measured.lin_r": (HIDDEN, OPTION_WIDTH),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in wide.items():
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = shape, shape[:1]
    for name in ("from_user", "from_family", "from_site"):
        shapes[f"{name}.weight"] = (HIDDEN, HIDDEN)
    return shapes | {
        "measured.att": (1, HEADS, HIDDEN // HEADS),
        "measured.lin_edge.weight": (HIDDEN, EDGE_WIDTH),
        "measured.bias": (HIDDEN,),
    }


class Outcomes(NamedTuple):
    """What is predicted of options, before it is brought to a job's clocks."""

    clock: FloatArray
    """[options, knots, CLOCK_OUTPUTS]: share of slowdown: mean, median, upper; exponent of energy: mean, quantiles."""
    time: FloatArray
    """[options, TIME_OUTPUTS]: ln of hours."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutcomeNetwork:
    """Weights that were loaded and checked."""

    weights: Mapping[str, FloatArray]
    version: str = "untrained"

    def predicted(self, graph: RunGraph, asks: Sequence[Ask]) -> list[PredictedWork]:
        """Return what is expected of jobs on all types of the graph."""
        found: list[PredictedWork] = []
        encoded = self.encoded(graph)
        for begin in range(0, len(asks), _AT_ONCE):
            options = option_graph(graph, asks[begin : begin + _AT_ONCE])
            clock = self.outcomes(encoded, options).clock
            for number, (own, alike) in enumerate(
                zip(options.own_runs.tolist(), options.alike_runs.tolist(), strict=True)
            ):
                first = number * len(graph.types)
                clocks = {name: curve_of(clock[first + index]) for index, name in enumerate(graph.types)}
                found.append(PredictedWork(clocks=clocks, own_runs=own, alike_runs=alike, version=self.version))
        return found

    def encoded(self, graph: RunGraph) -> "Encoded":
        """Return the vertices below the options."""
        joined = np.hstack([graph.run_x, graph.type_x[graph.run_type]]) if len(graph.run_x) else _none(RUN_WIDTH + 3)
        run = _relu(self._linear("run", joined))
        name = _relu(self._linear("name", _mean(run, graph.run_name, len(graph.names))))
        user = _relu(self._linear("user", _mean(name, graph.name_user, len(graph.users))))
        has_family = graph.name_family >= 0
        families = _mean(name[has_family], graph.name_family[has_family], len(graph.families))
        family = _relu(self._linear("family", families))
        site = _relu(self._linear("site", _mean(user, np.zeros(len(user), dtype=np.int64), 1)))
        return Encoded(run, user, family, site)

    def outcomes(self, encoded: "Encoded", options: OptionGraph) -> Outcomes:
        """Return what is predicted of options."""
        o = self._linear("option", options.option_x)
        o = o + _picked(encoded.user, options.option_user) @ self.weights["from_user.weight"].T
        o = o + _picked(encoded.family, options.option_family) @ self.weights["from_family.weight"].T
        o = o + encoded.site @ self.weights["from_site.weight"].T
        o = _relu(o + self._attention(encoded.run, options))
        columns = clock_columns()
        wide = np.concatenate(
            [
                np.broadcast_to(o[:, None], (len(o), len(columns), HIDDEN)),
                np.broadcast_to(columns, (len(o), *columns.shape)),
            ],
            axis=2,
        )
        clock = shaped_clock(self._linear("clock_out", _relu(self._linear("clock_in", wide))))
        return Outcomes(clock, shaped_time(self._linear("time_out", _relu(self._linear("time_in", o)))))

    def _attention(self, run: FloatArray, options: OptionGraph) -> FloatArray:
        """GATv2 over the measurements of each option; the bias alone where there are none."""
        count = len(options.option_x)
        source, target = options.run_option
        left = self._linear("measured.lin_l", run)
        right = self._linear("measured.lin_r", options.option_x)
        message = left[source].reshape(-1, HEADS, HIDDEN // HEADS)
        x = left[source] + right[target] + options.edge_x @ self.weights["measured.lin_edge.weight"].T
        x = np.maximum(x, np.float32(SLOPE) * x).reshape(-1, HEADS, HIDDEN // HEADS)
        score = (x * self.weights["measured.att"]).sum(axis=2)  # [edges, heads]
        highest = np.full((count, HEADS), -np.inf, dtype=np.float32)
        np.maximum.at(highest, target, score)
        weight = np.exp(score - highest[target])
        total = np.zeros((count, HEADS), dtype=np.float32)
        np.add.at(total, target, weight)
        summed = np.zeros((count, HEADS, HIDDEN // HEADS), dtype=np.float32)
        np.add.at(summed, target, message * (weight / (total[target] + 1e-16))[:, :, None])
        found: FloatArray = summed.reshape(count, HIDDEN) + self.weights["measured.bias"]
        return found

    def _linear(self, name: str, x: FloatArray) -> FloatArray:
        found: FloatArray = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return found


class Encoded(NamedTuple):
    """Vertices below the options, [., HIDDEN]."""

    run: FloatArray
    user: FloatArray
    family: FloatArray
    site: FloatArray


def shaped_clock(raw: NDArray[np.float32]) -> FloatArray:
    """Return outputs in their bounds: shares from 0 to 1, each quantile above the one before."""
    share = _sigmoid(raw[..., :2])
    upper = share[..., 1:] + (1.0 - share[..., 1:]) * _sigmoid(raw[..., 2:3])
    span = _MAX_EXPONENT - _MIN_EXPONENT
    mean = _MIN_EXPONENT + span * _sigmoid(raw[..., 3:4])
    low = _MIN_EXPONENT + span * _sigmoid(raw[..., 4:5])
    middle = low + (_MAX_EXPONENT - low) * _sigmoid(raw[..., 5:6])
    high = middle + (_MAX_EXPONENT - middle) * _sigmoid(raw[..., 6:7])
    return np.concatenate([share, upper, mean, low, middle, high], axis=-1).astype(np.float32)


def shaped_time(raw: NDArray[np.float32]) -> FloatArray:
    """Return quantiles of the logarithm of a run time in their order."""
    middle = 3.0 * raw[..., 1:2]
    low, high = middle - 3.0 * _softplus(raw[..., 0:1]), middle + 3.0 * _softplus(raw[..., 2:3])
    return np.concatenate([low, middle, high], axis=-1).astype(np.float32)


def curve_of(clock: FloatArray) -> PredictedClocks:
    """Return what is served of one option, [knots, CLOCK_OUTPUTS]: a lower clock is never faster."""
    knots = np.array(KNOTS)
    longest = 1.0 / knots - 1.0
    slowdown = np.maximum.accumulate((clock[:, 0] * longest)[::-1])[::-1]
    upper = np.maximum.accumulate((np.maximum(clock[:, 2], clock[:, 0]) * longest)[::-1])[::-1]
    energy = knots ** clock[:, 3] - 1.0
    return PredictedClocks(
        relative_clocks=(*KNOTS, 1.0),
        slowdown=(*slowdown.tolist(), 0.0),
        upper_slowdown=(*upper.tolist(), 0.0),
        energy_change=(*energy.tolist(), 0.0),
    )


def loaded_network(path: Path = SHIPPED) -> OutcomeNetwork:
    """Return the network of a file.

    Raises:
        CheckpointError: the file is missing, too large, or no network of this form.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise CheckpointError(f"{path} has more than {MAX_BYTES} bytes")
    try:
        check_weights(data)
        return _network_of(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path} {error}") from error


def _network_of(data: bytes) -> OutcomeNetwork:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    about = header.pop("__metadata__", {})
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise CheckpointError(f"is not of the form {_FORMAT!r}")
    shapes = layer_shapes()
    wrong = [name for name in {*header, *shapes} if tuple(header.get(name, {}).get("shape", ())) != shapes.get(name)]
    if wrong or any(one["dtype"] != "F32" for one in header.values()):
        raise CheckpointError(f"has tensor {min(wrong, default='?')[:64]!r} missing, unknown or in another shape")
    weights = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        weights[name] = np.frombuffer(data[8 + length + begin : 8 + length + end], "<f4").reshape(entry["shape"])
    version = about.get("version", "")
    return OutcomeNetwork(weights=weights, version=version[:64] if isinstance(version, str) else "")


def weights_file(weights: Mapping[str, FloatArray], about: Mapping[str, str]) -> bytes:
    """Return the bytes of a network's file, in the form of safetensors, with where it comes from."""
    header: dict[str, object] = {"__metadata__": {"format": _FORMAT, **about}}
    parts, end = [], 0
    for name in sorted(weights):
        part = np.ascontiguousarray(weights[name], dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(weights[name].shape), "data_offsets": [end, end + len(part)]}
        parts.append(part)
        end += len(part)
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def _mean(x: FloatArray, index: IntArray, count: int) -> FloatArray:
    total = np.zeros((count, x.shape[1]), dtype=np.float32)
    np.add.at(total, index, x)
    number = np.bincount(index, minlength=count).astype(np.float32)[:count]
    found: FloatArray = (total / np.maximum(number, np.float32(1.0))[:, None]).astype(np.float32)
    return found


def _picked(x: FloatArray, index: IntArray) -> FloatArray:
    """Return rows by index, zeros for -1."""
    padded: FloatArray = np.vstack([x, np.zeros((1, HIDDEN), dtype=np.float32)])[index]
    return padded


def _none(width: int) -> FloatArray:
    return np.zeros((0, width), dtype=np.float32)


def _relu(x: FloatArray) -> FloatArray:
    found: FloatArray = np.maximum(x, np.float32(0.0))
    return found


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = (1.0 / (1.0 + np.exp(-np.clip(x, -30.0, 30.0)))).astype(np.float32)
    return found


def _softplus(x: NDArray[np.float32]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.logaddexp(np.float32(0.0), x)
    return found
