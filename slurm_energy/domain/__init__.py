"""Frozen values of the field: jobs, clusters, decisions, energy. Standard library only."""
