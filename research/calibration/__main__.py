"""Fit what users do not fit again, print how well it fits, compare it with the coefficients that are kept.

python -m research.calibration --data ../shared/data [--check] [--part NAME] [--output FOLDER]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from research.calibration.activity import fit_activity
from research.calibration.host import fit_host
from research.calibration.power_limit import fit_power_limit
from research.calibration.scaling import fit_scaling
from research.calibration.sharing import fit_sharing
from slurm_energy.cli.calibrate import error_table, is_confirmed, progress_bar, say_differences
from slurm_energy.energy_model import coefficients
from slurm_energy.energy_model.calibration.parts import Part, fit_parts, write_fits
from slurm_energy.errors import SlurmEnergyError

FOLDER = Path(__file__).parent
ENERGY_MODEL = coefficients.FOLDER
PARTS = (
    Part("activity", fit_activity, FOLDER),
    Part("power_limit", fit_power_limit, FOLDER),
    Part("scaling", fit_scaling, FOLDER),
    Part("sharing", fit_sharing, FOLDER),
    Part("host", fit_host, ENERGY_MODEL),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit and print; return 1 when --check finds a difference, or something could not be fitted."""
    parser = argparse.ArgumentParser(prog="python -m research.calibration", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder of data sets")
    parser.add_argument("--part", action="append", default=[], metavar="NAME", help="fit this part only")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write the coefficients here")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 when coefficients moved, or an error is beyond its bound"
    )
    given = parser.parse_args(arguments)
    try:
        with progress_bar() as tell:
            fits = fit_parts(PARTS, given.data, given.part, tell)
        if given.output is not None:
            write_fits(fits, given.output)
    except SlurmEnergyError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    Console().print(error_table(fits))
    say_differences(fits)
    return 1 if given.check and not all(is_confirmed(fit) for fit in fits) else 0


if __name__ == "__main__":
    sys.exit(main())
