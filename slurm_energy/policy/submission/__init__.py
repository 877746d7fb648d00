"""Policies at the moment of submission: what a rule sees of a snapshot, and what its choice means to Slurm."""
