"""What jobs will need, from what measured runs needed."""
