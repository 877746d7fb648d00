"""Where the fits of the kernels begin: which similarities count, and about how much."""

from slurm_energy.estimation.gaussian_process import Kernel, Term, factor

RATES = """
2.0
1.0  same family
1.0  same family, near log_batch 2.0
0.15 same work
1.0  along log_batch
0.3  same family, along log_batch
0.7  same gpu_type
0.7  along log_tflops
0.7  along log_bandwidth
0.3  along log_tflops, same family
0.3  along log_bandwidth, same family
0.4  same gpu_type, same family
0.2  same gpu_type, same family, near log_batch 2.5
0.15 same gpu_type, near log_batch 2.5
0.08 same gpu_type, same work
1.0  along log_count
0.3  along log_count, same family
0.2  along several, same family
0.2  along several, same family, near log_batch 2.0
0.05 along several, same work
0.15 along several, same placement
0.15 along several, same placement, same family
0.15 along several, same placement, same family, near log_batch 2.0
0.15 along several, same gpu_type
0.15 along several, same gpu_type, same family
0.15 along several, same gpu_type, same placement
0.15 along several, same gpu_type, same placement, same family
0.05 along several, same gpu_type, same work
0.1  along several, same setting
0.1  along several, same setting, same family
0.1  along several, same setting, near log_batch 2.0
0.1  along several, same setting, same family, near log_batch 2.0
"""
NEIGHBOURS = """
0.5
0.5  along crowding
0.2  same gpu_type
0.35 same family
0.35 same other_family
0.2  same family, same other_family
0.05 same work
0.05 same other_work
0.15 same family, near log_batch 2.0
0.2  same other_family, near other_log_batch 2.0
0.1  same family, near log_batch 2.0, same other_family, near other_log_batch 2.0
0.05 same work, same other_work
0.15 same gpu_type, same family
0.15 same gpu_type, same other_family
0.1  same gpu_type, same family, same other_family
0.05 same gpu_type, same work
0.05 same gpu_type, same other_work
0.15 same gpu_type, same family, near log_batch 2.0
0.15 same gpu_type, same other_family, near other_log_batch 2.0
0.15 same gpu_type, same family, near log_batch 2.0, same other_family, near other_log_batch 2.0
"""
SCALING = """
2.0
0.7  along log_others
0.5  same kind
0.3  same kind, along log_others
0.5  same gpu_type
0.3  along log_batch
1.0  along across
0.5  along log_nodes
0.7  same kind, same family
0.1  same kind, same family, along log_others
0.3  same kind, same family, along across
0.2  same kind, same family, along log_nodes
0.3  same kind, same family, along log_batch
0.3  same kind, same work
0.1  same kind, same work, along log_others
0.2  same kind, same work, along across
"""
POWER = """
0.3
0.5  along log_limit
0.3  same gpu_type
0.3  same family
0.2  along log_batch
0.2  same family, near log_batch 2.0
0.1  same family, along log_batch
0.2  same family, along log_limit
0.1  same gpu_type, same family
0.1  same gpu_type, along log_batch
0.1  same gpu_type, same family, near log_batch 2.0
"""
NOISE = 0.05


def starting_kernel(text: str) -> Kernel:
    """Return the kernel of a table: a scale and the factors in each line."""
    terms = []
    for line in text.strip().splitlines():
        scale, _, factors = line.strip().partition(" ")
        parts = [factor(part.strip()) for part in factors.split(",") if part.strip()]
        terms.append(Term(scale=float(scale), factors=tuple(parts)))
    return Kernel(terms=tuple(terms), noise=NOISE)
