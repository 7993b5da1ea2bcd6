"""What devices do: kernels, copies, collectives, and the gaps between them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from diagnose.facts.communication.collectives import collective_table, told_rows
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.causes import IDLE_CAUSES
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import asking_ops, enclosing_op
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.launches import every_launch
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.steps import Measure, Steps, steps
from diagnose.facts.core.work import KERNEL_KINDS, work_table
from diagnose.tables import schema
from diagnose.tables.frame import Array, Mask, Values, frame, places, words
from diagnose.tables.spans import names, rows_of, step_numbers, times, told, told_text
from diagnose.trace import enums, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

_GRID = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_AS_RECORDED = dict.fromkeys(_GRID, 0) | {"registers": -1, "shared_bytes": -1, "occupancy": np.nan, "graph_id": 0}
"""Columns of kernels as they were recorded, with what stands for unknown in them."""


def kernels(facts: Facts) -> pd.DataFrame:
    """The table `kernels`. Raises Missing without device work."""
    work = work_table(facts)
    rows = np.flatnonzero(_is_kernel(facts, work.ids))
    ids = work.ids[rows]
    told_of, row = facts.rank.kernels, rows_of(facts.rank.kernels, ids)
    labels = names(facts, ids)
    cores = [kinds.uses_tensor_cores(str(label)) for label in labels.categories]
    types = [kinds.math_dtype(str(label)) or "" for label in labels.categories]
    codes = labels.codes.astype(np.int64)
    return frame(
        schema.KERNELS,
        {
            **_work(facts, ids, work.in_steps[rows]),
            "kind": words(work.kind[rows].astype(np.int64), [kind.value for kind in KERNEL_KINDS]),
            "tensor_cores": np.array([*cores, None], dtype=object)[codes],
            "dtype": words(codes, types),
            **{name: told(told_of, name, row, unknown) for name, unknown in _AS_RECORDED.items()},
        },
    )


def copies(facts: Facts) -> pd.DataFrame:
    """The table `copies`. Raises Missing without device work."""
    work, table = work_table(facts), facts.rank.copies
    ids = table.index.to_numpy().astype(np.int64)
    return frame(
        schema.COPIES,
        {
            **_work(facts, ids, work.in_steps[np.searchsorted(work.ids, ids)]),
            "bytes": table["bytes"].to_numpy(),
            **{name: table[name] for name in ("direction", "host_memory")},
        },
    )


def collectives(facts: Facts) -> pd.DataFrame:
    """The table `collectives`. Raises Missing without device work and without collectives on the host."""
    table = collective_table(facts)
    order = np.argsort(table.ids, kind="stable")
    told_of, row = facts.rank.collectives, told_rows(facts)[order].astype(np.int64)
    return frame(
        schema.COLLECTIVES,
        {
            **_work(facts, table.ids[order], table.in_steps[order]),
            "on_host": table.on_host[order],
            "operation": table.operation[order],
            "bytes": table.bytes[order],
            **{name: getattr(table, name)[order] for name in ("group_description", "group_ranks", "group_size")},
            **{name: told_text(told_of, name, row) for name in ("group", "dtype")},
            **{name: told(told_of, name, row, -1) for name in ("sequence", "peer")},
        },
    )


def gaps(facts: Facts) -> pd.DataFrame:
    """The table `idle_gaps`. Raises Missing without device work, or if nothing was recorded on the host."""
    found = idle_gaps(facts)
    return frame(
        schema.IDLE_GAPS,
        {
            "start_ns": found.gaps.starts,
            "dur_ns": found.gaps.ends - found.gaps.starts,
            "step": _step_at(steps(facts), found.gaps.starts),
            "cause": words(found.cause.astype(np.int64), [cause.value for cause in IDLE_CAUSES]),
            "next_id": found.next_work,
            **places(found.sites),
        },
    )


def _is_kernel(facts: Facts, ids: IntArray) -> Mask:
    found: Mask = facts.rank.spans["kind"].cat.codes.to_numpy()[ids] == enums.code(SpanKind.KERNEL)
    return found


def _step_at(used: Steps, moments: IntArray) -> IntArray:
    """The number of the used step that each moment is in; -1 where none are marked."""
    at = np.searchsorted(used.bounds_ns, moments, side="right") - 1
    numbers = np.array([-1] if used.measure is Measure.WINDOW else used.numbers, dtype=np.int64)
    found: IntArray = numbers[np.clip(at, 0, used.count - 1)]
    return found


def _work(facts: Facts, ids: IntArray, used: Mask) -> dict[str, Values]:
    """The columns that all work has; of collectives on the host without what is known of launches."""
    rank, launch = facts.rank, _launches(facts)[ids]
    launched = launch >= 0
    op, outer = np.full((2, len(ids)), -1, dtype=np.int64)
    calls, position = np.unique(launch[launched], return_inverse=True)
    op[launched], outer[launched] = enclosing_op(facts, calls)[position], asking_ops(facts, calls)[position]
    sites = np.full(len(ids), None, dtype=object)
    sites[launched] = _objects(sites_of(facts, calls))[position]
    track = rank.spans["track"].to_numpy()[ids]
    delay, depth = _queue(facts)
    return {
        "id": ids,
        "name": names(facts, ids),
        **times(facts, ids),
        "step": step_numbers(facts, ids),
        "used": used,
        **{name: rank.tracks[name].to_numpy()[track] for name in ("device", "stream")},
        "op": names(facts, op),
        "op_id": op,
        "outer_op": names(facts, outer),
        "outer_op_id": outer,
        "launch_id": launch,
        "launch_start_ns": np.where(launched, rank.spans["start_ns"].to_numpy()[launch], -1),
        "launch_dur_ns": np.where(launched, rank.spans["dur_ns"].to_numpy()[launch], -1),
        "queue_delay_ns": delay[ids],
        "queue_depth": depth[ids],
        **places(sites.tolist()),
    }


def _launches(facts: Facts) -> IntArray:
    """The launching call of each span, by its id, or -1."""
    work, found = device_work(facts), np.full(len(facts.rank.spans), -1, dtype=np.int64)
    found[work.ids] = work.launch
    return found


def _queue(facts: Facts) -> tuple[IntArray, IntArray]:
    """Delay and depth of the queue of each span, by its id, or -1."""
    found = np.full((2, len(facts.rank.spans)), -1, dtype=np.int64)
    table = optional(every_launch, facts)
    if table is not None:
        found[:, table.work] = table.delay_ns, table.depth
    return found[0], found[1]


def _objects(sites: list[Site | None]) -> Array:
    """As an array, whose elements stay what they are."""
    found: Array = np.empty(len(sites), dtype=object)
    found[:] = sites
    return found
