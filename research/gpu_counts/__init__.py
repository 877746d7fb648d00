"""What the number of GPUs is worth as a lever, in the simulated cluster."""
