"""Fits of the package's coefficients to measured data sets; needs numpy and scipy, which readers of them do not."""
