"""Peak rates of devices, by the name and size the recorder gives: what a kernel could reach at best.

A device that is not known for sure has no peaks: a wrong peak is worse than none. In particular the variants for China
(A800, H800, H20, L20) look like their parents and are not. `estimated` says what can be said of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

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
        matching = (one for one in _KERNEL_FAMILIES if any(start.startswith(one[0]) for start in starts))
        head, known = next(matching, ("", None))
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


class Peaks(Struct, frozen=True):
    """What one device can do at most: dense, accumulating in fp32. None: not supported, or not known."""

    name: str
    fp32_tflops: float
    tf32_tflops: float | None
    fp16_tflops: float
    bf16_tflops: float | None
    fp8_tflops: float | None
    memory_gbps: float  # Decimal gigabytes per second, as all rates here.
    memory_gb: float  # Nominal capacity.
    multiprocessors: int
    link_gbps: float | None  # To others of its node, one direction; None also where it takes a bridge.
    pcie_generation: int | None  # None where the host is not reached through PCIe.
    scaled: float = 1.0  # Below 1: a slice of the device (MIG, MPS limit, partition) has this share of its rates.
    estimated: bool = False  # By the family: good for how types compare, not for how near a kernel comes to it.

    def tflops(self, dtype: str) -> float | None:
        """The rate for a type as `kinds.math_dtype` names it; None if it is not supported or not known."""
        rates = {
            "fp32": self.fp32_tflops,
            "tf32": self.tf32_tflops,
            "fp16": self.fp16_tflops,
            "bf16": self.bf16_tflops,
            "fp8": self.fp8_tflops,
        }
        return rates.get(dtype)


_Rates = tuple[float, float | None, float, float | None, float | None]


KNOWN: dict[str, Peaks] = {}
_CONTAINED: dict[str, list[Peaks]] = {}  # By what names of devices contain. Of several the recorded size decides.


def _known(
    name: str,
    tflops: _Rates,
    memory: tuple[float, float],
    multiprocessors: int,
    link: float | None,
    pcie: int | None,
    *contained: str,
) -> Peaks:
    """Register a device. `tflops`: fp32, tf32, fp16, bf16, fp8; `memory`: GB/s, GB; `contained`: see _CONTAINED."""
    known = KNOWN[name] = Peaks(name, *tflops, *memory, multiprocessors, link, pcie)
    for part in contained or (name,):
        _CONTAINED.setdefault(part, []).append(known)
    return known


# Vendor data sheets, NVIDIA's sparse figures halved. Least certain are the rates of A10G and
# the multiprocessors of GB200 (148 to 152). A B200 has PCIe 6, its hosts have 5. Rates of the same silicon:
_V100 = (15.7, None, 125.0, None, None)
_A100 = (19.5, 156.0, 312.0, 312.0, None)
_H100 = (67.0, 495.0, 989.0, 989.0, 1979.0)
_MI300 = (163.4, 653.7, 1307.0, 1307.0, 2615.0)

_known("V100 SXM2 16 GB", _V100, (900, 16), 80, 150, 3, "V100-SXM2-16GB")
_known("V100 SXM2 32 GB", _V100, (900, 32), 80, 150, 3, "V100-SXM2-32GB")
_known("V100 PCIe 16 GB", (14.0, None, 112.0, None, None), (900, 16), 80, None, 3, "V100-PCIE-16GB")
_known("V100 PCIe 32 GB", (14.0, None, 112.0, None, None), (900, 32), 80, None, 3, "V100-PCIE-32GB")
_known("T4", (8.1, None, 65.0, None, None), (320, 16), 40, None, 3, "Tesla T4")
_known("A10", (31.2, 62.5, 125.0, 125.0, None), (600, 24), 72, None, 4)
_known("A10G", (35.0, 35.0, 70.0, 70.0, None), (600, 24), 80, None, 4)
_known("A100 SXM 40 GB", _A100, (1555, 40), 108, 300, 4, "A100-SXM4-40GB", "A100-PG509-200")
_known("A100 SXM 80 GB", _A100, (2039, 80), 108, 300, 4, "A100-SXM4-80GB", "A100-SXM-80GB")
_known("A100 PCIe 40 GB", _A100, (1555, 40), 108, None, 4, "A100-PCIE-40GB")
_known("A100 PCIe 80 GB", _A100, (1935, 80), 108, None, 4, "A100 80GB PCIe")
_known("A40", (37.4, 74.8, 149.7, 149.7, None), (696, 48), 84, None, 4)
_known("L4", (30.3, 60.0, 121.0, 121.0, 242.0), (300, 24), 58, None, 4)
_known("L40S", (91.6, 183.0, 362.0, 362.0, 733.0), (864, 48), 142, None, 4)
_known("RTX 3090", (35.6, 35.6, 71.0, 71.0, None), (936, 24), 82, None, 4)
_known("RTX 4090", (82.6, 82.6, 165.0, 165.0, 330.0), (1008, 24), 128, None, 4)
_known("RTX 5090", (104.8, 104.8, 209.5, 209.5, 419.0), (1792, 32), 170, None, 5)
H100 = _known("H100 SXM", _H100, (3350, 80), 132, 450, 5, "H100 80GB HBM3", "H100")
_known("H100 PCIe", (51.0, 378.0, 756.0, 756.0, 1513.0), (2000, 80), 114, None, 5, "H100 PCIe", "H100")
_known("H100 NVL", (60.0, 417.0, 835.0, 835.0, 1671.0), (3900, 94), 132, None, 5, "H100 NVL", "H100")
_known("H200 SXM", _H100, (4800, 141), 132, 450, 5, "H200")
_known("GH200 96 GB", _H100, (4000, 96), 132, 450, None, "GH200 480GB")
_known("GH200 144 GB", _H100, (4900, 144), 132, 450, None, "GH200 144G")
_known("B200", (80.0, 1125.0, 2250.0, 2250.0, 4500.0), (8000, 180), 148, 900, 5)
_known("GB200", (80.0, 1250.0, 2500.0, 2500.0, 5000.0), (8000, 186), 148, 900, None)
# Of the same silicon GeForce multiplies at half the rate of RTX when it accumulates in fp32 (NVIDIA's whitepapers on
# GA102 and AD102, appendices); fp32 is multiprocessors x 128 x 2 x the boost clock, of Turing x 64 x 2.


def _rates(fp32: float, times: int, tf32: bool = True, fp8: bool = False) -> _Rates:
    """fp32, tf32, fp16, bf16, fp8, where Tensor Cores or matrix cores do fp16 at so many `times` the rate of fp32."""
    half = fp32 * times
    return fp32, half / 2 if tf32 else None, half, half if tf32 else None, half * 2 if fp8 else None


_known("RTX 2080 Ti", _rates(13.45, 4, tf32=False), (616, 11), 68, None, 3)
_known("TITAN RTX", _rates(16.3, 8, tf32=False), (672, 24), 72, None, 3)
_known("Quadro RTX 6000", _rates(16.3, 8, tf32=False), (672, 24), 72, None, 3)
_known("Quadro RTX 8000", _rates(16.3, 8, tf32=False), (672, 48), 72, None, 3)
_known("RTX 3060 12 GB", _rates(12.7, 2), (360, 12), 28, None, 4, "RTX 3060")
_known("RTX 3060 8 GB", _rates(12.7, 2), (240, 8), 28, None, 4, "RTX 3060")
_known("RTX 3060 Ti", _rates(16.2, 2), (448, 8), 38, None, 4)
_known("RTX 3070", _rates(20.3, 2), (448, 8), 46, None, 4)
_known("RTX 3070 Ti", _rates(21.7, 2), (608, 8), 48, None, 4)
_known("RTX 3080 10 GB", _rates(29.8, 2), (760, 10), 68, None, 4, "RTX 3080")
_known("RTX 3080 12 GB", _rates(30.6, 2), (912, 12), 70, None, 4, "RTX 3080")
_known("RTX 3080 Ti", _rates(34.1, 2), (912, 12), 80, None, 4)
_known("RTX 3090 Ti", _rates(40.0, 2), (1008, 24), 84, None, 4)
_known("RTX A4000", _rates(19.2, 4), (448, 16), 48, None, 4)
_known("RTX A5000", _rates(27.8, 4), (768, 24), 64, None, 4)
_known("RTX A6000", _rates(38.7, 4), (768, 48), 84, None, 4)
_known("RTX 4060", _rates(15.1, 2, fp8=True), (272, 8), 24, None, 4)
_known("RTX 4060 Ti 8 GB", _rates(22.1, 2, fp8=True), (288, 8), 34, None, 4, "RTX 4060 Ti")
_known("RTX 4060 Ti 16 GB", _rates(22.1, 2, fp8=True), (288, 16), 34, None, 4, "RTX 4060 Ti")
_known("RTX 4070", _rates(29.1, 2, fp8=True), (504, 12), 46, None, 4)
_known("RTX 4070 Ti", _rates(40.1, 2, fp8=True), (504, 12), 60, None, 4)
_known("RTX 4080", _rates(48.7, 2, fp8=True), (717, 16), 76, None, 4)
_known("RTX 6000 Ada", _rates(91.1, 4, fp8=True), (960, 48), 142, None, 4, "RTX 6000 Ada Generation")
_known("RTX 5070", _rates(30.9, 2, fp8=True), (672, 12), 48, None, 5)
_known("RTX 5070 Ti", _rates(43.9, 2, fp8=True), (896, 16), 70, None, 5)
_known("RTX 5080", _rates(56.3, 2, fp8=True), (960, 16), 84, None, 5)
# One of two dies of a package, which is what torch sees; its share of the package's links depends on the board.
_known("MI250X, one die", (23.9, None, 191.5, 191.5, None), (1638, 64), 110, None, 4, "MI250X")
# The same die with 104 compute units: the rates above times 104 / 110.
_known(
    "MI210 or MI250, one die", (22.6, None, 181.0, 181.0, None), (1638, 64), 104, None, 4, "MI210", "MI250", "MI250X"
)
_known("MI300X", _MI300, (5300, 192), 304, 448, 5)
_known("MI325X", _MI300, (6000, 256), 304, 448, 5)
_known("MI355X", (157.3, None, 2500.0, 2500.0, 5000.0), (8000, 288), 256, 536, 5)

_TOKENS = sorted(_CONTAINED, key=len, reverse=True)
# Another product: RTX 4080 SUPER, RTX 5090 D, RTX 4090 Laptop GPU, H200 NVL, V100-SXM2-32GB-LS, ... with Max-Q Design.
_OTHER_PRODUCT = re.compile(r"[ -](Ti|SUPER|D|LS|NVL|Laptop|Max-Q|Mobile|with|v\d)\b", re.IGNORECASE)
# AMD devices whose marketing name the recorder could not find, by compute capability; size decides.
_UNNAMED = ("", "AMD Radeon Graphics")
_AMD = {(9, 0): ("MI250X, one die", "MI210 or MI250, one die"), (9, 4): ("MI300X", "MI325X"), (9, 5): ("MI355X",)}


def peaks(device: Device) -> Peaks | None:
    """The peaks of `device`, scaled to its share of multiprocessors where it is a slice; None if it is not known."""
    name = device.name.strip()
    if name in _UNNAMED:
        candidates = _AMD.get(device.compute_capability, ()) if device.warp_size == 64 else ()
        return next((KNOWN[one] for one in candidates if _fits(device, KNOWN[one])), None)
    for token in _TOKENS:
        found = re.search(rf"(?<![A-Za-z0-9]){re.escape(token)}(?![A-Za-z0-9])", name)
        if found:
            return None if _OTHER_PRODUCT.match(name, found.end()) else _choose(device, _CONTAINED[token])
    return None


def _choose(device: Device, candidates: Sequence[Peaks]) -> Peaks | None:
    """The only candidate, whole or a slice of it; of several the one that fits, as a whole."""
    if len(candidates) == 1:
        return _slice(device, candidates[0])
    return next((known for known in candidates if _fits(device, known)), None)


def _fits(device: Device, known: Peaks) -> bool:
    """Whether the recorded size is that of `known`, whose nominal GB are GiB of which a few percent are reserved."""
    memory = device.memory_bytes / (known.memory_gb * 2**30)
    return device.multiprocessors == known.multiprocessors and 0.92 < memory < 1.02


def _slice(device: Device, known: Peaks) -> Peaks:
    """`known`, its rates in proportion if `device` has over 5 % fewer multiprocessors (0: not recorded)."""
    share = device.multiprocessors / known.multiprocessors
    if not 0 < share < 0.95:
        return known

    def part(rate: float | None) -> float | None:
        return None if rate is None else rate * share

    return replace(
        known,
        fp32_tflops=known.fp32_tflops * share,
        tf32_tflops=part(known.tf32_tflops),
        fp16_tflops=known.fp16_tflops * share,
        bf16_tflops=part(known.bf16_tflops),
        fp8_tflops=part(known.fp8_tflops),
        memory_gbps=known.memory_gbps * share,
        memory_gb=device.memory_bytes / 1e9 or known.memory_gb,
        multiprocessors=device.multiprocessors,
        scaled=share,
    )
