"""Rates of GPUs that `hardware` does not know, by their family: how types compare, not how near a peak is."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from diagnose.trace.hardware import Peaks
from diagnose.trace.model import Device


class _Family(Struct, frozen=True):
    """Devices of one compute capability: operations per clock of a multiprocessor, and typical clock and memory."""

    name: str
    fp32: int
    fp16: int  # The lowest of the family that multiplies on Tensor Cores: GeForce, where there is one.
    clock_ghz: float
    memory_gbps: float  # Per multiprocessor, the lowest of those that `hardware` has.
    multiprocessors: int  # Of the smallest that trainings commonly use, where the recording does not say.


# CUDA programming guide, arithmetic throughput by compute capability, times two for multiply and add; Tensor Cores and
# clocks by the data sheets that `hardware` has: rate / (multiprocessors x clock).
_FAMILIES = {
    (7, 0): _Family("Volta", 128, 1024, 1.4, 11.2, 80),
    (7, 5): _Family("Turing", 128, 512, 1.5, 8.0, 40),
    (8, 0): _Family("Ampere (A100)", 128, 2048, 1.4, 14.4, 108),
    (8, 6): _Family("Ampere", 256, 512, 1.7, 8.3, 28),
    (8, 9): _Family("Ada", 256, 512, 2.4, 5.2, 24),
    (9, 0): _Family("Hopper", 256, 4096, 1.7, 17.5, 114),
    (10, 0): _Family("Blackwell (B200)", 256, 8192, 1.8, 54.0, 148),
    (12, 0): _Family("Blackwell", 256, 512, 2.4, 10.5, 48),
}
_NAMED_FAMILIES = (
    (r"V100|GV100|TITAN V\b", (7, 0)),
    (r"T4\b|RTX 20|Quadro RTX|TITAN RTX", (7, 5)),
    (r"A100|A800|A30\b", (8, 0)),
    (r"RTX 30|RTX A\d|A10|A16|A40|A2\b", (8, 6)),
    (r"RTX 40|RTX \d000 Ada|L4", (8, 9)),
    (r"H100|H200|H800|GH200", (9, 0)),
    (r"G?B[123]00", (10, 0)),
    (r"RTX 50|RTX PRO", (12, 0)),
)
_CUT_DOWN = re.compile(r"\b(H20|L20|L2)\b")  # Much slower than their multiprocessors tell, for China.
# Kernels of these run on later devices, too: the family whose 16-bit rate is lowest beside that of fp32 (A100's are
# called ampere_ as well as those of GeForce).
_KERNEL_FAMILIES = (
    ("sm100_", (10, 0)),
    ("sm90_", (9, 0)),
    ("ampere_", (8, 6)),
    ("turing_", (7, 5)),
    ("volta_", (7, 5)),
)


def estimated(device: Device | None, kernels: Iterable[str]) -> Peaks | None:
    """Rates by the device's family: of its compute capability, its name, or the names of its kernels.

    None for those without Tensor Cores, of AMD, and for variants that are much slower than their family.
    """
    name = device.name if device else ""
    if _CUT_DOWN.search(name) or (device and device.warp_size == 64):
        return None
    named = next((key for pattern, key in _NAMED_FAMILIES if re.search(rf"\b({pattern})", name)), None)
    known = device.compute_capability if device and device.compute_capability != (0, 0) else named
    head = ""
    if known is None and not name:
        starts = tuple(kernels)
        told = (one for one in _KERNEL_FAMILIES if any(start.startswith(one[0]) for start in starts))
        head, known = next(told, ("", None))
    family = _FAMILIES.get(known) if known else None
    if known is None or family is None:
        return None
    multiprocessors = (device.multiprocessors if device else 0) or family.multiprocessors
    fp32, fp16 = (rate * multiprocessors * family.clock_ghz / 1e3 for rate in (family.fp32, family.fp16))
    return Peaks(
        name=name or f"a GPU with {head}* kernels",
        fp32_tflops=fp32,
        tf32_tflops=max(fp16 / 2, fp32) if known >= (8, 0) else None,
        fp16_tflops=fp16,
        bf16_tflops=fp16 if known >= (8, 0) else None,
        fp8_tflops=2 * fp16 if known >= (8, 9) else None,
        memory_gbps=family.memory_gbps * multiprocessors,
        memory_gb=(device.memory_bytes if device else 0) / 1e9,
        multiprocessors=multiprocessors,
        link_gbps=None,
        pcie_generation=None,
        estimated=True,
    )
