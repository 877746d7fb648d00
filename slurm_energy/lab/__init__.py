"""A real Slurm cluster on one machine with simulated GPUs."""
