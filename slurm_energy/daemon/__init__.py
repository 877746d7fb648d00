"""The resident process that answers Slurm within a hard deadline."""
