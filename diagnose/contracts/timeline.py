"""A timeline as a Diagnosis holds it: lanes, and marks in them as columns. Times are ns from its start."""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.breakdown import IDLE_CAUSES, PATH_CAUSES, TimeCause


class MarkKind(str, Enum):
    """What a mark is, for its colour.

    Idle gaps have their cause, with IDLE before it; stretches of the critical path that no mark of another lane is like
    have their kind, with PATH before it.
    """

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    OP = "op"
    ANNOTATION = "annotation"
    LOADER = "loader"
    COLLECTIVE = "collective"
    LAUNCH = "launch"
    COPY_CALL = "copy_call"
    SYNC = "sync"
    ALLOCATION = "allocation"
    CALL = "call"
    WORK_NOT_RECORDED = "work_not_recorded"


IDLE = "idle/"
PATH = "path/"
MARK_OF_PATH = {
    TimeCause.COMPUTE: MarkKind.COMPUTE,
    TimeCause.COMMUNICATION: MarkKind.COMMUNICATION,
    TimeCause.COPY: MarkKind.COPY,
    TimeCause.LAUNCH: MarkKind.LAUNCH,
    TimeCause.ALLOCATION: MarkKind.ALLOCATION,
    TimeCause.SYNC: MarkKind.SYNC,
    TimeCause.LOADER: MarkKind.LOADER,
    TimeCause.OTHER_RANK: MarkKind.COLLECTIVE,
    TimeCause.HOST_COPY: MarkKind.COPY_CALL,
    TimeCause.OPS: MarkKind.OP,
}
"""Stretches of the critical path that look like the marks that they run through."""
MARK_KINDS = list(MarkKind)
KINDS = (
    *(kind.value for kind in MarkKind),
    *(IDLE + cause.value for cause in IDLE_CAUSES),
    *(PATH + cause.value for cause in PATH_CAUSES if cause not in MARK_OF_PATH),
)
"""The kinds of marks, by number."""


class Lane(Struct, frozen=True):
    """One row of the timeline."""

    name: str
    group: str  # "idle", "path", "device" or "host".


class Column(Struct, frozen=True):
    """Numbers as base64 text in JSON, little-endian, as plotly takes them."""

    dtype: str  # As numpy and plotly name it: "f8", "u2", ...
    bdata: bytes

    @property
    def values(self) -> npt.NDArray[np.generic]:
        """The numbers."""
        return np.frombuffer(self.bdata, dtype=f"<{self.dtype}")

    @classmethod
    def of(cls, values: npt.NDArray[np.generic], dtype: str) -> Column:
        """A column of these numbers; they must fit into `dtype`."""
        return cls(dtype, values.astype(f"<{dtype}").tobytes())


class MarkTable(Struct, frozen=True):
    """Marks of a part of the timeline, as columns. Times are ns from the timeline's start."""

    start_ns: int
    end_ns: int  # The part of the timeline they cover.
    resolution_ns: int  # What is shorter was joined to its neighbours; 0: nothing was.
    lane: Column
    start: Column
    dur: Column
    label: Column
    kind: Column
    count: Column
    filled: Column


class Timeline(Struct, frozen=True):
    """The used steps as marks in lanes. Times are ns from the first mark that belongs to them."""

    dur_ns: int
    steps: tuple[int, ...]  # Numbers of the used steps; empty where no marked one could be used.
    bounds_ns: tuple[int, ...]
    """Step k is [bounds_ns[k], bounds_ns[k + 1]). The first begins after 0 where the host had run ahead."""
    lanes: tuple[Lane, ...]
    labels: tuple[str, ...]
    kinds: tuple[str, ...]
    tables: tuple[MarkTable, ...]  # All steps; then, where that had to be merged, one step in more detail.
    left_out: tuple[str, ...]  # What has no lane, in words.


class Spot(Struct, frozen=True):
    """A place on the timeline; ns from its start."""

    lane: int
    start_ns: int
    dur_ns: int
