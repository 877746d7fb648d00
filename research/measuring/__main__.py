"""Print figures of the detector and of the trial ladder: `python -m research.measuring`."""

import argparse

from research.measuring.detector import print_tables
from research.measuring.ladder import print_ladder


def main() -> None:
    """Read the options and print."""
    parser = argparse.ArgumentParser(prog="python -m research.measuring", description=__doc__)
    parser.add_argument("--cases", type=int, default=300, help="cases in each group of the detector")
    parser.add_argument("--window", type=float, default=60.0, help="seconds of one window")
    parser.add_argument("--runs", type=int, default=200, help="runs of each program with the trial ladder")
    options = parser.parse_args()
    print_tables(options.cases, options.window)
    print_ladder(options.runs)


if __name__ == "__main__":
    main()
