"""The twin as a `ClusterSnapshot`, which is what a policy sees of a real Slurm."""
