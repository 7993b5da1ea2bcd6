"""Ops whose results are known before, and what an entry of the ledger of wasted work is.

All are told by what was seen of each op, row by row as they were called.
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
    between: Intervals = intervals.EMPTY
    """Time of that thread between the ops, which goes if these are left out as a whole."""
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
    """Ops, and the nodes of their backward pass; all is wasted. `other`: the op of `other_site`."""
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
    """Rows of ops that were seen, with their backward pass, and the time between the ops of each row."""
    ids = seen.ids[:, np.concatenate(rows)]
    recorded = ids[ids >= 0]
    back = backward_ops(facts, main_spans(facts, recorded)) if back is None else back
    between = _between(facts, [seen.ids[:, row] for row in rows])
    return replace(of_spans(facts, recorded, back, other), between=between)


def in_a_row(seen: SeenOps, label: IntArray | Mask) -> Iterator[IntArray]:
    """Ops that make something and have the same label, which is more than 0, as far as they follow each other."""
    making = np.flatnonzero(seen.makes)
    for run in np.split(making, np.flatnonzero(np.diff(label[making])) + 1):
        if len(run) and label[run[0]] > 0:
            yield run


def by_line(facts: Facts, seen: SeenOps, rows: Iterable[IntArray]) -> list[list[IntArray]]:
    """Rows by the line of their first op; without those of which nothing was recorded, and those of optimizers."""
    rows_of_op = [(row, int(ids[ids >= 0][0])) for row in rows if ((ids := seen.ids[:, row]) >= 0).any()]
    start = facts.rank.spans["start_ns"].to_numpy()[[op for _, op in rows_of_op] or NO_SPANS]
    own = intervals.covered(Intervals(start, start + 1), updates(facts).times) == 0
    known, first = [row for row, _ in compress(rows_of_op, own)], [op for _, op in compress(rows_of_op, own)]
    names = [tuple(seen.names[one] for one in row.tolist()) for row in known]
    return [[known[at] for at in some] for some in of_one_line(facts, first, names)]


def of_one_line(facts: Facts, ids: Sequence[int], otherwise: Sequence[object]) -> list[list[int]]:
    """Positions of ops by their line; by what is given otherwise where call stacks were not recorded."""
    found: dict[object, list[int]] = {}
    for at, (site, other) in enumerate(zip(sites_of(facts, np.array(ids, dtype=np.int64)), otherwise, strict=True)):
        found.setdefault(site or other, []).append(at)
    return list(found.values())


def main_spans(facts: Facts, ids: IntArray) -> HostSpans:
    """Those of the ops that are on the main thread, without those in others of them."""
    ops = host_spans(facts, SpanKind.OP)
    return ops.where(np.isin(ops.ids, ids) & (ops.track == host_threads(facts).main)).outermost()


def _between(facts: Facts, rows: Sequence[IntArray]) -> Intervals:
    """Time of the main thread from the first op of a row to the last, but what is in ops of the row."""
    table, main = facts.rank.spans, host_threads(facts).main
    start, end = table["start_ns"].to_numpy(), (table["start_ns"] + table["dur_ns"]).to_numpy()
    known = [one[one >= 0] for row in rows for one in row]
    mine = [one for one in known if len(one) and (table["track"].to_numpy()[one] == main).all()]
    if not mine:
        return intervals.EMPTY
    whole = intervals.union(
        Intervals(np.array([start[one].min() for one in mine]), np.array([end[one].max() for one in mine]))
    )
    ops = np.concatenate(mine)
    return intervals.subtract(whole, intervals.union(Intervals(start[ops], end[ops])))


DRAWS = tuple(f"aten::{name}" for name in ("rand", "normal", "uniform", "multinomial", "poisson"))
"""How names of ops begin that draw numbers, but for those of layers, such as dropout."""

LEAST_ZEROS, ALL = 980, 1000
"""Thousandths that have to be zero. A product with a sparse matrix took less time than one with all its zeros below 2 %
of other elements, forth and back (torch 2.13, CSR, one core of a Xeon: 512 to 2,048 rows, by 64 columns). Of all: a
recurrent net begins so."""

_NO_DATA = Missing("whether steps get new data", "Record with the real training data.")


@finds(Cause.DUPLICATE)
def duplicates(facts: Facts) -> Iterator[Wasted]:
    """What was computed before in the same step. Raises Missing like seen_ops.

    What checkpoints compute again in a backward pass is not among it. The backward pass is that through the repetition,
    if it is gone in the same pass as that through the first: then one is enough.
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
    """Nodes of ops that repeat others, which a pass runs that runs nodes of these as well."""
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
    """What the step before had computed, too, and nothing in this step. Raises Missing like seen_ops.

    What is made of memory that comes from elsewhere is in doubt where no step is known to get new data: it may be the
    one batch.
    """
    seen, context = seen_ops(facts), facts.rank.context
    fetches = context is not None and any(loader.batches for loader in context.rank.loaders)
    new_data = fetches or any(name.startswith(DRAWS) for name in seen.names)
    for rows in by_line(facts, seen, _rows(seen, seen.constant & (seen.first < 0))):
        of_batch = bool(seen.brought[np.concatenate(rows)].any()) and not new_data
        yield replace(of_rows(facts, seen, rows), times=len(rows), doubt=_NO_DATA if of_batch else None)


def _rows(seen: SeenOps, chosen: Mask) -> Iterator[IntArray]:
    """Chosen ops in a row. Where ops begin to repeat what the row has repeated already, another row begins.

    Not what autograd computes by itself: a mask for each input of a maximum.
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

    Nothing is drawn for it, and what is taken beside the rows is written by no op. But a net whose weights are all as
    large as some that learn may be a copy of these, which is made anew after more steps than were looked at: a target.
    Raises Missing like seen_ops, and if nobody looked.
    """
    seen = seen_ops(facts)
    lookups = seen.looked_up
    if lookups is None:
        raise NOT_COUNTED
    nodes = optional(backward_nodes, facts)
    learnt = (
        {tuple(sorted(gradient_shape)) for gradient_shape in gradient_shapes(facts, nodes) if gradient_shape}
        if nodes
        else set[Shape]()
    )
    for lookup in np.unique(lookups[lookups >= 0]).tolist():
        mine = (lookups == lookup) & (np.arange(len(lookups)) != lookup)
        layers = [at for at in np.flatnonzero(mine & seen.makes).tolist() if is_layer(seen.names[at])]
        if any(_weight(facts, seen, at) not in {*learnt, None} for at in layers):
            table = next((shape for input_ in _inputs(facts, seen, lookup) if (shape := first_shape(input_))), ())
            detail = f"a table of {table[0]:,}" if table else "a table"
            yield replace(of_rows(facts, seen, list(in_a_row(seen, mine))), times=len(layers), detail=detail)


def _weight(facts: Facts, seen: SeenOps, at: int) -> Shape | None:
    """The sides of a layer's weight, which convolutions take second and others last. None where not recorded."""
    for inputs in _inputs(facts, seen, at):
        shapes = [some[0].shape for some in inputs if some and len(some[0].shape) > 1]
        if len(shapes) > 1:
            return tuple(sorted(shapes[1] if len(shapes[1]) > 2 else shapes[-1]))
    return None


def _inputs(facts: Facts, seen: SeenOps, at: int) -> list[Inputs]:
    ids = seen.ids[:, at]
    return inputs_of(facts, ids[ids >= 0])
