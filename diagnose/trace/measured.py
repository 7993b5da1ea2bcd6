"""What changed ops take on the machine of a recording, as `diagnose measure` leaves it beside the trace."""

import msgspec
import numpy as np
import numpy.typing as npt

from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray

SCHEMA_VERSION = 1

ATTENTION, ATTENTION_BACKWARD = "attention", "attention backward"
"""Written out: it takes queries, keys and values of shape (batch times heads, n, size)."""
OPTIMIZER = "torch.optim."  # It takes its parameters.


class OpSpec(msgspec.Struct, frozen=True):
    """An op with all that it is called again by, as the table `ops` has it."""

    op: str
    """Or one of the forms of work that several ops do: `ATTENTION`, `ATTENTION_BACKWARD`, `OPTIMIZER` and its class."""
    shapes: str
    dtypes: str
    strides: str = ""
    scalars: str = ""  # Of an optimizer its settings, as a JSON object.


BUSY = 1.0  # From this spread on a measurement tells nothing: the machine did something else (our choice).


class MeasuredOp(msgspec.Struct, frozen=True):
    """One op, as it is and after a change."""

    spec: OpSpec
    change: str  # As `costs.measured.change_of` names it, such as "bf16" or "bf16+padded".
    before_ns: float | None = None
    after_ns: float | None = None  # The least of one call; None: it was not measured.
    spread: float = 0.0  # By which share the quickest quarter of the runs are over the least, of the two the larger.
    runs: int = 0
    why: str = ""  # Why it was not measured.

    @property
    def tells(self) -> bool:
        """Whether it was measured, on a machine that did little else."""
        return bool(self.before_ns) and self.after_ns is not None and self.spread < BUSY


class Measurements(msgspec.Struct, frozen=True):
    """All that was measured for a recording."""

    device: str  # Name of the GPU; "" of the CPU.
    torch: str
    seconds: float
    ops: tuple[MeasuredOp, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def count(self) -> int:
        """How many different ops have a measurement that tells something."""
        return len({one.spec for one in self.ops if one.tells})


FloatArray = npt.NDArray[np.float64]

EVENT_NS = 2_000.0
"""Of an op or a call, where nobody measured it: 1.4 to 2.8 us in four trainings that an H100 recorded."""

LEAST = 0.05  # Share of a stretch that is left at least, as what an event costs is a mean (our choice).


def moments(starts: IntArray, ends: IntArray, cost_ns: FloatArray) -> tuple[IntArray, FloatArray]:
    """When events begin or end, each moment once, and half of what is spent on the events that do so.

    Arrays of shape (events,), and of shape (moments,).
    """
    at = intervals.distinct(np.append(starts, ends))
    halves = np.append(cost_ns, cost_ns) / 2
    return at, np.bincount(np.searchsorted(at, np.append(starts, ends)), halves, len(at)).astype(np.float64)


def own_ns(at: IntArray, spent_ns: FloatArray) -> FloatArray:
    """The own time from the first moment to each: half of what one spends it spends before, and half after it."""
    length = np.diff(at).astype(np.float64)
    spent = np.minimum((spent_ns[:-1] + spent_ns[1:]) / 2, (1.0 - LEAST) * length)
    return np.concatenate(([0.0], np.cumsum(length - spent)))
