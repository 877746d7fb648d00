"""Where requests come in: slurmctld, people and programs of this host, nodes."""
