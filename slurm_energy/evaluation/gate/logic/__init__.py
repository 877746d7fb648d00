"""Promises of the guard, its masks and costs, proved over the code that runs."""
