"""Measurements that start whole processes: a daemon of its own, and workers with a number of threads of their own."""
