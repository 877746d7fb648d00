"""Traces of programs whose slowdown is known, what the detector makes of them, and runs of the trial ladder."""
