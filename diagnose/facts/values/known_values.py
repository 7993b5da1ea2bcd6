"""What is computed that is known already: again in a step, the same in every step, or to give back what it took?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, backward_ops, nodes_of
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import Mask
from diagnose.facts.core.shaped import Work, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans, host_spans
from diagnose.facts.values.values import ALIKE_STEPS, SeenOps, seen_ops
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

DRAWS = tuple(f"aten::{name}" for name in ("rand", "normal", "uniform", "multinomial", "poisson"))
"""How names of ops begin that draw numbers, but for those of layers, such as dropout."""


@dataclass(frozen=True)
class KnownValues:
    """Ops in a row whose results were known, and all rows like it in the used steps that the recording has them of."""

    ops: tuple[str, ...]
    """Of a row, in order, without those that make views."""
    times: int
    """Rows in a step."""
    work: Work
    backward_ops: Work
    """The nodes of backward passes that go with them."""
    track: int
    """The main thread."""
    between: Intervals
    """Time of that thread between the ops of a row."""
    steps_seen: int
    """Used steps that have them."""
    site: Site | None
    """The line that runs the first of them."""
    known_at: Site | None
    """The line that had computed the same before, in the same step."""
    of_batch: bool
    """It is made of what comes from elsewhere, and no step is known to get new data: it may be the one batch."""

    @property
    def longest_ns(self) -> int:
        """What it takes per step with the backward pass, on the host or the device."""
        host = self.work.host_ns + self.backward_ops.host_ns
        return max(host, self.work.device_ns + self.backward_ops.device_ns)


@fact
def repeated_values(facts: Facts) -> tuple[KnownValues, ...]:
    """What was computed before in the same step, those that take longest first. Raises Missing like seen_ops.

    What checkpoints compute again in a backward pass is not among it. The backward pass is that through the repetition,
    if it is gone in the same pass as that through the first: then one is enough.
    """
    seen = seen_ops(facts)
    return _rows(facts, seen, seen.makes & (seen.first >= 0))


@fact
def unchanging_values(facts: Facts) -> tuple[KnownValues, ...]:
    """What the step before had computed, too, and nothing in this step, longest first. Raises Missing like seen_ops."""
    seen = seen_ops(facts)
    return _rows(facts, seen, seen.makes & seen.constant & (seen.first < 0))


@fact
def useless_arithmetic(facts: Facts) -> tuple[KnownValues, ...]:
    """What gave back what it took, or was made for that. Raises Missing like seen_ops, or if these steps differ."""
    seen = seen_ops(facts)
    if seen.needed is None:
        raise Missing("which arithmetic gives back what it took", ALIKE_STEPS)
    return _rows(facts, seen, seen.makes & ~seen.needed)


@fact
def multiplied_by_nothing(facts: Facts) -> tuple[KnownValues, ...]:
    """What was computed to be multiplied by zeros, longest first. Raises Missing like seen_ops, or if nobody looked."""
    seen = seen_ops(facts)
    if seen.multiplied is None:
        raise Missing("which products are with zeros", "Record with this version of diagnose profile.")
    return _rows(facts, seen, seen.makes & ~seen.multiplied)


def _rows(facts: Facts, seen: SeenOps, chosen: Mask) -> tuple[KnownValues, ...]:
    """Chosen ops in a row, as those that make something were called, by what is run in it.

    Where ops begin to repeat what the row has repeated already, another row begins.
    """
    making = np.flatnonzero(seen.makes)
    edges = np.flatnonzero(np.diff(chosen[making])) + 1
    found: dict[tuple[str, ...], list[IntArray]] = {}
    for run in np.split(making, edges):
        for row in _rounds(run, seen.first[run]) if len(run) and chosen[run[0]] else ():
            if not seen.backward[row].all():  # Autograd's own: a mask for each input of a maximum.
                found.setdefault(tuple(seen.names[one] for one in row.tolist()), []).append(row)
    made = [_known(facts, seen, names, rows) for names, rows in found.items()]
    return tuple(sorted((one for one in made if one.steps_seen), key=lambda one: -one.longest_ns))


def _rounds(run: IntArray, first: IntArray) -> Iterator[IntArray]:
    """A row of ops, cut where one repeats what its first op repeats, or what was before that."""
    begin = 0
    for at, repeated in enumerate(first.tolist()):
        if at > begin and 0 <= repeated <= first[begin]:
            yield run[begin:at]
            begin = at
    yield run[begin:]


def _known(facts: Facts, seen: SeenOps, names: tuple[str, ...], rows: list[IntArray]) -> KnownValues:
    all_rows = np.concatenate(rows)
    ids = seen.ids[:, all_rows]
    recorded = ids[ids >= 0]
    before = np.where(seen.first[all_rows] >= 0, seen.ids[:, seen.first[all_rows]], -1)
    both = (ids >= 0) & (before >= 0)
    main = host_threads(facts).main
    return KnownValues(
        ops=names,
        times=len(rows),
        work=work_of(facts, recorded),
        backward_ops=work_of(
            facts, _merging(facts, ids[both], before[both]) if both.any() else _all_back(facts, recorded)
        ),
        track=main,
        between=_between(facts, [seen.ids[:, row] for row in rows], main),
        steps_seen=int((ids >= 0).any(axis=1).sum()),
        site=sites_of(facts, recorded[:1])[0] if len(recorded) else None,
        known_at=sites_of(facts, before[both][:1])[0] if both.any() else None,
        of_batch=bool(seen.brought[all_rows].any()) and not _gets_data(facts, seen),
    )


def _gets_data(facts: Facts, seen: SeenOps) -> bool:
    """Whether steps draw numbers, or a loader hands over batches."""
    context = facts.rank.context
    fetches = context is not None and any(one.batches for one in context.rank.loaders)
    return fetches or any(name.startswith(DRAWS) for name in seen.names)


def _spans(facts: Facts, ids: IntArray) -> HostSpans:
    ops = host_spans(facts, SpanKind.OP)
    return ops.where(np.isin(ops.ids, ids) & (ops.track == host_threads(facts).main)).outermost()


def _all_back(facts: Facts, ids: IntArray) -> IntArray:
    return backward_ops(facts, _spans(facts, ids))


def _merging(facts: Facts, again: IntArray, before: IntArray) -> IntArray:
    """Nodes of ops that repeat others, which a pass runs that runs nodes of these as well."""
    nodes = optional(backward_nodes, facts)
    if nodes is None:
        return again[:0]
    spans = _spans(facts, np.concatenate((again, before)))
    op, node = nodes_of(facts, spans)
    passes: dict[int, set[int]] = {}
    for one, at in zip(spans.ids[op].tolist(), node.tolist(), strict=True):
        passes.setdefault(one, set()).add(int(nodes.passed[at]))
    first = dict(zip(again.tolist(), before.tolist(), strict=True))
    kept = [
        at
        for one, at in zip(spans.ids[op].tolist(), node.tolist(), strict=True)
        if int(nodes.passed[at]) in passes.get(first.get(one, -1), ())
    ]
    return nodes.spans.ids[np.array(kept, dtype=np.int64)]


def _between(facts: Facts, rows: list[IntArray], track: int) -> Intervals:
    """Time of a thread from the first op of a row to the last, but what is in ops of the row."""
    table = facts.rank.spans
    start, end = table["start_ns"].to_numpy(), (table["start_ns"] + table["dur_ns"]).to_numpy()
    known = [one[one >= 0] for row in rows for one in row]
    mine = [one for one in known if len(one) and (table["track"].to_numpy()[one] == track).all()]
    if not mine:
        return intervals.EMPTY
    whole = intervals.union(
        Intervals(np.array([start[one].min() for one in mine]), np.array([end[one].max() for one in mine]))
    )
    ops = np.concatenate(mine)
    return intervals.subtract(whole, intervals.union(Intervals(start[ops], end[ops])))
