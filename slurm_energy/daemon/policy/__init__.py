"""A learned policy in a process of its own, asked under a deadline."""
