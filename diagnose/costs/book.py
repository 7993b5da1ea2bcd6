"""What device operations take after changes: all changes of an operation are put together, and priced once."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.costs.changes import (
    Attended,
    Chained,
    Change,
    Enlarged,
    FloatArray,
    Fused,
    InPrecision,
    Left,
    Mask,
    Padded,
    Pinned,
    Recost,
    Scattered,
    Searched,
    UpdatedAtOnce,
    WellChosen,
)
from diagnose.costs.host import HostBook
from diagnose.costs.known import BANDWIDTH, SEARCHED, SEARCHED_ELSEWHERE, Family, Grade, Known, known, own_row
from diagnose.costs.measured import MOSTLY, Key, Wanted, change_of, measured_costs, seen, specs_of
from diagnose.costs.ops import FAMILIES, GRADES, CostedOps, costed_ops, grades_in
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.inputs import SHORTEST_NS, type_rates
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.steps import steps
from diagnose.trace.costs import DTYPE_BYTES, DTYPES
from diagnose.trace.hardware import Peaks
from diagnose.trace.intervals import IntArray
from diagnose.trace.measured import ATTENTION, ATTENTION_BACKWARD, OpSpec

LEVELS = 3  # Low, likely and high estimate of what a fix saves, as `replay.edits.Estimate`.
CAST_BYTES = 6.0  # That casting an element between fp32 and 16 bits reads and writes.
CAST = (1.0, 1.0, 0.5)  # Of the casts that autocast may need, those that are thought to be there (our choice).
MOVED_16 = (1.0, 0.75, 0.5)
"""Of the bytes of a memory-bound op that autocast does not keep in fp32, what is left: some of what it takes stays in
fp32 (our choice)."""
WEIGHTS = 2 / 3  # Of a layer's three products, those beside which its weight, or the gradient of that, is cast.
QUANTISED = 1.7
"""For fp8, of a product's bytes in 16 bits, what finding scales and casting its inputs moves: 5 bytes an element of
these, of 2 bytes an element of all three."""
TOLERATED = 1.5
"""By how much single products differ from what is known without a reason: 80 % of those measured lie between 0.64 and
1.6. What one takes beyond it is thought to be there after the change as well."""
FIXED_NS = 1_500
"""Of a memory-bound kernel, what does not depend on its bytes, where no row of its device says otherwise: those of an
H100 take 1.5 to 2.5 us at least."""
CAUSAL = 0.5  # Of the flops of attention, what a causal mask leaves.
UNKNOWN_CHAIN = (0.75, 0.4, 0.0)
"""Of what a chain takes beyond its longest kernel, what is left where its bytes are not known (our choice)."""
UNKNOWN_RATIO = (1.3, 1.0, 0.8)
"""Around what the ratio of two types' rates says, where an op's flops are not known (our choice)."""
UNKNOWN_UPDATE = (1.0, 0.6, 0.3)
"""Of the time of an update that is not fused, where its bytes are not known: a fused Adam moves 28 bytes a parameter, a
foreach one four to six times as much; on an H100 0.36 to 0.64 of the time were left."""


UNKNOWN_COPY = (1.0, 0.6, 0.3)  # Of a copy from pageable memory: such reach 25 to 60 % of the speed of pinned ones.
SCATTERED = 0.6  # Of the memory's rate, with accesses all over it (our choice).


class _Changed:
    """How operations are changed, whatever the order in which changes were named."""

    def __init__(self, ops: CostedOps) -> None:
        many = len(ops.ids)
        self.dtype = np.full(many, -1, dtype=np.int64)
        self.autocast, self.touched = np.zeros((2, many), dtype=bool)
        self.padded = np.zeros(many, dtype=bool)
        self.well_chosen = np.zeros(many, dtype=np.int64)
        self.searched, self.pinned = np.zeros((2, many), dtype=bool)
        self.times = np.ones(many)

    def mark(self, rows: IntArray, change: Change) -> None:
        """Note a change of some operations."""
        self.touched[rows] |= not isinstance(change, Fused)
        if isinstance(change, InPrecision):
            self.dtype[rows] = np.maximum(self.dtype[rows], _RANK[change.dtype])
            self.autocast[rows] |= change.autocast
        elif isinstance(change, Padded):
            self.padded[rows] = True
        elif isinstance(change, WellChosen):
            self.well_chosen[rows] = np.maximum(self.well_chosen[rows], SURE if change.certain else UNSURE)
        elif isinstance(change, Searched):
            self.searched[rows] = True
        elif isinstance(change, Pinned):
            self.pinned[rows] = True
        elif isinstance(change, Enlarged):
            self.times[rows] *= change.times


_SIXTEEN = [DTYPES.index("fp16"), DTYPES.index("bf16")]
UNSURE, SURE = 1, 2
_NARROWER = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
_RANK = {dtype: place for place, dtype in enumerate(_NARROWER)}
_DTYPE = np.array([DTYPES.index(dtype) for dtype in _NARROWER])
_WRITTEN = {"fp64": "double", "fp32": "float", "tf32": "float", "fp16": "c10::Half", "bf16": "c10::BFloat16"}
"""As torch writes types of inputs."""
_BYTES = np.array([DTYPE_BYTES[dtype] for dtype in _NARROWER])
_PLACE = np.array([_RANK.get(dtype, len(_NARROWER) - 1) for dtype in DTYPES])


class CostBook:
    """Prices of changes of a rank's device operations."""

    def __init__(self, facts: Facts) -> None:
        """Raises Missing without device work."""
        self._facts, self._ops, self._seen = facts, costed_ops(facts), seen(facts)
        self._measured, self._steps = measured_costs(facts), max(steps(facts).count, 1)
        self._peaks: Peaks | None = optional(type_rates, facts)
        self._at = np.full(len(facts.rank.spans), -1, dtype=np.int64)
        self._at[self._ops.ids] = np.arange(len(self._ops.ids))
        moved = known(self._peaks, Family.MEMORY, "") if self._peaks else None
        self._fixed_ns = moved.fixed_ns if moved else FIXED_NS
        self._bandwidth = self._peaks.memory_gbps * (moved.share if moved else BANDWIDTH) if self._peaks else np.inf

    def left(self, recosts: Sequence[Recost], level: int) -> Left:
        """What is left after all changes together, at a level."""
        changed = _Changed(self._ops)
        for one in recosts:
            changed.mark(self._rows(one.what), one.change)
        share = self._shares(changed, level)
        for key, rows in self._keys(changed) if self._measured.found else ():
            told = self._measured.share(key, float(np.median(self._of_call_ns(rows))))
            if told is not None:
                share[rows] = told[level]
        share += self._casts(changed, level)
        gone = np.zeros(len(share), dtype=bool)
        for kind in (Chained, Scattered, UpdatedAtOnce, Attended):  # What is in attention is no longer in a chain.
            for one in recosts:
                if type(one.change) is kind and len(one.what):
                    self._fuse(one, one.change, changed, share, gone, level)
        touched = np.flatnonzero(changed.touched & ~gone)
        return Left(self._ops.ids[touched], share[touched], self._ops.ids[gone])

    def asked(self, recosts: Sequence[Recost]) -> Iterator[tuple[Key, float]]:
        """What would have to be measured to price these changes together, and the time that it is about, per step."""
        changed = _Changed(self._ops)
        for one in recosts:
            changed.mark(self._rows(one.what), one.change)
        taken = self._ops.dur_ns * self._ops.in_steps / self._steps
        for key, rows in self._keys(changed):
            yield key, float(taken[rows].sum())
        for one in recosts:
            if isinstance(one.change, Fused) and len(one.what):
                rows, group = self._in_groups(one.what, one.change)
                for key, mine in self._keys_of_groups(one.change, rows, group, changed):
                    yield key, float((taken[rows] * mine[group]).sum())

    def _in_groups(self, what: IntArray, fused: Fused) -> tuple[IntArray, IntArray]:
        order = np.lexsort((what, fused.group))
        return self._at[what[order]], fused.group[order]

    def _keys_of_groups(
        self, fused: Fused, rows: IntArray, group: IntArray, changed: _Changed
    ) -> Iterator[tuple[Key, Mask]]:
        """What groups that become one can be measured as, and which these are. Masks of shape (groups,)."""
        count = int(group[-1]) + 1
        if isinstance(fused, UpdatedAtOnce) and fused.key is not None:
            yield fused.key, np.ones(count, dtype=bool)
        if not isinstance(fused, Attended) or fused.shape is None:
            return
        batch, queries, keys, size = fused.shape
        shapes = json.dumps([[batch, queries, size], [batch, keys, size], [batch, keys, size]])
        multiplied = self._ops.row[rows] >= 0
        dtype = self._ops.products.dtype[self._ops.row[rows[multiplied]]].astype(np.int64)
        before, after = np.full((2, count), -1)
        np.maximum.at(before, group[multiplied], np.where(dtype >= 0, _PLACE[dtype], -1))
        np.maximum.at(
            after,
            group[multiplied],
            np.maximum(np.where(dtype >= 0, _PLACE[dtype], -1), changed.dtype[rows[multiplied]]),
        )
        states = np.stack((fused.backward, before, after))
        for state in np.unique(states[:, before >= 0], axis=1).T.tolist():
            behind, was, now = state
            written = _WRITTEN.get(_NARROWER[was])
            if written is not None:
                op = ATTENTION_BACKWARD if behind else ATTENTION
                spec = OpSpec(op, shapes, json.dumps([written] * 3))
                change = change_of(_NARROWER[now] if now > was else "", fused=True)
                yield (spec, change), (states == np.array(state)[:, None]).all(axis=0)

    def _keys(self, changed: _Changed) -> Iterator[tuple[Key, IntArray]]:
        """Operations that can be measured after these changes: op with shapes and change, and their rows."""
        ops, products = self._ops, self._ops.products
        multiplies = ops.row >= 0
        before = np.append(products.dtype, -1)[ops.row].astype(np.int64)
        narrows = np.where(multiplies, changed.dtype > _PLACE[before], ops.element_bytes > _BYTES[changed.dtype])
        narrows &= (changed.dtype >= 0) & ~(~multiplies & changed.autocast & (ops.casts >= 0))
        padded = changed.padded & multiplies & (np.append(products.family, -1)[ops.row] == 0)
        rows = np.flatnonzero((narrows | padded | changed.searched) & (ops.op >= 0))
        which, specs = specs_of(self._facts, ops.op[rows])
        states = np.stack((which, np.where(narrows, changed.dtype, -1)[rows], padded[rows], changed.searched[rows]))
        for state in np.unique(states[:, which >= 0], axis=1).T.tolist():
            at, dtype, is_padded, searched = state
            mine = (states == np.array(state)[:, None]).all(axis=0)
            narrower = _NARROWER[dtype] if dtype >= 0 else ""
            yield (specs[at], change_of(narrower, padded=bool(is_padded), searched=bool(searched))), rows[mine]

    def _of_call_ns(self, rows: IntArray) -> FloatArray:
        _, call = np.unique(self._ops.op[rows], return_inverse=True)
        taken: FloatArray = np.bincount(call.reshape(-1), self._ops.dur_ns[rows]).astype(np.float64)
        return taken

    def _casts(self, changed: _Changed, level: int) -> FloatArray:
        products, found = self._ops.products, np.zeros(len(self._ops.ids))
        rows = np.flatnonzero(changed.autocast & (changed.dtype >= _RANK["fp16"]) & (self._ops.row >= 0))
        calls = self._ops.row[rows]
        casts = (products.family[calls] == 0) & (products.dtype[calls] >= 0) & ~np.isin(products.dtype[calls], _SIXTEEN)
        cast_ns = CAST_BYTES * CAST[level] * WEIGHTS * products.weights[calls] / self._bandwidth
        found[rows] = np.where(casts, cast_ns / np.maximum(products.table.dur_ns[calls], 1), 0.0)
        return found

    def _rows(self, ids: IntArray) -> IntArray:
        rows: IntArray = self._at[ids]
        return rows[rows >= 0]

    def _shares(self, changed: _Changed, level: int) -> FloatArray:
        share = np.ones(len(self._ops.ids))
        multiplies = self._ops.row >= 0
        rows = np.flatnonzero(changed.touched & multiplies)
        if len(rows):
            share[rows] = self._of_products(changed, rows, level)
        moved = np.flatnonzero((changed.dtype >= 0) & ~multiplies)
        share[moved] = self._of_moved(changed, moved, level)
        if changed.searched.any():
            name = self._peaks.name if self._peaks else ""
            share[changed.searched] *= SEARCHED.get(name, SEARCHED_ELSEWHERE)[level]
        if changed.pinned.any():
            share[changed.pinned] = self._of_copies(np.flatnonzero(changed.pinned), level)
        larger = changed.times > 1
        filled = self._ops.filled[larger]
        best = np.maximum(filled, 1.0 / changed.times[larger])
        share[larger] *= ((1 + best) / 2, best + 0.2 * (1 - best), best)[level]
        return share

    def _of_products(self, changed: _Changed, rows: IntArray, level: int) -> FloatArray:
        """Of kernels of products, convolutions and attention; those of one call alike."""
        products, device = self._ops.products, self._peaks
        calls, first, position = np.unique(self._ops.row[rows], return_index=True, return_inverse=True)
        at = rows[first]
        before = products.dtype[calls].astype(np.int64)
        after = np.maximum(_PLACE[before], changed.dtype[at])
        after = np.where(before < 0, -1, _DTYPE[after])
        took = products.table.dur_ns[calls].astype(np.float64)
        if device is None:
            return np.ones(len(rows))
        was, now = (
            grades_in(products, dtypes)[calls] for dtypes in (self._all(calls, before), self._all(calls, after))
        )
        plain = products.family[calls] == FAMILIES.index(Family.PRODUCT)
        now = np.where(changed.padded[at] & plain, GRADES.index(Grade.ALIGNED), now)
        left = took.copy()
        kinds = np.stack((products.family[calls], before, was, after, now, changed.well_chosen[at]))
        for kind in np.unique(kinds[:, before >= 0], axis=1).T.tolist():
            mine = (kinds == np.array(kind)[:, None]).all(axis=0)
            left[mine] = self._of_kind(tuple(kind), calls[mine], took[mine], level)
        return (left / np.maximum(took, 1))[position.reshape(-1)]

    def _all(self, calls: IntArray, dtypes: IntArray) -> IntArray:
        found = np.full(len(self._ops.products.flops), -1, dtype=np.int64)
        found[calls] = dtypes
        return found

    def _of_kind(self, kind: tuple[int, ...], calls: IntArray, took: FloatArray, level: int) -> FloatArray:
        """What calls that are changed alike take then: as such ops were measured, else as the rates compare."""
        family, before, was, after, now, chosen = kind
        if (before, was) == (after, now) and not chosen:
            return took
        assert self._peaks is not None
        new = self._known(FAMILIES[family], DTYPES[after], GRADES[now])
        old = self._known(FAMILIES[family], DTYPES[before], GRADES[was])
        if new is None or self._peaks.tflops(DTYPES[after]) is None:
            return took
        flops, moved = self._ops.products.flops[calls], self._ops.products.bytes[calls]
        size = DTYPE_BYTES[DTYPES[after]] / DTYPE_BYTES[DTYPES[before]]
        in_sight = (1.0, (1.0 + CAUSAL) / 2, CAUSAL)[level] if FAMILIES[family] is Family.ATTENTION and chosen else 1.0
        said = new.took_ns(self._peaks, flops * in_sight, moved * size) * new.at(level)
        if DTYPES[after] == "fp8":
            said += QUANTISED * np.nan_to_num(moved) / self._bandwidth
        if chosen == UNSURE and level == 0:
            return took
        if old is None:
            said = said if level == LEVELS - 1 else np.maximum(said, took * min(size, 1.0))
        elif not chosen:
            beyond = took / old.took_ns(self._peaks, flops, moved)
            likely_same = FAMILIES[family] is Family.PRODUCT and not self._peaks.estimated
            said *= beyond / np.clip(beyond, 1 / TOLERATED, TOLERATED) if likely_same else beyond
        if np.isnan(said).any():
            said = np.where(np.isnan(said), took * self._by_rates(before, after, old, new) * UNKNOWN_RATIO[level], said)
        return np.minimum(said, took) if before == after or level == LEVELS - 1 else said

    def _known(self, family: Family, dtype: str, grade: Grade) -> Known | None:
        """What is known of the device; of one that was not measured, corrected by what the recording shows.

        On an H100 the correction was measured to gain nothing (docs/accuracy.md).
        """
        assert self._peaks is not None
        own = own_row(self._peaks, family, dtype, grade)
        return known(self._peaks, family, dtype, grade) if own else self._seen.known(self._peaks, family, dtype, grade)

    def _by_rates(self, before: int, after: int, old: Known | None, new: Known) -> float:
        """What is left of work of unknown size, by what is reached of each type's rate; 1 unknown."""
        assert self._peaks is not None
        was, now = (self._peaks.tflops(DTYPES[dtype]) for dtype in (before, after))
        if not was or not now:
            return 1.0
        left: float = was * (old or new).share / (now * new.share)
        return min(left, 1.0)

    def _of_moved(self, changed: _Changed, rows: IntArray, level: int) -> FloatArray:
        """Of kernels that multiply nothing: their bytes, and the casts around those that stay in fp32."""
        ops, cast = self._ops, changed.autocast[rows]
        took = ops.dur_ns[rows].astype(np.float64)
        size = _BYTES[changed.dtype[rows]]
        size = np.maximum(size, 2.0)  # What moves in fp8 are inputs of products alone.
        stored = np.maximum(ops.element_bytes[rows], 1e-9)
        left = np.where(ops.element_bytes[rows] > 0, np.minimum(size / stored, 1.0), 1.0)
        narrow = (size < 4) & (stored > size)
        stays = cast & narrow & (ops.casts[rows] >= 0)
        left = np.where(cast & narrow, np.where(stays, 1.0, MOVED_16[level]), left)
        casts_ns = np.where(
            stays, CAST_BYTES * CAST[level] * ops.casts[rows] * ops.elements[rows] / self._bandwidth, 0.0
        )
        fixed = np.minimum(self._fixed_ns, took)
        return (fixed + (took - fixed) * left + casts_ns) / np.maximum(took, 1.0)

    def _of_copies(self, rows: IntArray, level: int) -> FloatArray:
        """Of copies from pageable memory, or to it: by what such copies reach that are pinned."""
        one = known(self._peaks, Family.COPY, "") if self._peaks else None
        took, size = self._ops.dur_ns[rows].astype(np.float64), self._ops.copied[rows]
        if one is None or self._peaks is None or self._peaks.pcie_generation is None:
            return np.full(len(rows), UNKNOWN_COPY[level])
        said = one.took_ns(self._peaks, size * 0, size) * one.at(level)
        return np.minimum(np.where(size > 0, said / np.maximum(took, 1.0), UNKNOWN_COPY[level]), 1.0)

    def _fuse(self, one: Recost, fused: Fused, changed: _Changed, share: FloatArray, gone: Mask, level: int) -> None:
        rows, group = self._in_groups(one.what, fused)
        first = np.diff(group, prepend=-1) > 0
        took = self._ops.dur_ns[rows].astype(np.float64)
        left: FloatArray = np.bincount(group, took * share[rows] * ~gone[rows]).astype(np.float64)
        if isinstance(fused, Attended):
            new = self._attended(fused, self._multiplies_in(rows, group, changed), level)
        else:
            assert isinstance(fused, Chained | UpdatedAtOnce)
            narrowed = np.minimum(left / np.maximum(np.bincount(group, took), 1.0), 1.0)
            longest = np.maximum.reduceat(took * share[rows], np.flatnonzero(first))
            new = self._passed_once(fused, narrowed, left, longest, level)
            if isinstance(fused, Chained) and fused.stays is not None:
                order = np.lexsort((one.what, fused.group))
                new = new + np.bincount(group, took * share[rows] * fused.stays[order])
        taken = np.bincount(group, took)
        for key, mine in self._keys_of_groups(fused, rows, group, changed) if self._measured.found else ():
            told = self._measured.share(key, float(np.median(taken[mine])))
            if told is not None:
                in_sight = _in_sight(fused, level) if isinstance(fused, Attended) else 1.0
                new = np.where(mine, taken * told[level] * in_sight, new)
        if isinstance(fused, UpdatedAtOnce):
            share[rows] *= np.fmin(new / np.maximum(left, 1.0), 1.0)[group]
            changed.touched[rows] = True
            return
        gone[rows[~first]] = True
        leading = rows[first]
        share[leading] = np.fmin(new, left)[group[first]] / np.maximum(self._ops.dur_ns[leading], 1)
        changed.touched[leading] = True

    def _multiplies_in(self, rows: IntArray, group: IntArray, changed: _Changed) -> FloatArray:
        """Bytes of an element of what each group's products multiply after all changes. Shape (groups,)."""
        call = self._ops.row[rows]
        before = np.append(self._ops.products.dtype, -1)[call]
        after = np.maximum(np.where(before >= 0, _PLACE[before], 0), changed.dtype[rows])
        size = np.where(call >= 0, _BYTES[after], np.inf)
        return np.minimum.reduceat(size, np.flatnonzero(np.diff(group, prepend=-1)))

    def _passed_once(
        self, fused: Chained | UpdatedAtOnce, narrowed: FloatArray, left: FloatArray, longest: FloatArray, level: int
    ) -> FloatArray:
        """What each group takes where it reads and writes once, of which changes of its types leave a share."""
        if isinstance(fused, Scattered):
            rate = (self._peaks.memory_gbps if self._peaks else np.inf) * SCATTERED
            best = np.where(fused.bytes > 0, np.maximum(fused.bytes / rate, SHORTEST_NS), left / 2)
            return best + UNKNOWN_CHAIN[level] * np.maximum(left - best, 0)
        if isinstance(fused, Chained):
            kind, unknown = (Family.CHAIN, ""), longest + UNKNOWN_CHAIN[level] * (left - longest)
        else:
            kind, unknown = (Family.OPTIMIZER, "fp32"), left * UNKNOWN_UPDATE[level]
        one = known(self._peaks, *kind) if self._peaks else None
        if one is None or self._peaks is None:
            return unknown
        said = one.took_ns(self._peaks, fused.bytes * 0, fused.bytes * narrowed) * one.at(level)
        return np.where(fused.bytes > 0, said, unknown)

    def _attended(self, fused: Attended, size: FloatArray, level: int) -> FloatArray:
        """What each pass takes as one kernel, in 16 bits or in fp32; NaN unknown. Shape (passes,)."""
        said, device = np.full(len(fused.flops), np.nan), self._peaks
        if device is None:
            return said
        in_sight = _in_sight(fused, level)
        half = "bf16" if device.bf16_tflops else "fp16"
        for dtype in (half, "fp32"):
            for grade in (Grade.FORWARD, Grade.BACKWARD):
                mine = ((size <= 2) == (dtype == half)) & (fused.backward == (grade is Grade.BACKWARD))
                one = known(device, Family.ATTENTION, dtype, grade)
                if one is not None and mine.any():
                    flops, moved = fused.flops[mine] * in_sight, fused.elements[mine] * size[mine]
                    said[mine] = one.took_ns(device, flops, moved) * one.at(level)
        return said


def _in_sight(fused: Attended, level: int) -> float:
    """Of the flops of attention, what its mask is thought to leave."""
    return (1.0, CAUSAL if fused.masked else 1.0, CAUSAL)[level]


@fact
def cost_book(facts: Facts) -> CostBook | HostBook:
    """The prices; where the CPU trains, of ops. Raises Missing without device work elsewhere."""
    return HostBook(facts) if trains_on_cpu(facts) else CostBook(facts)


def wanted(facts: Facts, fixes: Sequence[Sequence[Recost]], least_ns: float) -> list[Wanted]:
    """What is to be measured for the changes of each fix alone, and of all together; what takes most of a step first.

    Nothing that was measured or cannot be, and nothing that takes less of a step. Raises Missing like `cost_book`.
    """
    book = cost_book(facts)
    known = {key for key, one in measured_costs(facts).found.items() if one.tells or one.why}
    changes, taken = defaultdict[OpSpec, list[str]](list), dict[OpSpec, float]()
    for recosts in (*fixes, [one for fix in fixes for one in fix]):
        for (spec, change), ns in book.asked(recosts):
            if (spec, change) not in known and change not in changes[spec] and ns >= least_ns:
                changes[spec].append(change)
                taken[spec] = max(ns, taken.get(spec, 0.0))
    ordered = sorted(taken, key=lambda spec: -taken[spec])
    return [Wanted(spec, tuple(changes[spec]), taken[spec]) for spec in ordered]


def rest_on_measurements(facts: Facts, recosts: Sequence[Recost]) -> bool:
    """Whether most of the time that these change was measured after the change."""
    measured = measured_costs(facts)
    book = optional(cost_book, facts) if measured.found else None
    if book is None:
        return False
    asked = list(book.asked(recosts))
    known = sum(ns for key, ns in asked if measured.share(key, 1.0) is not None)
    return known > 0 and known >= MOSTLY * sum(ns for _, ns in asked)
