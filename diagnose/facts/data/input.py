"""How long does the training wait for its next batch?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import device_time, round_half_up
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.steps import steps
from diagnose.facts.data.fetches import made_in_process
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import Intervals


@dataclass(frozen=True)
class Input:
    """Fetching batches, in the used steps."""

    fetches: int
    """In all used steps."""
    in_process: bool | None
    """Whether batches are made in the training process (num_workers=0); None if the name does not say."""
    host_ns: int
    """Host time in fetches, per step. With workers it is waiting and unpacking; in process it is making the batch."""
    exposed_ns: int | None
    """Of it, while the device was idle, per step; None without device work."""

    @property
    def waited_ns(self) -> int:
        """What the training waits, per step: the device where there is one."""
        return self.host_ns if self.exposed_ns is None else self.exposed_ns


@fact
def input_wait(facts: Facts) -> Input:
    """The loader's part in a step. Raises Missing if no loader fetch was recorded."""
    spans, used = facts.rank.spans, steps(facts)
    fetches = spans[(spans["kind"] == SpanKind.LOADER.value) & spans["track"].isin(host_threads(facts).training)]
    if not len(fetches):
        raise Missing("DataLoader fetches", "Iterate a torch.utils.data.DataLoader inside the profiled region.")
    start = fetches["start_ns"].to_numpy()
    pieces = intervals.union(Intervals(start, start + fetches["dur_ns"].to_numpy()))
    waited = intervals.clip(pieces, used.start_ns, used.end_ns)
    time = optional(device_time, facts)
    inside = (start >= used.start_ns) & (start < used.end_ns)
    return Input(
        fetches=int(inside.sum()),
        in_process=made_in_process(list(fetches["name"].cat.categories[np.unique(fetches["name"].cat.codes)])),
        host_ns=round_half_up(waited.total, used.count),
        exposed_ns=None if time is None else round_half_up(intervals.intersect(waited, time.idle).total, used.count),
    )
