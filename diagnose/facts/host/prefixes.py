"""Which rounds compute all that the rounds before had computed, and a bit more: a text is read anew for each word?

Rounds of a step run the same ops, on inputs of which one dimension grows by as much from round to round. A layer whose
weights are the same makes of the first part what it made of it before, if it does not look ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import Inputs
from diagnose.facts.core.names import name_codes
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.shaped import Shape, Work, inputs_of, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans, launched_in, used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.host.rounds import LEAST_ROUNDS
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

_DATA_AT = {
    f"aten::{name}": at
    for at, names in enumerate(("linear conv1d convolution gru lstm rnn_tanh rnn_relu mm matmul", "embedding addmm"))
    for name in names.split()
}
"""Of layers which input the data is: all others are weights."""

_COLLECT = tuple(
    f"aten::{name}"
    for name in (
        *("cat", "stack", "copy_", "clone", "contiguous", "slice", "select", "narrow", "view", "reshape"),
        *("expand", "permute", "transpose", "t"),
    )
)
"""What collects or cuts out does so of what is kept, too."""


@dataclass(frozen=True)
class GrowingPrefix:
    """Rounds of a step that compute the same again for a longer input."""

    lengths: tuple[int, ...]
    """Of the rounds of the first step that has them."""
    layer: str
    """The op whose input grows."""
    work: Work
    """Ops that grow with the input, with the backward pass."""
    left: float
    """Share of their time that is left if each round computes only what is new."""
    least_left: float
    """The same without what ops take whatever their size."""
    site: Site | None


@dataclass(frozen=True)
class _Rounds:
    """Of one step. Arrays of shape (rounds,), and (rounds, positions)."""

    layer: str
    lengths: IntArray
    ops: IntArray
    """Positions among the main thread's ops of those that grow."""


@fact
def growing_prefix(facts: Facts) -> GrowingPrefix | None:
    """None if there is none. Raises Missing like `main_ops`."""
    tops, _ = main_ops(facts)
    found = list(_growing(facts, tops))
    if not found:
        return None
    spent = np.concatenate([_spent(facts, tops, one) for one in found])
    lengths = np.concatenate([one.lengths for one in found])
    new = np.concatenate([np.diff(one.lengths, prepend=0) for one in found])  # To the first round all is new.
    total, first = max(float(spent.sum()), 1.0), found[0]
    each, fixed = np.polyfit(lengths, spent, 1)
    needed = np.clip(fixed + each * new, 0, spent)
    own = tops.where(np.unique(np.concatenate([one.ops.ravel() for one in found])))
    return GrowingPrefix(
        lengths=tuple(first.lengths.tolist()),
        layer=first.layer,
        work=work_of(facts, np.concatenate((own.ids, backward_ops(facts, own)))),
        left=float(needed.sum()) / total,
        least_left=float((spent * new / lengths).sum()) / total,
        site=sites_of(facts, tops.ids[first.ops[0, :1]])[0],
    )


def _growing(facts: Facts, tops: HostSpans) -> Iterator[_Rounds]:
    inputs, codes = inputs_of(facts, tops.ids), name_codes(facts, tops.ids)
    labels = [str(label) for label in facts.rank.spans["name"].cat.categories]
    step = used_step(facts, tops.ids)
    for one in range(steps(facts).count):
        at = np.flatnonzero(step == one)
        names = [labels[code] for code in codes[at].tolist()]
        best = max(_progressions(names, [inputs[k] for k in at.tolist()]), key=lambda own: len(own[1]), default=None)
        if best is None:
            continue
        layer, lengths, begins = best
        rounds = _alike(codes[at], np.array(lengths), np.array(begins))
        if len(rounds) < LEAST_ROUNDS:
            continue
        lengths_of = np.array(lengths)[rounds]
        places = np.array(begins)[rounds][:, None] + np.arange(begins[1] - begins[0])
        grows = [
            names[column[0]] not in _COLLECT and _grows([inputs[at[k]] for k in column.tolist()], lengths_of)
            for column in places.T
        ]
        yield _Rounds(layer, lengths_of, at[places[:, np.array(grows, dtype=bool)]])


def _progressions(names: list[str], inputs: list[Inputs]) -> Iterator[tuple[str, list[int], list[int]]]:
    """Layers whose data grows by as much each time: the layer, the lengths, and where each is seen first."""
    seen: dict[tuple[str, object, int, Shape, Shape], dict[int, int]] = {}
    for at, (name, given) in enumerate(zip(names, inputs, strict=True)):
        data = _DATA_AT.get(name)
        if data is None or len(given) <= data or len(given[data]) != 1:
            continue
        shape = given[data][0].shape
        weights = tuple(tuple(one.shape for one in some) for k, some in enumerate(given) if k != data)
        for k, length in enumerate(shape):
            seen.setdefault((name, weights, k, shape[:k], shape[k + 1 :]), {}).setdefault(length, at)
    for (name, *_), first in seen.items():
        lengths, begins = list(first), list(first.values())
        apart = {after - before for before, after in pairwise(lengths)}
        if len(lengths) >= LEAST_ROUNDS and len(apart) == 1 and min(*apart, lengths[0]) > 0:
            yield name, lengths, begins


def _alike(codes: IntArray, lengths: IntArray, begins: IntArray) -> IntArray:
    """Which rounds run the ops of the first one, in the same order."""
    many = int(begins[1] - begins[0])
    wanted = codes[begins[0] : begins[0] + many]
    kept = [k for k, at in enumerate(begins.tolist()) if np.array_equal(codes[at : at + many], wanted)]
    return np.array(kept, dtype=np.int64)


def _grows(inputs: list[Inputs], lengths: IntArray) -> bool:
    """Whether each size of the inputs is the same in all rounds or grows as the lengths do, and one does."""
    shapes = [tuple(one.shape for some in given for one in some) for given in inputs]
    if len({tuple(map(len, one)) for one in shapes}) != 1:
        return False
    sizes = np.array([[size for shape in one for size in shape] for one in shapes], dtype=np.int64)
    constant = (sizes == sizes[:1]).all(axis=0)
    in_step = (sizes * lengths[0] == sizes[:1] * lengths[:, None]).all(axis=0)
    return bool((constant | in_step).all() and (in_step & ~constant).any())


def _spent(facts: Facts, tops: HostSpans, one: _Rounds) -> npt.NDArray[np.float64]:
    """What each round takes in the ops that grow: on the host if the CPU computes, else on the device."""
    if trains_on_cpu(facts):
        dur: npt.NDArray[np.float64] = (tops.end_ns - tops.start_ns).astype(np.float64)
    else:
        work = device_work(facts)
        launched = launched_in(facts, tops)
        inside = launched >= 0
        lasted = (work.end_ns - work.start_ns)[inside]
        dur = np.bincount(launched[inside], lasted, len(tops.ids)).astype(np.float64)
    found: npt.NDArray[np.float64] = dur[one.ops].sum(axis=1)
    return found
