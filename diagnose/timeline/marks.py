"""Marks of a timeline: bars in lanes, columnar, and as few as a screen can tell apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import astuple, replace

from diagnose.contracts.timeline import Column, MarkTable
from diagnose.trace.intervals import IntArray

RUN = 4
"""Short marks are drawn as one up to this many times the resolution, so that a long row of them keeps its texture."""


class Marks(Struct, frozen=True):
    """Bars in lanes, in order of lane and start; in a lane they do not overlap. All arrays of shape (marks,)."""

    lane: IntArray
    start_ns: IntArray
    dur_ns: IntArray
    label: IntArray  # Number of its name.
    kind: IntArray  # Number of its kind.
    count: IntArray  # How many operations it stands for; of several, name and kind are the longest one's.
    filled_ns: IntArray  # Time that these took; the rest of the duration lies between them.

    @classmethod
    def single(cls, lane: IntArray, start_ns: IntArray, dur_ns: IntArray, label: IntArray, kind: IntArray) -> Marks:
        """Marks of one operation each."""
        return cls(lane, start_ns, dur_ns, label, kind, count=np.ones(len(lane), dtype=np.int64), filled_ns=dur_ns)

    @classmethod
    def of(cls, table: MarkTable) -> Marks:
        """The marks of a table."""
        columns = (table.lane, table.start, table.dur, table.label, table.kind, table.count, table.filled)
        return cls(*(column.values.astype(np.int64) for column in columns))

    def table(self, start_ns: int, end_ns: int, resolution_ns: int) -> MarkTable:
        """The marks as a table of that part of the timeline."""
        return MarkTable(
            start_ns=start_ns,
            end_ns=end_ns,
            resolution_ns=resolution_ns,
            lane=Column.of(self.lane, "u1"),
            start=Column.of(self.start_ns, "f8"),
            dur=Column.of(self.dur_ns, "f8"),
            label=Column.of(self.label, "u2"),
            kind=Column.of(self.kind, "u1"),
            count=Column.of(self.count, "u4"),
            filled=Column.of(self.filled_ns, "f8"),
        )

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.lane)

    def where(self, chosen: npt.NDArray[np.bool_] | IntArray) -> Marks:
        """Some of them, by mask or position."""
        return Marks(*(column[chosen] for column in astuple(self)))

    def moved(self, by_ns: int) -> Marks:
        """The same, later by so much."""
        return replace(self, start_ns=self.start_ns + by_ns)

    def in_order(self) -> Marks:
        """The same, by lane and start."""
        return self.where(np.lexsort((-self.dur_ns, self.start_ns, self.lane)))

    def within(self, start_ns: int, end_ns: int) -> Marks:
        """What lies in [start, end), cut off at its ends."""
        last = np.maximum(self.start_ns + self.dur_ns - 1, self.start_ns)
        chosen = self.where((self.start_ns < end_ns) & (last >= start_ns))
        start = np.maximum(chosen.start_ns, start_ns)
        end = np.minimum(chosen.start_ns + chosen.dur_ns, end_ns)
        return replace(chosen, start_ns=start, dur_ns=end - start, filled_ns=np.minimum(chosen.filled_ns, end - start))

    def merged(self, resolution_ns: int) -> Marks:
        """Marks shorter than the resolution joined to short neighbours nearer than that, if they start in one cell.

        Cells are RUN resolutions long. Longer marks stay as they are. What is left is at most 2 * RUN marks per cell
        and lane, where they did not overlap.
        """
        if self.size == 0 or resolution_ns <= 0:
            return self
        short, end = self.dur_ns < resolution_ns, self.start_ns + self.dur_ns
        cell = self.start_ns // (RUN * resolution_ns)
        joined = short[1:] & short[:-1] & (self.lane[1:] == self.lane[:-1]) & (cell[1:] == cell[:-1])
        joined &= self.start_ns[1:] - end[:-1] < resolution_ns
        first = np.flatnonzero(np.concatenate(([True], ~joined)))
        longest_ns = np.repeat(np.maximum.reduceat(self.dur_ns, first), np.diff(first, append=self.size))
        longest = np.maximum.reduceat(np.where(self.dur_ns == longest_ns, np.arange(self.size), 0), first)
        start = self.start_ns[first]
        return Marks(
            lane=self.lane[first],
            start_ns=start,
            dur_ns=np.maximum.reduceat(end, first) - start,
            label=self.label[longest],
            kind=self.kind[longest],
            count=np.add.reduceat(self.count, first),
            filled_ns=np.add.reduceat(self.filled_ns, first),
        )

    def at_most(self, count: int, window_ns: int) -> tuple[Marks, int]:
        """Merged until there are at most `count`, with the resolution that takes; 0 where all are kept.

        `count` is at least the number of lanes, and no mark starts before 0.
        """
        if self.size <= count:
            return self, 0
        resolution = max(window_ns // (4 * count), 1)
        while (found := self.merged(resolution)).size > count:
            resolution *= 2
        return found, resolution
