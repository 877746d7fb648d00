"""Clocks tried while a job runs: bursts of readings, an answer from them, and the clock set and put back."""
