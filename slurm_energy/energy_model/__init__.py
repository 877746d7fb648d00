"""Physics of a GPU: catalogue, power and runtime curves, the exact clock oracle."""
