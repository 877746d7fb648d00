"""The hierarchical graph network; needs torch and torch_geometric, which nothing outside this folder imports."""
