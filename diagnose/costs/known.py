"""What ops of a kind reach on devices that were measured: the table known.json, fitted by `benchmarks.known_costs`."""

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from math import gcd
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from diagnose.facts.device.roofline import reached_share
from diagnose.trace.costs import DTYPES
from diagnose.trace.hardware import Peaks

FloatArray = npt.NDArray[np.float64]

KNOWN = Path(__file__).with_name("known.json")
MEASURED_ON = "H100 SXM"  # Its shares are taken for devices that were not measured, with `ELSEWHERE` as range.
ELSEWHERE = (0.8, 1.5)  # Of what is said, what it may take on another device than was measured (our choice).
BANDWIDTH = 0.9
"""Of the memory's peak, what kernels reach that stream through large tensors: 0.86 to 0.91 on an H100, 0.90 on an
MI300X (`benchmarks.known_costs`)."""
PCIE_GBPS = {3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}  # Of 16 lanes, by generation (PCI-SIG).
SEARCHED = {"H100 SXM": (1.0, 1.0, 0.985)}
"""Of a convolution's time, what is left when the library tries its kernels: 48 convolutions in benchmarks/rates took
0.97 to 1.03 of it, in the middle 1.00 (cuDNN 9.19)."""
SEARCHED_ELSEWHERE = (1.0, 0.9, 0.7)  # Reports say 0 to 30 % less (our choice).


class Family(str, Enum):
    """What an op is, as far as its speed is concerned."""

    PRODUCT = "product"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"  # Fused.
    CHAIN = "chain"  # Memory-bound ops that a compiler has made one.
    OPTIMIZER = "optimizer"  # Fused: all parameters in a few kernels.
    COPY = "copy"  # From page-locked memory of the host, over PCIe.
    MEMORY = "memory"  # Memory-bound ops that read each input once, and write one output.


class Grade(str, Enum):
    """What else decides how fast an op of a family is."""

    ANY = ""
    ALIGNED = "rows of 16 bytes"  # Inner sizes of products that are multiples of 16 bytes, as Tensor Cores want them.
    EVEN = "rows of 4 bytes"
    ODD = "rows of 2 bytes"
    FORWARD = "forward"
    BACKWARD = "backward"


class Known(msgspec.Struct, frozen=True):
    """What ops of a kind reach on a device."""

    device: str  # As `Peaks.name`.
    family: Family
    dtype: str  # What it multiplies in; "" where that does not matter.
    grade: Grade
    share: float  # Of the peak in that type; of the memory's where the type does not matter; of copies, of PCIe's.
    fixed_ns: int  # What it takes besides.
    least: float  # Of what is said, what 90 % of those measured take at least, and
    most: float  # at most.
    rows: int  # Ops that were measured; 0 of what others have published.
    source: str  # Where: "benchmarks/rates", recordings in the corpus of public traces, or an article.

    def at(self, level: int) -> float:
        """The factor on `took_ns` at a level of saving: low (the op takes longest), likely, high."""
        return (self.most, 1.0, self.least)[level]

    def took_ns(self, peaks: Peaks, flops: FloatArray, bytes_: FloatArray) -> FloatArray:
        """What ops of this kind likely take on a device with these peaks; NaN of a type that it has not."""
        if self.family is Family.COPY:
            return bytes_ / (PCIE_GBPS.get(peaks.pcie_generation or 0, np.nan) * self.share) + self.fixed_ns
        if self.family in (Family.CHAIN, Family.OPTIMIZER, Family.MEMORY):
            return bytes_ / (peaks.memory_gbps * self.share) + self.fixed_ns
        in_fp32 = self.family is Family.ATTENTION and self.dtype == "tf32"  # Fused, its products are in fp32.
        rate = peaks.tflops("fp32" if in_fp32 else self.dtype) or np.nan
        least: FloatArray = np.maximum(
            flops / (rate * 1e3 * self.share), np.nan_to_num(bytes_) / (peaks.memory_gbps * BANDWIDTH)
        )
        return least + self.fixed_ns


def grade_of(inner: Sequence[int], element_bytes: float) -> Grade:
    """How well the inner sizes of a product, N and K, suit Tensor Cores: by the alignment of rows in bytes."""
    return _GRADES[min(int((gcd(*inner) & -gcd(*inner)) * element_bytes), 16)] if any(inner) else Grade.ALIGNED


_GRADES = {16: Grade.ALIGNED, 8: Grade.EVEN, 4: Grade.EVEN, 2: Grade.ODD, 1: Grade.ODD}

Table = Mapping[tuple[str, Family, str, Grade], Known]


@cache
def table() -> Table:
    """All that is known, by device, family, type and grade."""
    rows = msgspec.json.decode(KNOWN.read_bytes(), type=list[Known])
    return {(row.device, row.family, row.dtype, row.grade): row for row in rows}


def known(
    peaks: Peaks, family: Family, dtype: str, grade: Grade = Grade.ANY, rows: Table | None = None
) -> Known | None:
    """What ops of a kind reach on a device, else on the one that was measured; None if that was not, either."""
    rows, like = table() if rows is None else rows, _LIKE.get((family, dtype), dtype)
    own = own_row(peaks, family, like, grade, rows)
    if own is None and (other := rows.get((MEASURED_ON, family, like, grade))) is not None:
        least, most = (bound * elsewhere for bound, elsewhere in zip((other.least, other.most), ELSEWHERE, strict=True))
        share = other.share * _in_other_types(peaks, other, rows)
        own = msgspec.structs.replace(other, device=peaks.name, share=share, least=least, most=most)
    if own is None or like == dtype:
        return own
    share = own.share * reached_share(peaks, dtype) / reached_share(peaks, like)
    return msgspec.structs.replace(own, dtype=dtype, share=share)


def own_row(peaks: Peaks, family: Family, dtype: str, grade: Grade, rows: Table | None = None) -> Known | None:
    """Measured rates of the device itself, or of the first word of its name (A100); None if not measured."""
    rows = table() if rows is None else rows
    names = (peaks.name, peaks.name.partition(" ")[0])
    return next((found for name in names if (found := rows.get((name, family, dtype, grade))) is not None), None)


def _in_other_types(peaks: Peaks, measured: Known, rows: Table) -> float:
    """Factor from the measured device's share of its peak to this one's: median over other types; 1 if unknown."""
    if peaks.name == MEASURED_ON:
        return 1.0
    family, grade = measured.family, measured.grade
    shares = [
        own.share / other.share
        for dtype in DTYPES
        if (own := own_row(peaks, family, dtype, grade, rows)) is not None
        and (other := rows.get((MEASURED_ON, family, dtype, grade))) is not None
    ]
    return float(np.median(shares)) if shares else 1.0


_LIKE = {(Family.CONVOLUTION, "fp16"): "bf16", (Family.ATTENTION, "tf32"): "fp32", (Family.PRODUCT, "fp8"): "bf16"}
"""Types that were not measured, and those whose share of the peak is taken: they run the same kind of kernels."""
