"""How well do kernels fill the device?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import work_table
from diagnose.facts.device.memory import memory
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import KernelKind


class GridFilling(Struct, frozen=True):
    """How well kernels fill the device; times per step."""

    underfilled_ids: IntArray
    """Kernels with fewer blocks than multiprocessors are left to them: by the device, less those that a communication
    kernel beside them takes."""
    underfilled_ns: int
    compute_ns: int
    underfilled_share: float  # Of compute.
    filled_share: float
    """Of the multiprocessors left to them that their blocks can take, the mean over their time; 1 if there are none."""
    free_memory_share: float | None
    """Of the device's memory, never reserved by the allocator; None without memory events."""


@fact
def filling(facts: Facts) -> GridFilling:
    """How full the device is. Raises Missing without device work, or if its size or the kernels' was not recorded."""
    work, count = work_table(facts), steps(facts).count
    sizes = {device.index: device for device in facts.rank.provenance.devices}
    grid = facts.rank.kernels
    if not any(device.multiprocessors for device in sizes.values()) or not len(grid):
        raise Missing("number of multiprocessors", "Record with torch.profiler of PyTorch 1.12 or newer on a GPU.")
    blocks = (grid["grid_x"].astype(np.int64) * grid["grid_y"] * grid["grid_z"]).to_numpy()
    room = np.array([sizes[one].multiprocessors if one in sizes else 0 for one in grid["device"].tolist()])
    ids = grid.index.to_numpy()
    room -= _taken_beside(facts, ids, blocks)
    compute = np.isin(ids, work.ids[~work.of(KernelKind.COMMUNICATION, KernelKind.MEMORY)])
    under = compute & (blocks > 0) & (blocks < room)
    dur = facts.rank.spans["dur_ns"].to_numpy()[ids]
    inside = np.isin(ids, work.ids[work.in_steps])
    filled = (dur * blocks / np.maximum(room, 1))[under & inside].sum()
    compute_ns = int(dur[compute & inside].sum())
    under_ns = int(dur[under & inside].sum())
    return GridFilling(
        underfilled_ids=ids[under],
        underfilled_ns=round_half_up(under_ns, count),
        compute_ns=round_half_up(compute_ns, count),
        underfilled_share=under_ns / compute_ns if compute_ns else 0.0,
        filled_share=float(filled / under_ns) if under_ns else 1.0,
        free_memory_share=_free_memory(facts),
    )


def _taken_beside(facts: Facts, ids: IntArray, blocks: IntArray) -> IntArray:
    """Blocks of the communication kernel that runs when each kernel starts; 0 if none does. Shape (kernels,)."""
    work, spans = work_table(facts), facts.rank.spans
    own = np.flatnonzero(np.isin(ids, work.ids[work.of(KernelKind.COMMUNICATION)]))
    if not len(own):
        return np.zeros(len(ids), dtype=np.int64)
    start, dur = (spans[name].to_numpy()[ids] for name in ("start_ns", "dur_ns"))
    own = own[np.argsort(start[own], kind="stable")]
    last = np.searchsorted(start[own], start, side="right") - 1
    runs = (last >= 0) & ((start + dur)[own[last]] > start)
    return np.where(runs, blocks[own[last]], 0)


def _free_memory(facts: Facts) -> float | None:
    shares = [one.free_share for one in optional(memory, facts) or () if one.free_share is not None]
    return min(shares, default=None)
