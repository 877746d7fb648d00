"""The simulated cluster: jobs, places, events and what a run leaves."""
