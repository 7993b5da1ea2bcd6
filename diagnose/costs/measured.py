"""What changed ops were measured to take on the machine of the recording: `diagnose measure`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.names import name_codes
from diagnose.trace.intervals import IntArray
from diagnose.trace.measured import MeasuredOp, OpSpec

LEAST_SPREAD = 0.05  # Of a ratio, how far it may be off at least (our choice; see the published errors).
UNLIKE = 0.25
"""By which an op may differ from what was recorded of it; beyond, its range covers the ratio and the time."""

MOSTLY = 0.8  # Of the time that a fix changes, what has to be measured so that its price rests on that (our choice).

Key = tuple[OpSpec, str]


def change_of(dtype: str, **others: bool) -> str:
    """The name of a change, as measurements have it; "" for none."""
    return "+".join(filter(None, (dtype, *(name for name, holds in others.items() if holds))))


class Wanted(Struct, frozen=True):
    """An op whose changes are to be measured."""

    spec: OpSpec
    changes: tuple[str, ...]
    ns: float  # What it takes of a step now.


class MeasuredCosts(Struct, frozen=True):
    """Measurements by op and change."""

    found: Mapping[Key, MeasuredOp]

    def share(self, key: Key, recorded_ns: float) -> tuple[float, float, float] | None:
        """Of what a call takes, what is left: low, likely and high estimate of the saving. None: not measured."""
        one = self.found.get(key)
        if one is None or not one.tells:
            return None
        assert one.before_ns
        assert one.after_ns is not None
        ratio, wide = one.after_ns / one.before_ns, max(one.spread, LEAST_SPREAD)
        most = least = ratio
        if abs(one.before_ns / max(recorded_ns, 1.0) - 1.0) > UNLIKE:
            alone = one.after_ns / max(recorded_ns, 1.0)
            most, least = max(ratio, alone), min(ratio, alone)
        return most * (1 + wide), ratio, least * max(1 - wide, 0.0)


@fact
def measured_costs(facts: Facts) -> MeasuredCosts:
    """All that was measured; nothing if nothing was."""
    known = facts.rank.measured
    return MeasuredCosts({(one.spec, one.change): one for one in (known.ops if known else ())})


def specs_of(facts: Facts, ops: IntArray) -> tuple[IntArray, list[OpSpec]]:
    """The distinct specs of ops, and which of them each has; -1 of those that are -1 or have no shapes."""
    table, names = facts.rank.ops, facts.rank.spans["name"].cat.categories
    row = table.index.get_indexer(pd.Index(ops))
    columns = [table[name].cat for name in ("shapes", "dtypes", "strides", "scalars")]
    codes: npt.NDArray[np.int64] = np.stack((name_codes(facts, ops), *(one.codes.to_numpy()[row] for one in columns)))
    known = np.flatnonzero((row >= 0) & (codes[1] >= 0))
    which = np.full(len(ops), -1, dtype=np.int64)
    distinct, which[known] = np.unique(codes[:, known], axis=1, return_inverse=True)
    texts = [
        OpSpec(str(names[name]), *(str(one.categories[code]) for one, code in zip(columns, rest, strict=True)))
        for name, *rest in distinct.T.tolist()
    ]
    with_shapes = np.array([*(bool(one.shapes) for one in texts), False])
    return np.where(with_shapes[which], which, -1), texts
