"""Measure the estimates of rates, memory, scaling and run times on public data, beside simpler estimators.

python -m research.estimates --data ../shared/data [--part NAME] [--fit] [--write docs/explanation/estimates.md]
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from research.estimates.fitting import fit_kernels
from research.estimates.tables import PARTS, replaced_tables
from slurm_energy.errors import SlurmEnergyError
from slurm_energy.estimation.rates import KERNELS


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; with --write put them into a page, with --fit fit the kernels' scales first."""
    parser = argparse.ArgumentParser(prog="python -m research.estimates", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder of data sets")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="measure this part only")
    parser.add_argument("--fit", action="store_true", help="fit the kernels' scales and write them into the package")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the tables into this page")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        if given.fit:
            KERNELS.write_text(json.dumps(fit_kernels(given.data), indent=1) + "\n", encoding="utf-8")
        tables: dict[str, str] = {}
        for name in given.part or PARTS:
            tables[name] = PARTS[name](given.data)
            sys.stdout.write(f"## {name}\n\n{tables[name]}\n\n")
            sys.stdout.flush()
        if given.write is not None:
            page = replaced_tables(given.write.read_text(encoding="utf-8"), tables)
            given.write.write_text(page, encoding="utf-8")
    except SlurmEnergyError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
