"""What a running program does again and again, seen in its power: the time of one repetition, and its slowdown."""
