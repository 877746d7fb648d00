"""Figures for Prometheus: counted by the answering process, served by a child of its own."""
