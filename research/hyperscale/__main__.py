"""Measure training over unequal devices, and write the page: `python -m research.hyperscale`.

With --keep FILE what was measured is kept there, and a page can be written from it again without measuring.
"""

import argparse
import json
from pathlib import Path

from research.hyperscale.training_tables import GRAPHS, SPEEDS, measure, tables

PAGE = Path("docs/reference/hyperscale.md")
BEGIN, END = "<!-- training begins -->", "<!-- training ends -->"


def main() -> None:
    """Read the options, measure, and write."""
    parser = argparse.ArgumentParser(prog="python -m research.hyperscale", description=__doc__)
    parser.add_argument("--vertices", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learned-epochs", type=int, default=40)
    parser.add_argument("--graph", action="append", choices=list(GRAPHS), help="these alone")
    parser.add_argument("--keep", type=Path, default=Path("build/hyperscale-training.json"))
    parser.add_argument("--write-only", action="store_true", help="write the page from what is kept")
    options = parser.parse_args()
    document = json.loads(options.keep.read_text()) if options.keep.exists() else {}
    for kind in () if options.write_only else options.graph or GRAPHS:
        amounts = {"rounds": options.rounds, "epochs": options.epochs, "learned_epochs": options.learned_epochs}
        for found in measure(kind, options.vertices, **amounts):
            document[kind] = found
            options.keep.write_text(json.dumps(document))
    write(tables(document))


def write(text: str) -> None:
    """Put the training's part into the page, between its marks."""
    page = PAGE.read_text() if PAGE.exists() else f"# Training over unequal devices, measured\n\n{BEGIN}\n{END}\n"
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    speeds = ", ".join(f"{one:g}" for one in SPEEDS)
    head = (
        f"GCN of three layers and 64 channels on three workers, each a process held to {speeds} of one CPU by a\n"
        "quota (`python -m research.hyperscale`). Set-ups ran in turn in the same processes; a figure is the median\n"
        "of the rounds, a ratio that of one round with their range. `Only` changes one thing of the traditional\n"
        "set-up. There is no energy counter on that machine: what an epoch costs beside idle power goes with its CPU\n"
        "seconds. All workers share one machine, so a transfer is a copy through memory and costs CPU time: that\n"
        "stale halos alone gain nothing here says little of a network."
    )
    PAGE.write_text(f"{before}{BEGIN}\n## Training\n\n{head}\n\n{text}{END}{after}")


if __name__ == "__main__":
    main()
