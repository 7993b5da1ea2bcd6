"""Does the memory in use grow from step to step, and what keeps it?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.host import asking_ops
from diagnose.facts.core.names import name_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

LEAST_STEPS = 5
"""Ends of steps that have to be known: batches of different sizes rise by chance over fewer (rule catalogue)."""

EVEN = 0.5
"""Of the median rise, at least: what is kept in every step is much the same, what varies is not (our choice)."""


@dataclass(frozen=True)
class Kept:
    """Tensors of one size of which every step allocates more than are freed."""

    bytes: int  # Per step, of all of them.
    op: str  # The outermost op that allocates most of them; "" if none does.
    site: Site | None


@dataclass(frozen=True)
class MemoryGrowth:
    """Memory in use on the device where it grows most."""

    device: int
    ends_bytes: tuple[int, ...]  # At the end of each step.
    step_bytes: int  # How much more each step leaves in use; 0 unless it rises in every step, and evenly.
    kept: Kept | None  # What is most of that; None if no size of tensors tells, and where nothing grows.


@fact
def memory_growth(facts: Facts) -> MemoryGrowth:
    """Over all recorded steps.

    Raises Missing without memory events that tell the total, and with fewer than LEAST_STEPS steps.
    """
    events = facts.rank.memory
    events = events[(events["device_type"] > 0) & (events["allocated_bytes"] >= 0)]
    if not len(events):
        raise Missing("memory events", "Record with profile_memory=True, or diagnose profile --memory.")
    if len(facts.rank.steps) < LEAST_STEPS:
        raise Missing(f"the memory of {LEAST_STEPS} steps", "Profile more steps with profile_memory=True.")
    found = [
        _growth(facts, device, events[events["device"] == device]) for device in events["device"].unique().tolist()
    ]
    return max(found, key=lambda one: one.step_bytes)


def _growth(facts: Facts, device: int, events: pd.DataFrame) -> MemoryGrowth:
    """Of the events of one device."""
    ids = events.index.to_numpy().astype(np.int64)
    order = np.argsort(facts.rank.spans["start_ns"].to_numpy()[ids], kind="stable")
    start = facts.rank.spans["start_ns"].to_numpy()[ids[order]]
    ends = np.array([one.end_ns for one in facts.rank.steps], dtype=np.int64)
    last = np.searchsorted(start, ends, side="left") - 1
    known = events["allocated_bytes"].to_numpy()[order][last[last >= 0]]
    rises = np.diff(known)
    grows = len(known) >= LEAST_STEPS and bool((rises >= EVEN * max(float(np.median(rises)), 1.0)).all())
    step, changed = np.searchsorted(ends, start, side="right"), events["bytes"].to_numpy()[order]
    return MemoryGrowth(
        device=device,
        ends_bytes=tuple(known.tolist()),
        step_bytes=round(float(rises.mean())) if grows else 0,
        kept=_kept(facts, ids[order], step, changed) if grows else None,
    )


def _kept(facts: Facts, ids: IntArray, step: IntArray, changed: IntArray) -> Kept | None:
    """By the size of tensors: addresses are not read, so that what is freed is known by its size alone."""
    sizes, group = np.unique(np.abs(changed), return_inverse=True)
    steps = len(facts.rank.steps)
    left = np.zeros((len(sizes), steps + 1), dtype=np.int64)
    np.add.at(left, (group.ravel(), step), np.sign(changed))
    every = left[:, 1:steps]  # What the first step makes may stay: gradients, the optimizer's statistics.
    lasting = np.where((every > 0).all(axis=1), sizes * every.sum(axis=1), 0)
    if not lasting.any():
        return None
    size = int(lasting.argmax())
    made = ids[(group.ravel() == size) & (changed > 0) & (step > 0) & (step < steps)]
    ops, sites = asking_ops(facts, made), sites_of(facts, made)
    names = [name_of(facts, int(op)) for op in ops]
    places = list(zip(names, sites, strict=True))
    op, site = max(places, key=places.count)
    return Kept(int(lasting[size]) // every.shape[1], op, site)
