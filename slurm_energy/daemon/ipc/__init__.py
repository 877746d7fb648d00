"""How the daemon and its child processes speak with each other."""
