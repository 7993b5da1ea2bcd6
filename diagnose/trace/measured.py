"""What was measured of changes on the machine of a recording: of ops by `diagnose measure`, of settings in a trial.

And what recording itself takes.
"""

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

    op: str  # Or work that several do: `ATTENTION`, `ATTENTION_BACKWARD`, `OPTIMIZER` and its class.
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


class Difference(msgspec.Struct, frozen=True):
    """Of two results that should be the same, as shares of the spread of the first (a standard deviation)."""

    largest: float
    typical: float  # Mean absolute difference.
    kind: str  # "same" bits, "rounding", "differ", or "not_deterministic": they differ as much without any change.


class Screened(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that was turned on and off while the training ran."""

    name: str
    injected: tuple[str, ...] = ()  # Where it took effect.
    void: str = ""  # A clause on why it could not be measured so; empty if it could.
    out_of_memory: bool = False
    alone: tuple[tuple[float, float], ...] = ()  # Mean time of a step, ns, without and with it; without other switches.
    added: tuple[tuple[float, float], ...] = ()  # Pairs of blocks on top of those that were kept before.
    on_top_of: tuple[str, ...] = ()
    steps: int = 0  # Of a block, at least.
    settling_s: float = 0.0  # By which its first steps took longer than later ones: compiling, mostly.
    outputs: Difference | None = None  # Of the model, for one batch; None: it could not be asked.
    updates: Difference | None = None  # Of parameters in one optimizer step; None: unchanged, or too little memory.
    peak_bytes: tuple[int, ...] = ()  # Without and with it; empty where it is not known.
    repeated_for: dict[str, int] = {}  # Blocks that were made again, by why: save, epoch, collection, pause.
    seconds: float = 0.0
    kept: bool = False  # It stayed on for those after it.
    ended: bool = False
    is_on: bool = False  # The script ended while it was on.


FloatArray = npt.NDArray[np.float64]

EVENT_NS = 2_000.0  # Of an op or a call, where nobody measured it: 1.4 to 2.8 us in four trainings on an H100.
LEAST = 0.05  # Share of a stretch that is left at least, as what an event costs is a mean (our choice).


def moments(starts: IntArray, ends: IntArray, cost_ns: FloatArray) -> tuple[IntArray, FloatArray]:
    """The distinct moments, in order, at which events begin or end, and for each half the cost of these events.
    Takes arrays of shape (events,), gives arrays of shape (moments,)."""
    at = intervals.distinct(np.append(starts, ends))
    halves = np.append(cost_ns, cost_ns) / 2
    return at, np.bincount(np.searchsorted(at, np.append(starts, ends)), halves, len(at)).astype(np.float64)


def own_ns(at: IntArray, spent_ns: FloatArray) -> FloatArray:
    """Time from the first moment to each without what is spent: half of that lies before its moment, half after."""
    length = np.diff(at).astype(np.float64)
    spent = np.minimum((spent_ns[:-1] + spent_ns[1:]) / 2, (1.0 - LEAST) * length)
    return np.concatenate(([0.0], np.cumsum(length - spent)))
