"""How fast decisions are and what memory they need, on a synthetic cluster: `slurm-energy bench`."""
