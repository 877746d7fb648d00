"""The page of the graph's vertices and edges, from the feature list and the sentences that stand in it."""

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType

from slurm_energy.graph import schema

_CONTAINED = {
    ("gpu", "in", "node"): "A device lies in its node.",
    ("node", "in", "partition"): "A node belongs to a partition, possibly to several.",
    ("switch", "in", "cluster"): "A switch is part of its cluster's network.",
    ("partition", "in", "cluster"): "A partition is part of its cluster.",
    ("constraint", "bounds", "cluster"): "A constraint holds for its cluster.",
}
"""What edges without features say."""
_SHARED = {
    ("switch", "trunk", "switch"): "Group of nodes, by its leaf switch, to a switch above it.",
}
"""What an edge says whose features are described with another one."""


def graph_page(generated: str) -> str:
    """Return docs/reference/graph.md.

    Args:
        generated: The line that says where the page is from.
    """
    sentences = _sentences(schema)
    names = {id(getattr(schema, name)): name for name in sentences}
    lines = [
        "# The graph",
        "",
        generated,
        "",
        f"Version of the feature list: **{schema.SCHEMA_VERSION}**. A checkpoint belongs to one version: its weights",
        "are columns of these tables. What the network makes of them: [network](network.md) and",
        "[hierarchy](../explanation/hierarchy.md).",
        "",
        "Every value is brought near [-1, 1] by its form. `linear`: value / scale. `log`: ln(1 + value / scale) / 4,",
        "for what spans decades and is not negative. `flag`: 0 or 1. What is unknown or not finite becomes 0; where 0",
        "could be taken for a value, a flag of the same vertex says that it is known. Results are cut to",
        f"[{-schema.LARGEST:g}, {schema.LARGEST:g}].",
        "",
        "The source says where a value comes from. What a cluster under Slurm does not tell is listed",
        "[there](../explanation/hierarchy.md#what-slurm-does-not-tell).",
        "",
        "## Vertices",
    ]
    for vertex, features in schema.VERTICES.items():
        lines += ["", f"### `{vertex}`", "", sentences[names[id(features)]], "", *_table(features)]
    lines += ["", "## Edges", "", "Source, kind, target."]
    for edge, features in schema.EDGES.items():
        if not features:
            continue
        sentence = _SHARED.get(edge) or sentences[names[id(features)]]
        lines += ["", f"### `{' '.join(edge)}`", "", sentence]
        first = next(other for other, columns in schema.EDGES.items() if columns is features)
        lines += ["", *_table(features)] if first == edge else ["", f"Features as of `{' '.join(first)}`."]
    lines += ["", "### Without features", "", "Each is exported backwards as well, as `rev_…`.", ""]
    lines += ["| edge | |", "|---|---|"]
    lines += [f"| `{' '.join(edge)}` | {_CONTAINED[edge]} |" for edge, features in schema.EDGES.items() if not features]
    lines += ["", "## Clocks", "", sentences["CLOCK"], "They are choices of an option, no vertices.", ""]
    return "\n".join([*lines, *_table(schema.CLOCK)]) + "\n"


def _table(features: tuple[schema.Feature, ...]) -> Iterator[str]:
    yield "| feature | unit | form | scale | source |"
    yield "|---|---|---|---:|---|"
    for one in features:
        yield f"| `{one.name}` | {one.unit} | {one.form} | {one.scale:,g} | {one.source.replace('|', '/')} |"


def _sentences(module: ModuleType) -> dict[str, str]:
    """Return the sentences that stand under the constants of a module, by name."""
    body = ast.parse(inspect.getsource(module)).body
    return {
        statement.targets[0].id: " ".join(below.value.value.split())
        for statement, below in pairwise(body)
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
