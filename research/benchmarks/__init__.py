"""Measurements of what a person or Slurm waits for; run by `make bench`, never by the tests."""
