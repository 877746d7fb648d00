"""What it is worth to decide waiting jobs again."""
