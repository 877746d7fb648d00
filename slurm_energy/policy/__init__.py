"""From a job and a snapshot to a decision: no I/O, no clock, no Slurm."""
