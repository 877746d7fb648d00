"""Graph networks trained over unequal GPUs: read, partition, fuse, allocate, train."""
