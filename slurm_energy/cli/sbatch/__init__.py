"""What energy-sbatch does around sbatch: run it, take its options, show what would be decided."""
