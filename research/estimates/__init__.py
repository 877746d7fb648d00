"""The estimates of rates, memory, scaling and run times measured on public data."""
