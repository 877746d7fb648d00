"""A job's script understood: syntax trees of shell and Python to explicit features. Nothing of it is run."""
