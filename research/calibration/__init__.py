"""Fits to public data sets of what the product does not compute with; `slurm-energy calibrate` fits the rest."""
