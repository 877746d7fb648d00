"""Makers of the tables beside the shipped worlds; run by `python -m research.worlds`."""
