"""Workloads: read from files, made by generators with a seed, or drawn as they are needed."""
