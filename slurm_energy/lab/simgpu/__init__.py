"""Simulated GPUs: a library with NVML's own symbols, the state behind it, and a workload that loads the GPUs."""
