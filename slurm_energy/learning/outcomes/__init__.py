"""Training of the network of option outcomes (`policy.gnn.outcomes`) with torch-geometric, on randomised sites."""
