"""What each lever of the installed product is worth in the simulated cluster, alone and together."""
