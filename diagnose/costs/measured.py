"""What ops take on the machine of the recording: as they were measured, and in this very recording."""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.costs.changes import Mask
from diagnose.costs.known import Family, Grade, Known, known
from diagnose.costs.ops import FAMILIES, GRADES, Products, costed_ops, grades_in
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.inputs import name_codes, peaks
from diagnose.trace.costs import DTYPES
from diagnose.trace.hardware import Peaks
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


FEWEST = 3  # Calls that tell a rate (our choice).
LONG_NS = 20_000  # Shorter ones tell little of it (our choice).
LEAST, MOST = 0.5, 2.0  # Of what is known; beyond, something else is at work (our choice).
SPREAD = 0.05  # Of what is said, at least, as a range (our choice).

Kind = tuple[Family, str, Grade]


class Seen(Struct, frozen=True):
    """Of kinds of ops in the used steps, what they take over what is known of them."""

    taken: dict[Kind, tuple[float, float, float]]  # At 10 %, half and 90 % of their time.

    def known(self, device: Peaks, family: Family, dtype: str, grade: Grade) -> Known | None:
        """As `known`, by what was seen of the kind, where that was."""
        one, seen = known(device, family, dtype, grade), self.taken.get((family, dtype, grade))
        if one is None or seen is None:
            return one
        low, median, high = seen
        return msgspec.structs.replace(
            one, share=one.share / median, least=min(low / median, 1 - SPREAD), most=max(high / median, 1 + SPREAD)
        )


@fact
def seen(facts: Facts) -> Seen:
    """What was seen; nothing if the device's rates, or flops, are not known. Raises Missing without device work."""
    device, products = optional(peaks, facts), costed_ops(facts).products
    return Seen({}) if device is None else seen_in(products, device, products.table.in_steps)


def seen_in(products: Products, device: Peaks, rows: Mask) -> Seen:
    """What some rows tell."""
    table, taken = products.table, dict[Kind, tuple[float, float, float]]()
    tells = rows & table.exact & ~np.isnan(products.flops) & (products.dtype >= 0)
    tells &= (products.family == FAMILIES.index(Family.PRODUCT)) & (table.dur_ns >= LONG_NS)
    grade = grades_in(products, products.dtype)
    kinds = np.stack((products.dtype, grade))
    for dtype, code in np.unique(kinds[:, tells], axis=1).T.tolist():
        mine = np.flatnonzero(tells & (kinds == [[dtype], [code]]).all(axis=0))
        kind = (Family.PRODUCT, DTYPES[dtype], GRADES[code])
        one = known(device, *kind)
        if one is None or len(mine) < FEWEST:
            continue
        took_ns = table.dur_ns[mine].astype(np.float64)
        ratio = took_ns / one.took_ns(device, products.flops[mine], products.bytes[mine])
        order = np.argsort(ratio)
        passed = np.cumsum(took_ns[order]) / took_ns.sum()
        low, median, high = (float(ratio[order][np.searchsorted(passed, at)]) for at in (0.1, 0.5, 0.9))
        if LEAST <= median <= MOST:
            taken[kind] = low, median, high
    return Seen(taken)
