"""The reference pages, from the commands' own help, the settings' own metadata and the graph's own feature list.

    python -m slurm_energy.cli.reference --write

A test fails when a page differs from what this renders.
"""

import argparse
import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from slurm_energy.cli.config import section_tables
from slurm_energy.cli.main import PROGRAM, cli
from slurm_energy.config import ENVIRONMENT_PREFIX, Config
from slurm_energy.graph import schema
from slurm_energy.store.schema import table_descriptions

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
DIRECTORY = Path("docs/reference")
_GENERATED = "<!-- Made by `python -m slurm_energy.cli.reference --write`: do not edit. -->"
_ENERGY_SBATCH = r"""## `energy-sbatch`

```
energy-sbatch [--energy-dry-run] [sbatch's own options] script [arguments]
```

Passes every option and argument to `sbatch` byte for byte, leaves its stdout (also with `--parsable`), its exit code
and its signals as they are, and prints one line on stderr that says what was decided. It submits once: when the
answer is unclear ("Socket timed out"), it advises to look with `squeue --me` and does not try again.

| option | meaning |
|---|---|
| `--energy=off` | decide nothing, change nothing |
| `--energy=observe` | decide and record, change nothing |
| `--energy=balanced` | save energy inside the site's slowdown bound |
| `--energy=saver` | save energy inside the site's larger slowdown bound |
| `--energy-max-slowdown=PCT` | the job may take at most so many per cent longer |
| `--energy-start-before=TIME` | the job may [begin later](../how-to/later-start.md), by then, where energy is cheaper |
| `--energy-deadline=TIME` | the job should have ended by then, in the forms of sbatch's `--deadline` |
| `--energy-gpus=COUNTS` | the job may run with [these numbers of GPUs](../how-to/gpu-count.md): `2-8`, `2,4,8` |
| `--energy-quiet` | print no line |
| `--energy-trials=on\|off` | let lower clocks be tried for a minute each while the job runs, or not |
| `--energy-redecide=off` | keep what was decided at submission, however long the job waits |
| `--energy-open` | the named partition is a [preference](../how-to/open-partitions.md); `=off`: it is a condition |
| `--energy-clusters=LIST` | submit to [the cluster of these](../how-to/several-clusters.md) that costs the least |
| `--energy-data=SIZE@CLUSTER` | where the job's input lies: `200GB@a`, several with commas |
| `--energy-dry-run` | show what would be decided and submit nothing (this wrapper only) |

All but the last are options of `sbatch`, `srun` and `salloc` themselves where the site's SPANK plugin is loaded, also
in `#SBATCH` lines. Where it is not loaded, the wrapper leaves `--energy=balanced`, `--energy=saver`, `--energy-gpus`,
`--energy-open`, `--energy-quiet` and `--energy-trials=on` out and says so; a limit that could not be kept (`off`,
`observe`, a slowdown, a deadline, `--energy-trials=off`, `--energy-redecide=off`, `--energy-open=off`) is never
dropped: then nothing is submitted, unless the cluster has no energy plugin at all. `--energy-clusters` and
`--energy-data` are carried out by the wrapper alone; in `#SBATCH` lines sbatch must know them from the SPANK plugin.

Installed under the name `sbatch` in front of Slurm's own on `PATH`, it finds the real one.

Example: `energy-sbatch --energy=saver --gpus=2 --time=2:00:00 job.sh`
"""
_FREE_SECTIONS = {
    "gpu_types": 'Keys are GRES types as in gres.conf, values are catalogue names: `a100 = "a100-sxm4-80gb"`.',
    "gpu_power_limits_watts": "Keys are GRES types or catalogue names, values are W from 10 to 3000: `a100 = 500`. "
    "Give the limit in force, as `nvidia-smi -q -d POWER` shows it; of boards of one type that differ, the highest.",
}
"""What the keys and values of sections are whose keys are free."""


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
        "[there](../explanation/hierarchy.md#what-slurm-does-not-report).",
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


def command_page() -> str:
    """Return docs/reference/cli.md."""
    parts = [f"# Commands\n\n{_GENERATED}\n", _ENERGY_SBATCH]
    width: dict[str, Any] = {"max_content_width": 100, "terminal_width": 100}
    root = click.Context(cli, info_name=PROGRAM, **{**cli.context_settings, **width})
    for path, command in walk(cli, (PROGRAM,)):
        # Under the root, as people call it: click keeps the first help option that a command was asked for.
        below = click.Context(command, parent=root, info_name=" ".join(path[1:]), **width)
        context = root if command is cli else below
        parts.append(
            f"{'#' * min(4, len(path) + 1)} `{' '.join(path)}`\n\n```\n{command.get_help(context).rstrip()}\n```\n"
        )
    return "\n".join(parts)


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its words, groups before their members."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            if member is not None:
                yield from walk(member, (*path, name))


def settings_page() -> str:
    """Return docs/reference/configuration.md."""
    lines = [
        "# Settings",
        "",
        _GENERATED,
        "",
        "File: `$SLURM_ENERGY_CONFIG`, else `/etc/slurm-energy/slurm-energy.toml`.",
        f"Order: command-line option, environment variable (`{ENVIRONMENT_PREFIX}SECTION_KEY`), file, default.",
        "Unknown sections and keys are errors. `slurm-energy config show` prints each value and where it came from,",
        "`slurm-energy config check FILE` checks a file.",
    ]
    for table in section_tables(Config()):
        lines += ["", f"## `[{table.name}]`", "", table.help, ""]
        if not table.settings:
            lines.append(_FREE_SECTIONS[table.name])
            continue
        lines += ["| key | type | default | bounds | meaning |", "|---|---|---|---|---|"]
        lines += [
            f"| `{row.key}` | {row.type_name} | `{row.default_toml}` | {row.bounds} | {row.help.replace('|', '/')} |"
            for row in table.settings
        ]
    return "\n".join(lines) + "\n"


def database_page() -> str:
    """Return docs/reference/database.md."""
    lines = [
        "# Database",
        "",
        _GENERATED,
        "",
        "SQLite (the default, in WAL mode), PostgreSQL or MariaDB, by `store.url`. `slurm-energy database upgrade`",
        "makes or upgrades the tables; a database newer than the code is refused. The daemon is the only writer.",
        "",
        "An energy reading is known by cluster, job id, submit time, restart, node and GPU UUID, along the chain",
        "`job`, `node_energy`, `gpu_energy`: what is sent twice changes nothing. Times are Unix seconds (UTC),",
        "energies are joules.",
        "Energy that is not known is NULL with a reason, never 0.",
    ]
    for name, sentence, rows in table_descriptions():
        lines += ["", f"## `{name}`", "", sentence, "", "| column | type | |", "|---|---|---|"]
        lines += [f"| `{column}` | {kind} | {note} |" for column, kind, note in rows]
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": command_page,
    "configuration.md": settings_page,
    "database.md": database_page,
    "graph.md": partial(graph_page, _GENERATED),
}


def main(argv: list[str] | None = None) -> int:
    """Print the names of pages that are out of date, or write them; return 1 when some are and none were written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the pages")
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    options = parser.parse_args(argv)
    stale = []
    for name, page in PAGES.items():
        path, text = options.directory / name, page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if options.write:
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path} {'written' if options.write else 'is out of date'}")
    return 0 if options.write or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
