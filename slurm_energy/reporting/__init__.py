"""Tables, JSON and CSV for people."""
