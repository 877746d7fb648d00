"""Print figures of the detector and of the trial ladder: `python -m research.measuring`."""

import argparse

from research.measuring.detector import print_tables


def main() -> None:
    """Read the options and print."""
    parser = argparse.ArgumentParser(prog="python -m research.measuring", description=__doc__)
    parser.add_argument("--cases", type=int, default=300, help="cases in each group of the detector")
    parser.add_argument("--window", type=float, default=60.0, help="seconds of one window")
    options = parser.parse_args()
    print_tables(options.cases, options.window)


if __name__ == "__main__":
    main()
