"""What ops take on the machine of the recording: as they were measured, and in this very recording."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.costs.changes import BYTES, NARROWER, PLACE, Attended, Changed, Fused, Mask, UpdatedAtOnce
from diagnose.costs.known import Family, Grade, Known, known
from diagnose.costs.ops import FAMILIES, GRADES, CostedOps, Products, costed_ops, grades_in
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.inputs import name_codes, peaks
from diagnose.trace.costs import DTYPES
from diagnose.trace.hardware import Peaks
from diagnose.trace.intervals import IntArray
from diagnose.trace.measured import ATTENTION, ATTENTION_BACKWARD, MeasuredOp, OpSpec

LEAST_SPREAD = 0.05  # Of a ratio, how far it may be off at least (our choice; see the published errors).
UNLIKE = 0.25  # An op may differ by this from what was recorded of it; beyond, its range covers the ratio and the time.
MOSTLY = 0.8  # Of the time that a fix changes, what has to be measured so that its price rests on that (our choice).

Key = tuple[OpSpec, str]
_AS_TORCH_WRITES = {"fp64": "double", "fp32": "float", "tf32": "float", "fp16": "c10::Half", "bf16": "c10::BFloat16"}


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
        """Share of a call's time that stays: low, likely and high estimate of the saving. None: not measured."""
        measured = self.found.get(key)
        if measured is None or not measured.tells:
            return None
        assert measured.before_ns
        assert measured.after_ns is not None
        ratio, spread = measured.after_ns / measured.before_ns, max(measured.spread, LEAST_SPREAD)
        most = least = ratio
        if abs(measured.before_ns / max(recorded_ns, 1.0) - 1.0) > UNLIKE:
            to_recorded = measured.after_ns / max(recorded_ns, 1.0)
            most, least = max(ratio, to_recorded), min(ratio, to_recorded)
        return most * (1 + spread), ratio, least * max(1 - spread, 0.0)


@fact
def measured_costs(facts: Facts) -> MeasuredCosts:
    """All that was measured; nothing if nothing was."""
    known = facts.rank.measured
    return MeasuredCosts({(one.spec, one.change): one for one in (known.ops if known else ())})


def specs_of(facts: Facts, ops: IntArray) -> tuple[IntArray, list[OpSpec]]:
    """For each op the position of its spec among the distinct ones (-1 if the op is -1 or has no shapes), and these."""
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


def keys(facts: Facts, ops: CostedOps, changed: Changed) -> Iterator[tuple[Key, IntArray]]:
    """Operations that can be measured after these changes: op with shapes and change, and their rows."""
    multiplies, before = ops.row >= 0, np.append(ops.products.dtype, -1)[ops.row].astype(np.int64)
    narrows = np.where(multiplies, changed.dtype > PLACE[before], ops.element_bytes > BYTES[changed.dtype])
    narrows &= (changed.dtype >= 0) & ~(~multiplies & changed.autocast & (ops.casts >= 0))
    padded = changed.padded & multiplies & (np.append(ops.products.family, -1)[ops.row] == 0)
    rows = np.flatnonzero((narrows | padded | changed.searched) & (ops.op >= 0))
    which, specs = specs_of(facts, ops.op[rows])
    states = np.stack((which, np.where(narrows, changed.dtype, -1)[rows], padded[rows], changed.searched[rows]))
    for (at, dtype, is_padded, searched), mine in alike(states, which >= 0):
        narrower = NARROWER[dtype] if dtype >= 0 else ""
        yield (specs[at], change_of(narrower, padded=bool(is_padded), searched=bool(searched))), rows[mine]


def keys_of_groups(
    fused: Fused, ops: CostedOps, rows: IntArray, group: IntArray, changed: Changed
) -> Iterator[tuple[Key, Mask]]:
    """What groups that become one can be measured as, and which these are. Masks of shape (groups,)."""
    count = int(group[-1]) + 1
    if isinstance(fused, UpdatedAtOnce) and fused.key is not None:
        yield fused.key, np.ones(count, dtype=bool)
    if not isinstance(fused, Attended) or fused.shape is None:
        return
    batch, queries, others, size = fused.shape
    shapes = json.dumps([[batch, queries, size], [batch, others, size], [batch, others, size]])
    rows, group = rows[ops.row[rows] >= 0], group[ops.row[rows] >= 0]
    dtype = ops.products.dtype[ops.row[rows]].astype(np.int64)
    dtype = np.where(dtype >= 0, PLACE[dtype], -1)
    before, after = np.full((2, count), -1)
    np.maximum.at(before, group, dtype)
    np.maximum.at(after, group, np.maximum(dtype, changed.dtype[rows]))
    for (behind, was, now), mine in alike(np.stack((fused.backward, before, after)), before >= 0):
        if (written := _AS_TORCH_WRITES.get(NARROWER[was])) is not None:
            spec = OpSpec(ATTENTION_BACKWARD if behind else ATTENTION, shapes, json.dumps([written] * 3))
            yield (spec, change_of(NARROWER[now] if now > was else "", fused=True)), mine


def alike(states: npt.NDArray[Any], known: Mask) -> Iterator[tuple[tuple[int, ...], Mask]]:
    """Each distinct column of `states` among those that are `known`, and a mask of all columns that are equal to it."""
    for state in np.unique(states[:, known], axis=1).T.tolist():
        yield tuple(state), (states == np.array(state)[:, None]).all(axis=0)


FEWEST = 3  # Calls that tell a rate (our choice).
LONG_NS = 20_000  # Shorter ones tell little of it (our choice).
LEAST, MOST = 0.5, 2.0  # Of what is known; beyond, something else is at work (our choice).
SPREAD = 0.05  # Of what is said, at least, as a range (our choice).

Kind = tuple[Family, str, Grade]


class Seen(Struct, frozen=True):
    """For each kind of op in the used steps, its time over the time known for such ops: as factors."""

    taken: dict[Kind, tuple[float, float, float]]  # At 10 %, half and 90 % of their time.

    def known(self, device: Peaks, family: Family, dtype: str, grade: Grade) -> Known | None:
        """As `known.known`, but corrected by what this recording took for the kind, where it has some."""
        rates, seen = known(device, family, dtype, grade), self.taken.get((family, dtype, grade))
        if rates is None or seen is None:
            return rates
        low, median, high = seen
        return msgspec.structs.replace(
            rates, share=rates.share / median, least=min(low / median, 1 - SPREAD), most=max(high / median, 1 + SPREAD)
        )


@fact
def seen(facts: Facts) -> Seen:
    """What was seen; nothing if the device's rates, or flops, are not known. Raises Missing without device work."""
    device, products = optional(peaks, facts), costed_ops(facts).products
    return Seen({}) if device is None else seen_in(products, device, products.table.in_steps)


def seen_in(products: Products, device: Peaks, rows: Mask) -> Seen:
    """For each kind of matrix products in these rows: time taken over time known for them, by quantile. Only long ones
    count; kinds with few of them, or far from what is known, are left out."""
    table, taken = products.table, dict[Kind, tuple[float, float, float]]()
    tells = rows & table.exact & ~np.isnan(products.flops) & (products.dtype >= 0)
    tells &= (products.family == FAMILIES.index(Family.PRODUCT)) & (table.dur_ns >= LONG_NS)
    grade = grades_in(products, products.dtype)
    for (dtype, code), same in alike(np.stack((products.dtype, grade)), tells):
        mine = np.flatnonzero(tells & same)
        kind = (Family.PRODUCT, DTYPES[dtype], GRADES[code])
        rates = known(device, *kind)
        if rates is None or len(mine) < FEWEST:
            continue
        took_ns = table.dur_ns[mine].astype(np.float64)
        ratio = took_ns / rates.took_ns(device, products.flops[mine], products.bytes[mine])
        order = np.argsort(ratio)
        passed = np.cumsum(took_ns[order]) / took_ns.sum()
        low, median, high = (float(ratio[order][np.searchsorted(passed, quantile)]) for quantile in (0.1, 0.5, 0.9))
        if LEAST <= median <= MOST:
            taken[kind] = low, median, high
    return Seen(taken)
