"""What makes results, fits, benchmarks and shipped tables; beside the package and no part of the install."""
