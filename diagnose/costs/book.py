"""What device operations take after changes: all changes of an operation are put together, and priced once."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.costs.changes import (
    BYTES,
    NARROWER,
    PLACE,
    RANK,
    UNSURE,
    Attended,
    Chained,
    Changed,
    FloatArray,
    Fused,
    Left,
    Mask,
    Recost,
    Scattered,
    UpdatedAtOnce,
)
from diagnose.costs.host import HostBook
from diagnose.costs.known import BANDWIDTH, SEARCHED, SEARCHED_ELSEWHERE, Family, Grade, Known, known, own_row
from diagnose.costs.measured import MOSTLY, Key, Wanted, alike, keys, keys_of_groups, measured_costs, seen
from diagnose.costs.ops import FAMILIES, GRADES, costed_ops, grades_in
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.inputs import SHORTEST_NS, type_rates
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.steps import steps
from diagnose.trace.costs import DTYPE_BYTES, DTYPES
from diagnose.trace.hardware import Peaks
from diagnose.trace.intervals import IntArray
from diagnose.trace.measured import OpSpec

LEVELS = 3  # Low, likely and high estimate of what a fix saves, as `replay.edits.Estimate`.
CAST_BYTES = 6.0  # That casting an element between fp32 and 16 bits reads and writes.
CAST = (1.0, 1.0, 0.5)  # Of the casts that autocast may need, those that are thought to be there (our choice).
MOVED_16 = (1.0, 0.75, 0.5)  # Of the bytes of a memory-bound op under autocast: some of it stays in fp32 (our choice).
WEIGHTS = 2 / 3  # Of a layer's three products, those beside which its weight, or the gradient of that, is cast.
QUANTISED = 1.7
"""For fp8, of a product's bytes in 16 bits, what finding scales and casting its inputs moves: 5 bytes an element of
these, of 2 bytes an element of all three."""
TOLERATED = 1.5
"""By how much single products differ from what is known without a reason: 80 % of those measured lie between 0.64 and
1.6. What one takes beyond it is thought to be there after the change as well."""
FIXED_NS = 1_500  # Of a memory-bound kernel whatever its bytes, if no row of its device says: 1.5 to 2.5 us on an H100.
CAUSAL = 0.5  # Of the flops of attention, what a causal mask leaves.
UNKNOWN_CHAIN = (0.75, 0.4, 0.0)  # Of a chain's time beyond its longest kernel, if its bytes are unknown (our choice).
UNKNOWN_RATIO = (1.3, 1.0, 0.8)  # Around the ratio of two types' rates, where an op's flops are not known (our choice).
UNKNOWN_UPDATE = (1.0, 0.6, 0.3)
"""Of the time of an update that is not fused, where its bytes are not known: a fused Adam moves 28 bytes a parameter, a
foreach one four to six times as much; on an H100 0.36 to 0.64 of the time were left."""
UNKNOWN_COPY = (1.0, 0.6, 0.3)  # Of a copy from pageable memory: such reach 25 to 60 % of the speed of pinned ones.
SCATTERED = 0.6  # Of the memory's rate, with accesses all over it (our choice).

_SIXTEEN = [DTYPES.index("fp16"), DTYPES.index("bf16")]
_DTYPE = np.array([DTYPES.index(dtype) for dtype in NARROWER])


class CostBook:
    """Prices of changes of a rank's device operations. Raises Missing without device work."""

    def __init__(self, facts: Facts) -> None:
        self._facts, self._ops, self._seen = facts, costed_ops(facts), seen(facts)
        self._measured, self._steps = measured_costs(facts), max(steps(facts).count, 1)
        self._peaks: Peaks | None = optional(type_rates, facts)
        self._at = np.full(len(facts.rank.spans), -1, dtype=np.int64)
        self._at[self._ops.ids] = np.arange(len(self._ops.ids))
        moved = known(self._peaks, Family.MEMORY, "") if self._peaks else None
        self._fixed_ns = moved.fixed_ns if moved else FIXED_NS
        self._bandwidth = self._peaks.memory_gbps * (moved.share if moved else BANDWIDTH) if self._peaks else np.inf

    def left(self, recosts: Sequence[Recost], level: int) -> Left:
        """What is left of operations after all changes together; `level`: of the saving, 0 low, 1 likely, 2 high."""
        changed = self._changed(recosts)
        share = self._shares(changed, level)
        for key, rows in keys(self._facts, self._ops, changed) if self._measured.found else ():
            measured = self._measured.share(key, float(np.median(self._times_of_calls(rows))))
            if measured is not None:
                share[rows] = measured[level]
        share += self._cast_shares(changed, level)
        gone = np.zeros(len(share), dtype=bool)
        for kind in (Chained, Scattered, UpdatedAtOnce, Attended):  # What is in attention is no longer in a chain.
            for one in recosts:
                if type(one.change) is kind and len(one.what):
                    self._fuse(one, one.change, changed, share, gone, level)
        touched = np.flatnonzero(changed.touched & ~gone)
        return Left(self._ops.ids[touched], share[touched], self._ops.ids[gone])

    def asked(self, recosts: Sequence[Recost]) -> Iterator[tuple[Key, float]]:
        """Each op and change to measure for the price of these changes together, with its ns per step now."""
        changed = self._changed(recosts)
        taken = self._ops.dur_ns * self._ops.in_steps / self._steps
        for key, rows in keys(self._facts, self._ops, changed):
            yield key, float(taken[rows].sum())
        for one in recosts:
            if isinstance(one.change, Fused) and len(one.what):
                rows, group = self._sorted_by_group(one.what, one.change)
                for key, mine in keys_of_groups(one.change, self._ops, rows, group, changed):
                    yield key, float((taken[rows] * mine[group]).sum())

    def _changed(self, recosts: Sequence[Recost]) -> Changed:
        changed = Changed(len(self._ops.ids))
        for one in recosts:
            rows = self._at[one.what]
            changed.mark(rows[rows >= 0], one.change)
        return changed

    def _sorted_by_group(self, what: IntArray, fused: Fused) -> tuple[IntArray, IntArray]:
        order = np.lexsort((what, fused.group))
        return self._at[what[order]], fused.group[order]

    def _times_of_calls(self, rows: IntArray) -> FloatArray:
        """ns of each op that launched these operations: the sum over its own. Shape (ops,)."""
        _, call = np.unique(self._ops.op[rows], return_inverse=True)
        taken: FloatArray = np.bincount(call.reshape(-1), self._ops.dur_ns[rows]).astype(np.float64)
        return taken

    def _cast_shares(self, changed: Changed, level: int) -> FloatArray:
        """What casts for autocast add to each product, as a share of its recorded time. Shape (operations,)."""
        products, found = self._ops.products, np.zeros(len(self._ops.ids))
        rows = np.flatnonzero(changed.autocast & (changed.dtype >= RANK["fp16"]) & (self._ops.row >= 0))
        calls = self._ops.row[rows]
        casts = (products.family[calls] == 0) & (products.dtype[calls] >= 0) & ~np.isin(products.dtype[calls], _SIXTEEN)
        cast_ns = CAST_BYTES * CAST[level] * WEIGHTS * products.weights[calls] / self._bandwidth
        found[rows] = np.where(casts, cast_ns / np.maximum(products.table.dur_ns[calls], 1), 0.0)
        return found

    def _shares(self, changed: Changed, level: int) -> FloatArray:
        """For each operation the share of its recorded time that it takes after all changes but Fused ones."""
        share, multiplies = np.ones(len(self._ops.ids)), self._ops.row >= 0
        rows = np.flatnonzero(changed.touched & multiplies)
        if len(rows):
            share[rows] = self._of_products(changed, rows, level)
        moved = np.flatnonzero((changed.dtype >= 0) & ~multiplies)
        share[moved] = self._of_moved(changed, moved, level)
        if changed.searched.any():
            name = self._peaks.name if self._peaks else ""
            share[changed.searched] *= SEARCHED.get(name, SEARCHED_ELSEWHERE)[level]
        share[changed.pinned] = self._of_copies(np.flatnonzero(changed.pinned), level)
        larger = changed.times > 1
        best = np.maximum(self._ops.filled[larger], 1.0 / changed.times[larger])
        share[larger] *= ((1 + best) / 2, best + 0.2 * (1 - best), best)[level]
        return share

    def _of_products(self, changed: Changed, rows: IntArray, level: int) -> FloatArray:
        """Share of its time that each changed product, convolution or attention takes; kernels of one call share it."""
        products, device = self._ops.products, self._peaks
        calls, first, position = np.unique(self._ops.row[rows], return_index=True, return_inverse=True)
        at = rows[first]
        before = products.dtype[calls].astype(np.int64)
        after = np.maximum(PLACE[before], changed.dtype[at])
        after = np.where(before < 0, -1, _DTYPE[after])
        took = products.table.dur_ns[calls].astype(np.float64)
        if device is None:
            return np.ones(len(rows))
        grade_before, grade_after = (
            grades_in(products, dtypes)[calls] for dtypes in (self._by_row(calls, before), self._by_row(calls, after))
        )
        plain = products.family[calls] == FAMILIES.index(Family.PRODUCT)
        grade_after = np.where(changed.padded[at] & plain, GRADES.index(Grade.ALIGNED), grade_after)
        new_ns = took.copy()
        kinds = np.stack((products.family[calls], before, grade_before, after, grade_after, changed.well_chosen[at]))
        for kind, alike_calls in alike(kinds, before >= 0):
            new_ns[alike_calls] = self._of_kind(kind, calls[alike_calls], took[alike_calls], level)
        return (new_ns / np.maximum(took, 1))[position.reshape(-1)]

    def _by_row(self, calls: IntArray, dtypes: IntArray) -> IntArray:
        found = np.full(len(self._ops.products.flops), -1, dtype=np.int64)
        found[calls] = dtypes
        return found

    def _of_kind(self, kind: tuple[int, ...], calls: IntArray, took: FloatArray, level: int) -> FloatArray:
        """New ns of calls that change alike, by the device's known rates before and after; unchanged if unknown."""
        family, before, grade_before, after, grade_after, chosen = kind
        if (before, grade_before) == (after, grade_after) and not chosen:
            return took
        assert self._peaks is not None
        new = self._known(FAMILIES[family], DTYPES[after], GRADES[grade_after])
        old = self._known(FAMILIES[family], DTYPES[before], GRADES[grade_before])
        if new is None or self._peaks.tflops(DTYPES[after]) is None:
            return took
        flops, moved = self._ops.products.flops[calls], self._ops.products.bytes[calls]
        size = DTYPE_BYTES[DTYPES[after]] / DTYPE_BYTES[DTYPES[before]]
        in_sight = (1.0, (1.0 + CAUSAL) / 2, CAUSAL)[level] if FAMILIES[family] is Family.ATTENTION and chosen else 1.0
        ns = new.took_ns(self._peaks, flops * in_sight, moved * size) * new.at(level)
        if DTYPES[after] == "fp8":
            ns += QUANTISED * np.nan_to_num(moved) / self._bandwidth
        if chosen == UNSURE and level == 0:
            return took
        if old is None:
            ns = ns if level == LEVELS - 1 else np.maximum(ns, took * min(size, 1.0))
        elif not chosen:
            beyond = took / old.took_ns(self._peaks, flops, moved)
            likely_same = FAMILIES[family] is Family.PRODUCT and not self._peaks.estimated
            ns *= beyond / np.clip(beyond, 1 / TOLERATED, TOLERATED) if likely_same else beyond
        if np.isnan(ns).any():
            ns = np.where(np.isnan(ns), took * self._by_rates(before, after, old, new) * UNKNOWN_RATIO[level], ns)
        return np.minimum(ns, took) if before == after or level == LEVELS - 1 else ns

    def _known(self, family: Family, dtype: str, grade: Grade) -> Known | None:
        """Known rates of this device; if it was not measured, of another, corrected by what this recording shows."""
        assert self._peaks is not None
        own = own_row(self._peaks, family, dtype, grade)
        return known(self._peaks, family, dtype, grade) if own else self._seen.known(self._peaks, family, dtype, grade)

    def _by_rates(self, before: int, after: int, old: Known | None, new: Known) -> float:
        """Share of the time that work of unknown size takes in the new type, by reached rates; 1 if unknown."""
        assert self._peaks is not None
        before_tflops, after_tflops = (self._peaks.tflops(DTYPES[dtype]) for dtype in (before, after))
        if not before_tflops or not after_tflops:
            return 1.0
        left: float = before_tflops * (old or new).share / (after_tflops * new.share)
        return min(left, 1.0)

    def _of_moved(self, changed: Changed, rows: IntArray, level: int) -> FloatArray:
        """Share of its time that each kernel without products takes in a narrower type, plus casts around fp32 ops."""
        ops, cast = self._ops, changed.autocast[rows]
        took = ops.dur_ns[rows].astype(np.float64)
        size = np.maximum(BYTES[changed.dtype[rows]], 2.0)  # What moves in fp8 are inputs of products alone.
        stored = np.maximum(ops.element_bytes[rows], 1e-9)
        left = np.where(ops.element_bytes[rows] > 0, np.minimum(size / stored, 1.0), 1.0)
        narrow = (size < 4) & (stored > size)
        stays = cast & narrow & (ops.casts[rows] >= 0)
        left = np.where(cast & narrow, np.where(stays, 1.0, MOVED_16[level]), left)
        casts_ns: FloatArray = stays * CAST_BYTES * CAST[level] * ops.casts[rows] * ops.elements[rows] / self._bandwidth
        fixed = np.minimum(self._fixed_ns, took)
        return (fixed + (took - fixed) * left + casts_ns) / np.maximum(took, 1.0)

    def _of_copies(self, rows: IntArray, level: int) -> FloatArray:
        """Share of its time that each pageable copy takes from pinned memory."""
        pinned_rate = known(self._peaks, Family.COPY, "") if self._peaks else None
        took, size = self._ops.dur_ns[rows].astype(np.float64), self._ops.copied[rows]
        if pinned_rate is None or self._peaks is None or self._peaks.pcie_generation is None:
            return np.full(len(rows), UNKNOWN_COPY[level])
        pinned_ns = pinned_rate.took_ns(self._peaks, size * 0, size) * pinned_rate.at(level)
        return np.minimum(np.where(size > 0, pinned_ns / np.maximum(took, 1.0), UNKNOWN_COPY[level]), 1.0)

    def _fuse(self, one: Recost, fused: Fused, changed: Changed, share: FloatArray, gone: Mask, level: int) -> None:
        """Prices groups of ops as one: the first of each group takes all of the new time, the others are gone."""
        rows, group = self._sorted_by_group(one.what, fused)
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
        for key, mine in keys_of_groups(fused, self._ops, rows, group, changed) if self._measured.found else ():
            measured = self._measured.share(key, float(np.median(taken[mine])))
            if measured is not None:
                in_sight = _in_sight(fused, level) if isinstance(fused, Attended) else 1.0
                new = np.where(mine, taken * measured[level] * in_sight, new)
        if isinstance(fused, UpdatedAtOnce):
            share[rows] *= np.fmin(new / np.maximum(left, 1.0), 1.0)[group]
            changed.touched[rows] = True
            return
        gone[rows[~first]] = True
        leading = rows[first]
        share[leading] = np.fmin(new, left)[group[first]] / np.maximum(self._ops.dur_ns[leading], 1)
        changed.touched[leading] = True

    def _multiplies_in(self, rows: IntArray, group: IntArray, changed: Changed) -> FloatArray:
        """Bytes of an element of what each group's products multiply after all changes. Shape (groups,)."""
        call = self._ops.row[rows]
        before = np.append(self._ops.products.dtype, -1)[call]
        after = np.maximum(np.where(before >= 0, PLACE[before], 0), changed.dtype[rows])
        size = np.where(call >= 0, BYTES[after], np.inf)
        return np.minimum.reduceat(size, np.flatnonzero(np.diff(group, prepend=-1)))

    def _passed_once(
        self, fused: Chained | UpdatedAtOnce, narrowed: FloatArray, left: FloatArray, longest: FloatArray, level: int
    ) -> FloatArray:
        """ns of each group if it reads and writes its tensors once; `narrowed`: share of bytes that new types leave."""
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
        """ns of each attention pass as one fused kernel, in 16 bits or in fp32; NaN unknown. Shape (passes,)."""
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
    """The ops and changes to measure for each fix alone, and for all together; longest first. Without those that take
    less than `least_ns` of a step, were measured, or cannot be measured. Raises Missing like `cost_book`."""
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
