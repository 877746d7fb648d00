"""HyperScore: a candidate's value between 0 and 1 as points from 100 up, after HyperScale's section on its score."""

from math import exp, log

from slurm_energy.errors import ValueRangeError

BETA_RANGE = (4.0, 6.0)
KAPPA_RANGE = (1.5, 2.5)
MIDPOINT_BIAS = -log(2.0)


def hyperscore(value: float, *, beta: float = 5.0, gamma: float = MIDPOINT_BIAS, kappa: float = 2.0) -> float:
    """Return 100 (1 + sigma(beta ln V + gamma) ^ kappa), with sigma the logistic function.

    The paper prints 137.2 points for V = 0.95, beta 5, gamma -ln 2 and kappa 2. Its formula gives 107.8 there, and this
    function follows the formula: sigma(5 ln 0.95 - ln 2) = 0.279, and 100 (1 + 0.279 ^ 2) = 107.8. No value reaches
    more than 111.1 with these settings, for ln V is never above 0. Nor is the midpoint, where sigma is a half, at
    V = 0.5 as the paper's table says: it is at V = exp(ln 2 / beta) = 1.15, out of reach.

    Args:
        value: V, the fused value of the evaluation pipeline, above 0 and at most 1.
        beta: Gradient: how much more the best values count, 4 to 6.
        gamma: Bias; the paper's table gives -ln 2 alone, and any finite value from -2 to 2 is taken.
        kappa: Exponent, 1.5 to 2.5.

    Raises:
        ValueRangeError: one of them is out of its range.
    """
    bounds = (
        ("value", value, (0.0, 1.0)),
        ("beta", beta, BETA_RANGE),
        ("gamma", gamma, (-2.0, 2.0)),
        ("kappa", kappa, KAPPA_RANGE),
    )
    for name, given, (low, high) in bounds:
        if not low <= given <= high or (name == "value" and given == 0.0):
            raise ValueRangeError(f"{name} {given} of a HyperScore is not between {low:g} and {high:g}")
    sigma = 1.0 / (1.0 + exp(-(beta * log(value) + gamma)))
    return float(100.0 * (1.0 + sigma**kappa))
