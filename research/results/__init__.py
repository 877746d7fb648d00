"""The results page: policies on fixed scenarios, with intervals, bounds and goals; docs/reference/results.md."""
