"""A simulated Slurm GPU cluster: deterministic, event-driven, with its energy accounted to the last joule."""
