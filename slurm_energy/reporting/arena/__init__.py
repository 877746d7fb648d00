"""A comparison of policies as tables, JSON and HTML."""
