"""Jobs that wait: decided again when the cluster has changed, and changed in Slurm where their users left it open."""
