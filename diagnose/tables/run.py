"""A rank in brief, its steps, and what they go to."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd

from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.breakdown import Breakdown, breakdown
from diagnose.facts.core.steps import Measure, Steps, steps
from diagnose.facts.device.achieved import achieved_flops
from diagnose.facts.device.memory import Memory, memory
from diagnose.facts.run.slowdown import slowdown
from diagnose.facts.run.time_attribution import time_attribution
from diagnose.tables import schema
from diagnose.tables.frame import Values, frame, places

_PARTS = tuple(field.name for field in fields(Breakdown) if field.name.endswith("_ns") and field.name != "step_ns")


def ranks(facts: Facts) -> pd.DataFrame:
    """The table `ranks`, of one row."""
    rank, used = facts.rank, optional(steps, facts)
    about, parts = rank.provenance, optional(breakdown, facts)
    cost, flops = optional(slowdown, facts), optional(achieved_flops, facts)
    names = dict.fromkeys(device.name for device in about.devices)
    row = {
        "file": Path(about.path).name,
        "format": about.format,
        "backend": about.backend,
        "device_name": ", ".join(names) or None,
        "world_size": about.world_size,
        "zero_unix_ns": rank.zero_unix_ns,
        **_steps(used, len(rank.steps)),
        "unprofiled_step_ns": None if cost is None else cost.unprofiled_ns,
        "overhead_ratio": None if cost is None else cost.ratio,
        **{name: None if parts is None else getattr(parts, name) for name in _PARTS},
        "flops": None if flops is None else flops.flops,
        "mfu": None if flops is None else flops.mfu,
        **_peaks(optional(memory, facts) or ()),
    }
    return frame(schema.RANKS, {name: [value] for name, value in row.items()})


def _steps(used: Steps | None, marked: int) -> dict[str, Values]:
    window = used is not None and used.measure is Measure.WINDOW
    return {
        "measure": None if used is None else used.measure.value,
        "recorded_steps": marked,
        "used_steps": 0 if used is None or window else used.count,
        "window_start_ns": None if used is None else used.start_ns,
        "window_end_ns": None if used is None else used.end_ns,
        "step_ns": None if used is None else used.mean_ns,
    }


def _peaks(devices: tuple[Memory, ...]) -> dict[str, Values]:
    """The peaks of the device that held most."""
    names = ("peak_allocated_bytes", "peak_reserved_bytes")
    if not devices:
        return dict.fromkeys(names)
    fullest = max(devices, key=lambda device: device.peak_reserved_bytes or device.peak_allocated_bytes or 0)
    return {name: getattr(fullest, name) for name in names}


def marked_steps(facts: Facts) -> pd.DataFrame:
    """The table `steps`. Raises Missing if none are marked."""
    marks, used = facts.rank.steps, optional(steps, facts)
    if not marks:
        raise Missing("marked steps", "Call prof.step() after each step.")
    bounds = np.full((2, len(marks)), -1, dtype=np.int64)
    if used is not None and used.measure is not Measure.WINDOW:
        place = {number: at for at, number in enumerate(used.numbers)}
        for row, mark in enumerate(marks):
            if mark.number in place:
                bounds[:, row] = used.bounds_ns[place[mark.number] : place[mark.number] + 2]
    return frame(
        schema.STEPS,
        {
            "step": np.array([mark.number for mark in marks], dtype=np.int64),
            "host_start_ns": np.array([mark.start_ns for mark in marks], dtype=np.int64),
            "host_end_ns": np.array([mark.end_ns for mark in marks], dtype=np.int64),
            "used": bounds[1] >= 0,
            "start_ns": bounds[0],
            "end_ns": bounds[1],
        },
    )


def spent(facts: Facts) -> pd.DataFrame:
    """The table `spending`. Raises Missing if no step can be measured."""
    rows = time_attribution(facts)
    return frame(
        schema.SPENDING,
        {
            "part": [row.part.value for row in rows],
            "kind": [row.kind for row in rows],
            "op": [row.op for row in rows],
            "name": [row.name for row in rows],
            "shapes": [row.shapes for row in rows],
            "calls": [row.calls for row in rows],
            "ns": [row.ns for row in rows],
            **places([row.site for row in rows]),
        },
    )
