"""Ops whose results are known before, and what an entry of the ledger of wasted work is.

What was seen of each op tells (`seen_ops`). A row is an array of positions of ops there, which follow each other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import compress
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.autograd.backward import backward_nodes, backward_ops, gradient_shapes, nodes_of
from diagnose.facts.core.base import Facts, Missing, once, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import Inputs, Mask, Shape, Work, first_shape, inputs_of, work_of
from diagnose.facts.core.seen_ops import NOT_COUNTED, SeenOps, is_layer, seen_ops
from diagnose.facts.core.spans import HostSpans, host_spans, sites_of, used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.optimizer.optimizer import updates
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals


class Cause(Enum):
    """Why work is wasted: what takes the time, as the beginning of a sentence."""

    DUPLICATE = "computing the same values again"
    CONSTANT = "recomputing constants"
    ZEROS_IN_OPERAND = "multiplying nearly all-zero matrices"
    FROZEN_ROWS = "running frozen layers on rows of a table"
    UNUSED_GRADIENT = "computing unused gradients"
    UNUSED_GRAPH = "recording unused autograd graphs"


class Wasted(Struct, frozen=True):
    """Ops of one source line, or of one origin, all or a part of whose work is for nothing."""

    ops: tuple[str, ...]  # Their names, each once, in the order in which they are called.
    times: int  # How often that is, per step.
    work: Work
    back: Work  # The nodes of backward passes that go with the ops.
    steps_seen: int  # Used steps that have them.
    site: Site | None  # The line of the first op.
    share: float  # Of their time and that of the nodes that is wasted, 0 to 1.
    other_site: Site | None  # Where the same had been computed before.
    track: int  # The main thread.
    between: Intervals = intervals.EMPTY  # Of that thread, between the ops; gone, too, if all of these are left out.
    kind: str = ""  # Which of a cause's kinds it is, where another fix is better than usual; else empty.
    detail: str = ""  # A noun phrase that says more.
    doubt: Missing | None = None  # What has to be known to be sure that it is wasted; None if it is.

    @property
    def longest_ns(self) -> int:
        """What all of it takes per step, on the host or the device."""
        return max(self.work.host_ns + self.back.host_ns, self.work.device_ns + self.back.device_ns)

    @property
    def wasted_ns(self) -> int:
        """What of that is for nothing."""
        return round(self.longest_ns * self.share)


Finder: TypeAlias = "Callable[[Facts], tuple[Wasted, ...]]"

FINDERS: dict[Cause, Finder] = {}

NO_SPANS: IntArray = np.zeros(0, dtype=np.int64)


def finds(cause: Cause) -> Callable[[Callable[[Facts], Iterable[Wasted]]], Finder]:
    """Make a function the finder of a cause: computed once per Facts, what wastes most first, Missing remembered."""

    def made(compute: Callable[[Facts], Iterable[Wasted]]) -> Finder:
        def found(facts: Facts) -> tuple[Wasted, ...]:
            return tuple(sorted((one for one in compute(facts) if one.steps_seen), key=lambda one: -one.wasted_ns))

        FINDERS[cause] = once(found)
        return FINDERS[cause]

    return made


def of_spans(facts: Facts, ids: IntArray, back: IntArray = NO_SPANS, other: int = -1) -> Wasted:
    """An entry: these ops and nodes `back` of their backward pass, all wasted. `other`: the op of `other_site`."""
    step = used_step(facts, ids)
    sites = sites_of(facts, np.array([int(ids[0]), *([other] if other >= 0 else [])]))
    return Wasted(
        ops=tuple(dict.fromkeys(facts.rank.spans["name"].iloc[ids].astype(str))),
        times=round_half_up(int((step >= 0).sum()), steps(facts).count),
        work=work_of(facts, ids),
        back=work_of(facts, back),
        share=1.0,
        steps_seen=len(set(step.tolist()) - {-1}),
        site=sites[0],
        other_site=sites[1] if other >= 0 else None,
        track=host_threads(facts).main,
    )


def of_rows(
    facts: Facts, seen: SeenOps, rows: Sequence[IntArray], back: IntArray | None = None, other: int = -1
) -> Wasted:
    """An entry for rows with the time between ops of a row; `back`: nodes instead of those of their backward pass."""
    ids = seen.ids[:, np.concatenate(rows)]
    recorded = ids[ids >= 0]
    back = backward_ops(facts, main_spans(facts, recorded)) if back is None else back
    between = _between(facts, [seen.ids[:, row] for row in rows])
    return replace(of_spans(facts, recorded, back, other), between=between)


def in_a_row(seen: SeenOps, label: IntArray | Mask) -> Iterator[IntArray]:
    """Rows of ops that make values and follow each other, views aside, with an equal label above 0 (or True)."""
    making = np.flatnonzero(seen.makes)
    for run in np.split(making, np.flatnonzero(np.diff(label[making])) + 1):
        if len(run) and label[run[0]] > 0:
            yield run


def by_line(facts: Facts, seen: SeenOps, rows: Iterable[IntArray]) -> list[list[IntArray]]:
    """Rows grouped by the line of their first op, else by names; without unrecorded rows, and those of optimizers."""
    rows_of_op = [(row, int(ids[ids >= 0][0])) for row in rows if ((ids := seen.ids[:, row]) >= 0).any()]
    start = facts.rank.spans["start_ns"].to_numpy()[[op for _, op in rows_of_op] or NO_SPANS]
    own = intervals.covered(Intervals(start, start + 1), updates(facts).times) == 0
    known, found = list(compress(rows_of_op, own)), dict[object, list[IntArray]]()
    sites = sites_of(facts, np.array([op for _, op in known], dtype=np.int64))
    for (row, _), site in zip(known, sites, strict=True):
        found.setdefault(site or tuple(seen.names[one] for one in row.tolist()), []).append(row)
    return list(found.values())


def main_spans(facts: Facts, ids: IntArray) -> HostSpans:
    """Those of the ops that are on the main thread, without those in others of them."""
    ops = host_spans(facts, SpanKind.OP)
    return ops.where(np.isin(ops.ids, ids) & (ops.track == host_threads(facts).main)).outermost()


def _between(facts: Facts, rows: Sequence[IntArray]) -> Intervals:
    """Time of the main thread from the first op of a row to the last in each step, but what is in ops of a row."""
    table, main = facts.rank.spans, host_threads(facts).main
    start, end = table["start_ns"].to_numpy(), (table["start_ns"] + table["dur_ns"]).to_numpy()
    known = [one[one >= 0] for row in rows for one in row]
    mine = [one for one in known if len(one) and (table["track"].to_numpy()[one] == main).all()]
    if not mine:
        return intervals.EMPTY
    whole = intervals.union(intervals.of([start[one].min() for one in mine], [end[one].max() for one in mine]))
    ops = np.concatenate(mine)
    return intervals.subtract(whole, intervals.union(Intervals(start[ops], end[ops])))


DRAWS = tuple(f"aten::{name}" for name in ("rand", "normal", "uniform", "multinomial", "poisson"))
"""How names of ops begin that draw numbers, but for those of layers, such as dropout."""

LEAST_ZEROS, ALL = 980, 1000
"""Thousandths that have to be zero: below 2 % of other elements sparse products were faster, forth and back (torch
2.13, CSR, one core of a Xeon: 512 to 2,048 rows, by 64 columns). Of all: a recurrent net begins so."""

_NO_DATA = Missing("whether steps get new data", "Record with the real training data.")


@finds(Cause.DUPLICATE)
def duplicates(facts: Facts) -> Iterator[Wasted]:
    """What was computed before in the same step. Raises Missing like seen_ops.

    What checkpoints compute again in a backward pass is left out. `back` has the nodes of a repeated op that run in the
    same backward pass as nodes of the first: one run is enough for both.
    """
    seen = seen_ops(facts)
    for rows in by_line(facts, seen, _rows(seen, seen.first >= 0)):
        ops = np.concatenate(rows)
        again, before = seen.ids[:, ops], seen.ids[:, seen.first[ops]]
        both = (again >= 0) & (before >= 0)
        again, before = again[both], before[both]
        other = int(before[0]) if len(again) else -1
        yield replace(of_rows(facts, seen, rows, back=_merging(facts, again, before), other=other), times=len(rows))


def _merging(facts: Facts, again: IntArray, before: IntArray) -> IntArray:
    """Ids of the nodes of `again`, run in a backward pass that also runs nodes of the op (of `before`) each repeats."""
    nodes = optional(backward_nodes, facts)
    if nodes is None:
        return again[:0]
    spans = main_spans(facts, np.concatenate((again, before)))
    op, node = nodes_of(facts, spans)
    pairs = list(zip(spans.ids[op].tolist(), nodes.passed[node].tolist(), strict=True))
    ran, first = set(pairs), dict(zip(again.tolist(), before.tolist(), strict=True))
    return nodes.spans.ids[node[[(first.get(one), passed) in ran for one, passed in pairs]]]


@finds(Cause.CONSTANT)
def constants(facts: Facts) -> Iterator[Wasted]:
    """What the step before had computed, too, but no op before in this step. Raises Missing like seen_ops.

    What depends on memory that no op filled is in doubt unless steps are known to get new data: all steps may have been
    given one batch.
    """
    seen, context = seen_ops(facts), facts.rank.context
    fetches = context is not None and any(loader.batches for loader in context.rank.loaders)
    new_data = fetches or any(name.startswith(DRAWS) for name in seen.names)
    for rows in by_line(facts, seen, _rows(seen, seen.constant & (seen.first < 0))):
        of_batch = bool(seen.brought[np.concatenate(rows)].any()) and not new_data
        yield replace(of_rows(facts, seen, rows), times=len(rows), doubt=_NO_DATA if of_batch else None)


def _rows(seen: SeenOps, chosen: Mask) -> Iterator[IntArray]:
    """Rows of chosen ops. Where ops begin to repeat what the row has repeated already, another row begins.

    Rows that only a backward pass computes are left out: autograd makes a mask for each input of a maximum by itself.
    """
    for run in in_a_row(seen, chosen):
        begin, first = 0, seen.first[run].tolist()
        for at in range(1, len(run) + 1):
            if at == len(run) or 0 <= first[at] <= first[begin]:
                if not seen.backward[run[begin:at]].all():
                    yield run[begin:at]
                begin = at


@finds(Cause.ZEROS_IN_OPERAND)
def sparse_products(facts: Facts) -> Iterator[Wasted]:
    """Products with matrices of which nearly all is zero. Raises Missing like seen_ops, and if nobody counted zeros.

    Not those whose results are known already.
    """
    seen = seen_ops(facts)
    if (zeros := seen.sparse) is None:
        raise NOT_COUNTED
    sparse = (zeros >= LEAST_ZEROS) & (zeros < ALL) & (seen.first < 0) & ~seen.constant & ~seen.backward
    sparse &= np.array([name != "aten::convolution" for name in seen.names], dtype=bool)  # Torch has no such.
    for rows in by_line(facts, seen, np.flatnonzero(sparse).reshape(-1, 1)):
        ops = np.concatenate(rows)
        kind = "batched" if any(seen.names[op].endswith("bmm") for op in ops) else ""
        yield replace(of_rows(facts, seen, rows), share=int(zeros[ops].min()) / ALL, kind=kind)


@finds(Cause.FROZEN_ROWS)
def frozen_rows(facts: Facts) -> Iterator[Wasted]:
    """What layers that learn nothing make of rows of a table that never changes, by lookup: always the same.

    Such layers depend on nothing that changes or is drawn. A net whose weights all have shapes of weights that learn is
    left out: as a target network it may be a copy of these, renewed after more steps than were looked at. Raises
    Missing like seen_ops, and if nobody looked for lookups.
    """
    seen = seen_ops(facts)
    lookups = seen.looked_up
    if lookups is None:
        raise NOT_COUNTED
    nodes = optional(backward_nodes, facts)
    learnt = {tuple(sorted(shape)) for shape in gradient_shapes(facts, nodes) if shape} if nodes else set[Shape]()
    for lookup in np.unique(lookups[lookups >= 0]).tolist():
        mine = (lookups == lookup) & (np.arange(len(lookups)) != lookup)
        layers = [at for at in np.flatnonzero(mine & seen.makes).tolist() if is_layer(seen.names[at])]
        if any(_weight(facts, seen, at) not in {*learnt, None} for at in layers):
            table = next((shape for input_ in _inputs(facts, seen, lookup) if (shape := first_shape(input_))), ())
            detail = f"a table of {table[0]:,}" if table else "a table"
            yield replace(of_rows(facts, seen, list(in_a_row(seen, mine))), times=len(layers), detail=detail)


def _weight(facts: Facts, seen: SeenOps, at: int) -> Shape | None:
    """The sorted shape of a layer's weight, which convolutions take second and others last. None where not recorded."""
    for inputs in _inputs(facts, seen, at):
        shapes = [some[0].shape for some in inputs if some and len(some[0].shape) > 1]
        if len(shapes) > 1:
            return tuple(sorted(shapes[1] if len(shapes[1]) > 2 else shapes[-1]))
    return None


def _inputs(facts: Facts, seen: SeenOps, at: int) -> list[Inputs]:
    ids = seen.ids[:, at]
    return inputs_of(facts, ids[ids >= 0])
