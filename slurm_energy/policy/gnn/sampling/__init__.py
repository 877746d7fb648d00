"""Which part of the graph is worked out anew: node, layer and subgraph sampling, and the plan that joins them."""
