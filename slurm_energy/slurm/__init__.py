"""The door to Slurm: clients, pure converters, sbatch options, hook environment."""
