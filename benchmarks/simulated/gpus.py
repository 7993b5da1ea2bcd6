"""GPUs, and how long kernels take on them: the longest of computing, moving bytes, and starting."""

from __future__ import annotations

import math
from dataclasses import dataclass

SMALLEST_KERNEL_NS = 2_000
"""Median kernel of a decode-like trace on an H100."""
MATMUL_SHARE = 0.75
"""Of the best matmul of the GPU that those of real trainings reach."""
PLAIN_SHARE = 0.8
"""The same without Tensor Cores."""
TILE = 128
"""Rows and columns of the common tile of matmul kernels."""


@dataclass(frozen=True)
class Gpu:
    """Rates of a GPU and of the host that drives it.

    Peaks are of vendors' sheets, dense; `best` is what the best matmul reaches in public measurements.
    """

    name: str
    capability: tuple[int, int]
    sms: int
    memory_bytes: int
    fp64: float
    """TFLOP/s, like the next."""
    fp32: float
    tf32: float
    half: float
    best: float
    memory_gb_s: float
    pinned_gb_s: float
    pageable_gb_s: float
    collective_gb_s: float
    """Bus bandwidth of large all-reduces over NVLink: 235 measured on A100, 367 without NVLS on H200."""
    network_gb_s: float
    """The same between machines: 90 % of one NIC a GPU (100, 200 and 400 Gb/s)."""
    gap_ns: int
    """Between two queued kernels of a stream: the median in real traces of this GPU."""
    host: float
    """How long its host takes for an op, as a multiple of the A100's."""

    @property
    def has_tf32(self) -> bool:
        """Whether its Tensor Cores take fp32."""
        return self.capability >= (8, 0)

    def peak(self, kind: str) -> float:
        """TFLOP/s of a kind of arithmetic: fp64, fp32, tf32 or half."""
        return {"fp64": self.fp64, "fp32": self.fp32, "tf32": self.tf32 or self.fp32, "half": self.half}[kind]

    def memory_ns(self, size: float) -> float:
        """To read or write so many bytes: small kernels do not reach the bandwidth of large ones."""
        megabytes = max(size / 1e6, 1.0)
        share = min(0.6 + 0.15 * math.log10(megabytes), 0.9)
        return size / (self.memory_gb_s * share)

    def kernel_ns(self, flops: float, size: float, kind: str = "fp32", efficiency: float = 1.0) -> int:
        """Of a kernel with so many operations and bytes."""
        computing = flops / (self.peak(kind) * efficiency) / 1e3
        return round(max(computing, self.memory_ns(size), SMALLEST_KERNEL_NS))

    def matmul_ns(self, m: int, n: int, k: int, batch: int, size: int, kind: str, penalty: float = 1.0) -> int:
        """Of a matmul. `size` is bytes per element; `penalty` what misaligned operands leave of its rate."""
        moved = float(batch * size * (m * k + k * n + m * n))
        rate = self.rate(kind, MATMUL_SHARE) * self.filled(m, n, k, batch) * penalty
        return self.kernel_ns(2.0 * batch * m * n * k, moved, kind, rate)

    def rate(self, kind: str, share: float) -> float:
        """Share of the peak that is reached: without Tensor Cores nearly all of it."""
        return PLAIN_SHARE if kind in ("fp32", "fp64") else self.best * share

    def filled(self, m: int, n: int, k: int, batch: int) -> float:
        """Share of the multiprocessors that tiles keep busy; long sums are split over several."""
        blocks = math.ceil(m / TILE) * math.ceil(n / TILE) * batch
        if blocks < self.sms:
            blocks *= min(max(k // 512, 1), self.sms // blocks)
        return blocks / (math.ceil(blocks / self.sms) * self.sms)

    def copy_ns(self, size: int, pinned: bool) -> int:
        """Between host and device. Small ones take what they take in real traces, 1 to 2 us."""
        return round(1_300 + size / (self.pinned_gb_s if pinned else self.pageable_gb_s))


# Pageable copies: 8.3 and 5.8 GB/s in ResNet-50 traces on a V100 class host, 25 to 60 % of pinned in general.
V100 = Gpu(
    "Tesla V100-SXM2-32GB",
    (7, 0),
    80,
    34_079_637_504,
    7.8,
    15.7,
    0.0,
    125.0,
    0.78,
    900.0,
    12.0,
    6.0,
    120.0,
    11.0,
    820,
    1.3,
)
A100 = Gpu(
    "NVIDIA A100-SXM4-80GB",
    (8, 0),
    108,
    84_990_000_000,
    9.7,
    19.5,
    156.0,
    312.0,
    0.87,
    2039.0,
    25.0,
    8.0,
    235.0,
    22.5,
    1_150,
    1.0,
)
H100 = Gpu(
    "NVIDIA H100 80GB HBM3",
    (9, 0),
    132,
    85_018_279_936,
    34.0,
    67.0,
    495.0,
    989.0,
    0.80,
    3350.0,
    55.0,
    14.0,
    360.0,
    45.0,
    1_700,
    0.8,
)
