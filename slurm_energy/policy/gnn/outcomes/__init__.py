"""The network of option outcomes: what lower clocks do to a job, from the graph of ended runs; needs numpy alone."""
