"""The GPU of all jobs, an A100: peaks of the vendor's sheet, and what public measurements reach of them."""

import math

NAME = "NVIDIA A100-SXM4-80GB"
CAPABILITY = (8, 0)
MULTIPROCESSORS = 108
THREADS_PER_MULTIPROCESSOR = 2_048
MEMORY_BYTES = 84_990_000_000
MEMORY_GB_S = 2039.0
HALF_TFLOPS = 312.0
BEST = 0.87  # Of the peak that the best matmul reaches.


def memory_ns(size: float) -> float:
    """To read or write so many bytes: small kernels do not reach the bandwidth of large ones."""
    megabytes = max(size / 1e6, 1.0)
    share = min(0.6 + 0.15 * math.log10(megabytes), 0.9)
    return size / (MEMORY_GB_S * share)
