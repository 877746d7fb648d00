"""The cluster and its queue as one heterogeneous graph: schema, features, building and updating in place."""
