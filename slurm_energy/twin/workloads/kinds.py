"""Kinds of work that the generators for clusters of mixed work make, and how much of each a job does.

Work is drawn in *reference seconds*: seconds on one reference device at its default clock. One unit of `training`,
`scientific` and `analytics` is one such second. One unit of `matrix-<n>` is one product of two n x n matrices in double
precision, 2 n^3 operations, and the reference device is taken to do 10^12 of them a second: a round figure under the
1.43 x 10^12 that NVIDIA states for a K40.
"""

MATRIX_SIDES = tuple(range(200, 2000, 200))
REFERENCE_FLOP_PER_SECOND = 1e12
TRAINING, SCIENTIFIC, ANALYTICS = "training", "scientific", "analytics"


def matrix_kind(side: int) -> str:
    """Return the kind of products of matrices with so many rows and columns."""
    return f"matrix-{side}"


def units_per_reference_second(kind: str) -> float:
    """Return how many units of a kind the reference device does in a second."""
    prefix, _, side = kind.partition("-")
    if prefix == "matrix" and side.isdecimal() and int(side) > 0:
        return REFERENCE_FLOP_PER_SECOND / (2.0 * int(side) ** 3)
    return 1.0
