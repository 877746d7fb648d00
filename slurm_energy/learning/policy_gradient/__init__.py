"""Actor-critic policy gradient with generalised advantages and a clipped surrogate."""
