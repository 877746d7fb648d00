"""Energy-aware scheduling for Slurm: ask once at submission, apply on the nodes, measure every joule."""

__version__ = "0.1.0"
