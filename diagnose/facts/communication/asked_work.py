"""What is a rank asked to compute, whatever its device makes of it? By kind of kernel, or of op on the CPU."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pandas as pd

from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import recorded_inputs
from diagnose.facts.core.spans import host_spans
from diagnose.facts.core.steps import steps
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import Work

MOST_KINDS = 64
"""Those that take longest are kept: 1.5 kB of a rank."""


def asked_work(facts: Facts, on_cpu: bool) -> Work:
    """Of the used steps: threads of kernels, or elements that ops of the training threads take, inner ops apart."""
    ids, size, ns = _of_ops(facts) if on_cpu else _of_kernels(facts)
    bounds, start = steps(facts).bounds_ns, facts.rank.spans["start_ns"].to_numpy()[ids]
    inside = (start >= bounds[0]) & (start < bounds[-1])
    code, kind = np.unique(facts.rank.spans["name"].cat.codes.to_numpy()[ids[inside]], return_inverse=True)
    sizes, times = (np.bincount(kind, weights=one[inside], minlength=len(code)) for one in (size, ns))
    most = np.sort(np.argsort(-times, kind="stable")[:MOST_KINDS])
    names = facts.rank.spans["name"].cat.categories[code[most]]
    count = max(len(bounds) - 1, 1)
    return Work(
        kind=np.array([crc32(str(name).encode()) for name in names], dtype=np.int64),
        size=sizes[most] / count,
        ns=times[most] / count,
    )


def _of_kernels(facts: Facts) -> tuple[IntArray, IntArray, IntArray]:
    work, spans = device_work(facts), facts.rank.spans
    row = facts.rank.kernels.index.get_indexer(pd.Index(work.ids[work.work_class == WorkClass.COMPUTE]))
    kernels = facts.rank.kernels.iloc[row[row >= 0]]
    sizes = kernels[["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]].to_numpy().astype(np.int64)
    ids = kernels.index.to_numpy()
    return ids, sizes.prod(axis=1), spans["dur_ns"].to_numpy()[ids]


def _of_ops(facts: Facts) -> tuple[IntArray, IntArray, IntArray]:
    ops = host_spans(facts, SpanKind.OP)
    ops = ops.where(np.isin(ops.track, host_threads(facts).training))
    position, inputs = recorded_inputs(facts, ops.ids)
    sizes = np.array([*(sum(one.elements for some in taken for one in some) for taken in inputs), 0], dtype=np.int64)
    up, lasted = ops.parents, ops.end_ns - ops.start_ns
    inner = np.bincount(up[up >= 0], weights=lasted[up >= 0], minlength=len(lasted)).astype(np.int64)
    return ops.ids, sizes[position], np.maximum(lasted - inner, 0)
