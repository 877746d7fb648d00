"""The hierarchical graph network: what is served, and in `ablation` what only studies use; needs torch."""
