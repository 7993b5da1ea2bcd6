"""Device operations by stream, and the moments between which a rank goes on by itself."""

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import DeviceWork, device_work
from diagnose.trace.intervals import IntArray


class Stream(Struct, frozen=True):
    """One stream's operations. Positions are rows of `DeviceWork`; arrays of shape (operations,)."""

    track: int
    device: int
    stream: int
    work: IntArray  # In order of launch.
    launched_ns: IntArray  # Start of the launching call; where it is not known, of the work. Sorted.
    correlation: IntArray  # Of the launching call, sorted; -1 where it is not known.

    def last_launched(self, before_ns: IntArray) -> IntArray:
        """The last operation launched before each time, or -1. Shape of `before_ns`."""
        return self._at(np.searchsorted(self.launched_ns, before_ns, side="left") - 1)

    def last_ended(self, end_ns: IntArray, by_ns: IntArray, newest: IntArray) -> IntArray:
        """The last operation that ended by each time, launched no later than `newest` (rows or -1)."""
        ends = np.maximum.accumulate(end_ns[self.work])
        place = np.full(len(end_ns) + 1, -1, dtype=np.int64)
        place[self.work] = np.arange(len(self.work))
        return self._at(np.minimum(np.searchsorted(ends, by_ns, side="right") - 1, place[newest]))

    def last_correlated(self, before: IntArray) -> IntArray:
        """The last operation whose launch has a smaller correlation, or -1. Correlations are given in order of call."""
        return self._at(np.searchsorted(self.correlation, before, side="left") - 1)

    def first_correlated(self, after: IntArray) -> IntArray:
        """The first operation whose launch has a greater correlation, or -1."""
        at = np.searchsorted(self.correlation, after, side="right")
        return np.where(at < len(self.work), self._at(np.minimum(at, len(self.work) - 1)), -1)

    def _at(self, position: IntArray) -> IntArray:
        return np.where(position >= 0, self.work[np.maximum(position, 0)], -1)


def recorded_on(on: list[Stream], stream: IntArray, before: IntArray) -> IntArray:
    """The last operation on a stream of each number whose launch has a smaller correlation, or -1. Shape (events,).

    An event does not say on which device it was recorded. Of several with such a stream it is taken to be the one that
    was given work last.
    """
    found, newest = np.full((2, len(stream)), -1, dtype=np.int64)
    for one in on:
        last = one.last_correlated(before)
        number = np.append(one.correlation, -1)[np.searchsorted(one.correlation, before, side="left") - 1]
        later = (stream == one.stream) & (last >= 0) & (number > newest)
        found, newest = np.where(later, last, found), np.where(later, number, newest)
    return found


def sync_devices(facts: Facts, syncs: IntArray) -> IntArray:
    """The device that waits, or is waited for, at each synchronisation; -1 if that was not recorded."""
    found: IntArray = facts.rank.tracks["device"].to_numpy()[facts.rank.spans["track"].to_numpy()[syncs]]
    return found


def streams(facts: Facts) -> list[Stream]:
    """All streams with device work."""
    work, rank = device_work(facts), facts.rank
    launched = launch_times(facts, work)
    correlation = rank.spans["correlation"].to_numpy()[work.ids]
    device, stream = rank.tracks["device"].to_numpy(), rank.tracks["stream"].to_numpy()
    found = []
    for track in np.unique(work.track).tolist():
        rows = np.flatnonzero(work.track == track)
        rows = rows[np.lexsort((work.start_ns[rows], launched[rows]))]
        numbers = np.maximum.accumulate(correlation[rows])
        found.append(Stream(track, int(device[track]), int(stream[track]), rows, launched[rows], numbers))
    return found


def launch_times(facts: Facts, work: DeviceWork) -> IntArray:
    """Start of each operation's launching call; where that was not recorded, of itself. Shape (operations,)."""
    start = facts.rank.spans["start_ns"].to_numpy()
    return np.where(work.launch >= 0, np.minimum(start[work.launch], work.start_ns), work.start_ns)


class Stretches(Struct, frozen=True):
    """A rank's own stretches of time, by its own clock, in order. Arrays of shape (stretches,)."""

    from_ns: IntArray
    until_ns: IntArray

    @property
    def moments_ns(self) -> IntArray:
        """All begins, then all ends."""
        return np.concatenate((self.from_ns, self.until_ns))


def own_stretches(facts: Facts) -> Stretches:
    """Before each event of the rank's lane, and after the last one. None if no other rank is known."""
    others, none = facts.rank.peers, np.zeros(0, dtype=np.int64)
    if others is None or not others.job.join_points:
        return Stretches(none, none)
    at = others.job.ranks.index(others.rank)
    sequence, shift = others.job.sequences[at], int(others.job.ahead_ns[at]) - facts.rank.zero_unix_ns
    after = np.concatenate((sequence.bounds_ns[:1], np.maximum.accumulate(sequence.lane.until_ns)))
    until = np.maximum(np.append(sequence.lane.from_ns, sequence.bounds_ns[-1]), after)
    return Stretches(after + shift, until + shift)
