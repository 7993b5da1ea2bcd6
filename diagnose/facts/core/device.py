"""What the device did: every kernel, copy and memset with its class, step and launching call."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.trace import enums, intervals, kinds
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.intervals import IntArray, Intervals


class WorkClass(IntEnum):
    """What device work is for. In order of precedence where several run at once."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


class DeviceWork(Struct, frozen=True):
    """Device operations in order of start. All arrays have shape (operations,)."""

    ids: IntArray
    start_ns: IntArray
    end_ns: IntArray
    work_class: npt.NDArray[np.int8]
    step: IntArray  # Position in `Rank.steps` of the step that launched it, or -1.
    launch: IntArray  # Span id of the call that launched it, or -1.
    track: IntArray

    @property
    def on_one_stream(self) -> bool:
        """Whether no two operations are on different streams: then none waits for another stream."""
        return bool((self.track == self.track[:1]).all())

    def of(self, *classes: WorkClass) -> Intervals:
        """Normal set of the time in which work of these classes ran; of no class named, any work."""
        chosen = np.isin(self.work_class, classes) if classes else slice(None)
        return intervals.union(Intervals(self.start_ns[chosen], self.end_ns[chosen]))


@fact
def device_work(facts: Facts) -> DeviceWork:
    """All device work of the rank; empty arrays if there is none. Annotations on a device are not work."""
    rank = facts.rank
    kind = rank.spans["kind"].cat.codes.to_numpy()
    work_kinds = [enums.code(one) for one in (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET)]
    ids = np.flatnonzero(np.isin(kind, work_kinds))
    start = rank.spans["start_ns"].to_numpy()[ids]
    launch = np.full(len(rank.spans), -1, dtype=np.int64)
    links = rank.links[rank.links["kind"] == LinkKind.LAUNCH.value]
    launch[links["to_id"].to_numpy()] = links["from_id"].to_numpy()
    return DeviceWork(
        ids=ids,
        start_ns=start,
        end_ns=start + rank.spans["dur_ns"].to_numpy()[ids],
        work_class=_classes(facts, ids),
        step=rank.spans["step"].to_numpy()[ids].astype(np.int64),
        launch=launch[ids],
        track=rank.spans["track"].to_numpy()[ids].astype(np.int64),
    )


def _classes(facts: Facts, ids: IntArray) -> npt.NDArray[np.int8]:
    spans = facts.rank.spans
    names = spans["name"].cat
    codes = names.codes.to_numpy()[ids]
    by_code = np.zeros(len(names.categories), dtype=np.int8)
    for code in np.unique(codes):
        kind = kinds.kernel_kind(names.categories[code])
        if kind == kinds.KernelKind.COMMUNICATION:
            by_code[code] = WorkClass.COMMUNICATION
        elif kind == kinds.KernelKind.MEMORY:
            by_code[code] = WorkClass.COPY
    classes = by_code[codes]
    is_copy = spans["kind"].cat.codes.to_numpy()[ids] != enums.code(SpanKind.KERNEL)
    classes[is_copy] = WorkClass.COPY
    return classes
