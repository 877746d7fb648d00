"""Learning prices: policy gradient on what each job really cost."""
