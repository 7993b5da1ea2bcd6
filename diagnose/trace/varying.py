"""Ops that take inputs of another shape in each step."""

import numpy as np
import pandas as pd
from msgspec import Struct

from diagnose.trace.intervals import IntArray


class VaryingShapes(Struct, frozen=True):
    """What ops took in consecutive steps, each of those that took another shape in each."""

    steps: tuple[int, ...]  # Their numbers, in order.
    shapes: tuple[tuple[str, ...], ...]  # Of each such op in each of the steps, as in the table `ops`.
    ids: IntArray  # Spans of the rank, in whichever step, that are one of these ops. Shape (spans,).
    which: IntArray  # Position in `shapes`. Shape as `ids`.


def varying_shapes(spans: pd.DataFrame, ops: pd.DataFrame, steps: tuple[int, ...]) -> VaryingShapes:
    """Of a recording with these tables and all its steps, by number.

    Ops of two steps are the same if they are the so-many-th of a name on a thread, and all steps have as many of these.
    """
    if not steps:
        return VaryingShapes((), (), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    ids = ops.index.to_numpy().astype(np.int64)
    step = spans["step"].to_numpy()[ids].astype(np.int64)
    ids, step = ids[step >= 0], step[step >= 0]
    names = spans["name"].cat
    thread = spans["track"].to_numpy()[ids].astype(np.int64)
    _, what = np.unique(thread * len(names.categories) + names.codes.to_numpy()[ids], return_inverse=True)
    group = what * len(steps) + step
    kinds = int(what.max(initial=-1)) + 1
    count = np.bincount(group, minlength=kinds * len(steps))
    order = np.argsort(group, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    by_step = count.reshape(kinds, len(steps))
    whole = np.flatnonzero((by_step == by_step[:, :1]).all(axis=1)[what])
    whole = whole[np.lexsort((step[whole], place[whole], what[whole]))]
    same = ids[whole].reshape(-1, len(steps))
    codes = ops["shapes"].cat.codes.to_numpy()[ops.index.get_indexer(pd.Index(same.reshape(-1)))].reshape(same.shape)
    some = np.flatnonzero((np.diff(codes, axis=1) != 0).all(axis=1)) if len(steps) > 1 else np.zeros(0, dtype=np.int64)
    texts = ops["shapes"].cat.categories
    return VaryingShapes(
        steps=steps,
        shapes=tuple(tuple(str(texts[code]) for code in row) for row in codes[some].tolist()),
        ids=same[some].reshape(-1),
        which=np.repeat(np.arange(len(some)), len(steps)),
    )
