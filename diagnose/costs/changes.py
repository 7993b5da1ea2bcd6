"""How a fix changes device operations: what rules say, and the book of costs prices."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.trace.costs import DTYPE_BYTES, DTYPES
from diagnose.trace.intervals import IntArray
from diagnose.trace.measured import OpSpec

Mask: TypeAlias = "npt.NDArray[np.bool_]"
FloatArray: TypeAlias = "npt.NDArray[np.float64]"


class InPrecision(Struct, frozen=True):
    """Ops compute in another type, and what they read and write has it, unless that is tf32."""

    dtype: str  # One of `trace.costs.DTYPES`.
    autocast: bool = False  # Ops that autocast leaves in fp32 stay so; casts lie between them and the others.


class Padded(Struct, frozen=True):
    """Inner sizes of products are rounded up to what suits Tensor Cores."""


class WellChosen(Struct, frozen=True):
    """Ops run kernels that are as fast as measured ones for such ops (`costs.known`)."""

    certain: bool = True  # False: something that is not known may keep these from being taken.


class Enlarged(Struct, frozen=True):
    """Batches are so many times as large; prices are of one batch of today's size in them."""

    times: int


class Searched(Struct, frozen=True):
    """cuDNN or MIOpen tries all kernels for a convolution's sizes, and takes the fastest."""


class Pinned(Struct, frozen=True):
    """Copies come from page-locked memory of the host, or go to it."""


class Fused(Struct, frozen=True, eq=False):
    """Groups of operations each become one, in the place of their first."""

    group: IntArray  # Of each operation: 0..n-1.


class Attended(Fused, frozen=True, eq=False):
    """Each group is one pass of attention, forward or backward."""

    flops: FloatArray  # Of each pass, with nothing masked. Shape (n,).
    elements: FloatArray  # That it reads and writes. Shape (n,).
    backward: Mask
    masked: bool  # Something sets scores to nothing: half of them if the mask is causal.
    shape: tuple[int, int, int, int] | None = None  # Batch times heads, queries, keys, size of a head; None: not known.


class Chained(Fused, frozen=True, eq=False):
    """Each group reads its inputs and writes its outputs once."""

    bytes: FloatArray  # What these have, as recorded; 0 unknown. Shape (n,).
    stays: Mask | None = None  # Operations whose own time adds to the fused kernel's. Shape (operations,).


class Scattered(Chained, frozen=True, eq=False):
    """As Chained, but with accesses at places all over memory."""


class UpdatedAtOnce(Fused, frozen=True, eq=False):
    """Each group is an update of parameters that reads and writes each parameter, gradient and state once.
    It is still launched from as many places: what its host saves is another edit."""

    bytes: FloatArray  # Of these; 0 unknown. Shape (n,).
    spec: OpSpec | None = None  # One call of the optimizer; None: its parameters are not known.
    form: str = ""  # The argument by which torch.optim updates so: "fused" or "foreach"; "" if it has none.
    calls: IntArray | None = None  # Where the CPU trains: spans of the calls, with the Python around ops.

    @property
    def key(self) -> tuple[OpSpec, str] | None:
        """By which it is measured; None if it cannot be."""
        return (self.spec, self.form) if self.spec is not None and self.form else None


Change: TypeAlias = "InPrecision | Padded | WellChosen | Searched | Pinned | Enlarged | Fused"


class Recost(Struct, frozen=True, eq=False):
    """A change of device operations, or of ops of a training on the CPU. All changes of one are priced together."""

    what: IntArray
    change: Change


class Left(Struct, frozen=True):
    """What is left of operations after changes; operations in neither array stay as they are."""

    ids: IntArray
    share: FloatArray  # Of what each takes; it can be more than 1. Shape (operations,).
    gone: IntArray  # Operations that are part of another one now.


NARROWER = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")  # Each is narrower than those before it.
RANK = {dtype: place for place, dtype in enumerate(NARROWER)}
PLACE = np.array([RANK.get(dtype, len(NARROWER) - 1) for dtype in DTYPES])  # In NARROWER, by position in DTYPES.
BYTES = np.array([DTYPE_BYTES[dtype] for dtype in NARROWER])
UNSURE, SURE = 1, 2


class Changed:
    """How operations are changed, whatever the order in which changes were named. Arrays of shape (operations,)."""

    def __init__(self, many: int) -> None:
        self.dtype = np.full(many, -1, dtype=np.int64)  # Position in NARROWER, or -1.
        self.well_chosen, self.times = np.zeros(many, dtype=np.int64), np.ones(many)
        self.autocast, self.touched, *marks = np.zeros((5, many), dtype=bool)
        self.padded, self.searched, self.pinned = marks
        self._marks = dict(zip((Padded, Searched, Pinned), marks, strict=True))

    def mark(self, rows: IntArray, change: Change) -> None:
        """Note a change of the operations in these rows."""
        self.touched[rows] |= not isinstance(change, Fused)
        if isinstance(change, InPrecision):
            self.dtype[rows] = np.maximum(self.dtype[rows], RANK[change.dtype])
            self.autocast[rows] |= change.autocast
        elif isinstance(change, WellChosen):
            self.well_chosen[rows] = np.maximum(self.well_chosen[rows], SURE if change.certain else UNSURE)
        elif isinstance(change, Enlarged):
            self.times[rows] *= change.times
        elif isinstance(change, Padded | Searched | Pinned):
            self._marks[type(change)][rows] = True
