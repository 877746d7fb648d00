"""Messages between plugin, daemon, nodes and people."""
