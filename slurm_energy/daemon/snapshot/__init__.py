"""The snapshot of the cluster: read from Slurm in a process of its own, kept up to date in the answering one."""
