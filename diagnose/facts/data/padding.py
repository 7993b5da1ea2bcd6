"""How much of the work is done on padding? What batches hold is known from `diagnose profile`, which looked into some.

A place is one position of one row of a batch. Ops whose time grows with the length of rows are told by the shapes of
their inputs: rows by places, both joined into one dimension, or split by heads.
"""

import numpy as np
from msgspec import Struct

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.inputs import Shape, Work, inputs_of, main_ops, named, work_of
from diagnose.facts.core.run import manifest
from diagnose.facts.core.spans import HostSpans, host_spans, sites_of
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray
from diagnose.trace.manifest import RowsFilled, most_asked

_NOT_LOOKED = Missing(
    "contents of batches", "Record with diagnose profile. Only batches of a torch.utils.data.DataLoader are recorded."
)
_NOT_TAKEN = Missing("the ops that batches go through", "Record a script that trains on its DataLoader's batches.")
_SLACK = 0.25  # By so much lengths of batches may be outside of those that were looked into (our choice).

_ATTENTION = ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product*", "aten::_flash_attention_forward")


class Padding(Struct, frozen=True):
    """Work on batches of sequences, and how far these are filled."""

    rows: int  # Of a batch.
    lengths: tuple[int, int]  # That batches were padded to, the shortest and the longest.
    needed: float  # Share of the places that would be there if each batch were as long as its fullest row.
    filled: float  # Share of those that hold more than padding.
    linear: Work  # Ops whose time grows with the number of places, with the backward pass.
    attention: Work  # Ops that take each place with each other of its row, with the backward pass.
    site: Site | None  # The first line that takes a batch.

    def saved_ns(self, left: float) -> int:
        """ns saved per step if rows keep this share of their length."""
        return round(self.linear.longest_ns * (1 - left) + self.attention.longest_ns * (1 - left * left))


@fact
def padding(facts: Facts) -> Padding | None:
    """Of the loader that was asked most; None if its batches hold no sequences.

    Raises Missing like `main_ops`, if nobody looked into batches, and if no op takes what they hold.
    """
    loader = most_asked(manifest(facts).loaders)
    if loader is None or not loader.looks:
        raise _NOT_LOOKED
    rows = loader.sequences
    if rows is None:
        return None
    tops = main_ops(facts)
    power = _powers(facts, tops, rows)
    if not power.any():
        raise _NOT_TAKEN
    linear, attention = (tops.where(power == one) for one in (1, 2))
    return Padding(
        rows=rows.rows,
        lengths=(rows.shortest, rows.longest),
        needed=rows.to_longest / max(rows.places, 1),
        filled=rows.used / max(rows.to_longest, 1),
        linear=work_of(facts, np.concatenate((linear.ids, backward_ops(facts, linear)))),
        attention=work_of(facts, np.concatenate((attention.ids, backward_ops(facts, attention)))),
        site=next((site for site in sites_of(facts, tops.ids[power > 0]) if site is not None), None),
    )


def _powers(facts: Facts, tops: HostSpans, rows: RowsFilled) -> IntArray:
    """Of each op the power of the length that its time grows with: 0, 1 or 2. Shape (ops,)."""
    lookup, attends = (named(facts, tops.ids, *names) for names in (("aten::embedding",), _ATTENTION))
    every = host_spans(facts, SpanKind.LOADER)
    fetched, fetch = np.searchsorted(every.start_ns, tops.start_ns), every.outermost()
    making = intervals.innermost_at(tops.start_ns, tops.track, fetch.track, fetch.start_ns, fetch.end_ns) >= 0
    found = np.zeros(len(tops.ids), dtype=np.int64)
    length, batch = 0, -1
    for at, inputs in enumerate(inputs_of(facts, tops.ids)):
        if making[at]:  # Of single rows, some of which have as many places as a batch has rows.
            continue
        shapes = [one.shape for some in inputs for one in some]
        if length == 0 or batch != fetched[at] or lookup[at]:
            as_given = next((one for shape in shapes[:2] if (one := _length(shape, rows))), 0)
            length, batch = (as_given, fetched[at]) if as_given else (length, batch)
        held = [shape for shape in shapes if length and _holds(shape, rows.rows, length)]
        if held:
            found[at] = 2 if attends[at] or _squared(held, rows.rows, length) else 1
    return found


def _length(shape: Shape, rows: RowsFilled) -> int:
    """The length of a batch that has this shape, by rows first or by places first; 0 if it is none."""
    ways = (shape[:2], shape[1::-1]) if len(shape) in (2, 3) else ()
    least, most = rows.shortest * (1 - _SLACK), rows.longest * (1 + _SLACK)
    return next((way[1] for way in ways if way[0] == rows.rows and least <= way[1] <= most), 0)


def _holds(shape: Shape, rows: int, length: int) -> bool:
    """Whether a tensor of this shape has all places of a batch, or all but the last (or first) of each row."""
    for places in (length, length - 1):
        by_head = len(shape) >= 3 and shape[0] % rows == 0 and places in shape[1:]
        if by_head or shape[:2] in ((rows, places), (places, rows)) or shape[:1] == (rows * places,):
            return True
    return False


def _squared(held: list[Shape], rows: int, length: int) -> bool:
    """Whether an op takes the scores of attention (each place by each of its row), or multiplies heads to get them."""
    by_head = [shape for shape in held if len(shape) == 4 or (len(shape) == 3 and shape[0] > rows)]
    scores = any(shape[-2:] == (length, length) for shape in by_head)
    return scores or (len(by_head) > 1 and by_head[0][-2] == length == by_head[1][-1])
