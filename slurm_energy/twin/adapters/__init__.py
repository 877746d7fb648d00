"""Between a policy and the simulated cluster: what a policy sees, and how its answers are carried out."""
