"""Rounds in a row: the same ops, on one thread, one round after the other, within a step."""

import numpy as np
import pandas as pd
from msgspec import Struct

from diagnose.facts.autograd.dataflow import dataflow
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.inputs import BACKWARD
from diagnose.facts.core.spans import HostSpans
from diagnose.trace.intervals import IntArray

LEAST_ROUNDS = 4  # Two or three may be what a model consists of (our choice).
MOST_OPS = 64  # Of one round of a loop that are looked for.

_ACCUMULATES = "AccumulateGrad"


class Run(Struct, frozen=True):
    """Rounds in a row: ops `first` to `last`, the latter not included, of a thread's ops."""

    first: int
    last: int
    length: int
    step: int
    backward: bool

    @property
    def rounds(self) -> int:
        """How many."""
        return (self.last - self.first) // self.length


def runs_of(facts: Facts, ops: HostSpans, names: IntArray, step: IntArray, shape: IntArray) -> list[Run]:
    """Rounds in a row, none in two of them: those that cover most ops first, of equal ones the shortest rounds.

    `shape`: a number for each op, equal where ops may be of one round after the other.
    """
    text = [str(label) for label in facts.rank.spans["name"].cat.categories]
    is_backward = np.array([name.startswith(BACKWARD) for name in text], dtype=bool)[names]
    completes = np.array([_ACCUMULATES in name for name in text], dtype=bool)[names]
    candidates = []
    for length in range(1, min(MOST_OPS, len(names) // 2) + 1):
        same = (names[length:] == names[:-length]) & (shape[length:] == shape[:-length])
        same &= (ops.track[length:] == ops.track[:-length]) & (step[length:] == step[:-length]) & (step[length:] >= 0)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if last - first >= (LEAST_ROUNDS - 2) * length:
                candidates.append((first, last + length, length))
    taken, runs = np.zeros(len(names), dtype=bool), []
    for first, last, length in sorted(candidates, key=lambda candidate: (candidate[0] - candidate[1], candidate[2])):
        if taken[first:last].any() or completes[first:last].any():
            continue
        taken[first:last] = True
        backward = bool(is_backward[first : first + length].any())
        runs.append(Run(first, last, length, int(step[first]), backward))
    return runs


def shapes_of(facts: Facts, ops: HostSpans) -> IntArray:
    """What the shapes of each op's inputs are, as a number; all equal where they were not recorded."""
    table = facts.rank.ops
    if not len(table):
        return np.zeros(len(ops.ids), dtype=np.int64)
    row = table.index.get_indexer(pd.Index(ops.ids))
    codes = np.append(table["shapes"].cat.codes.to_numpy().astype(np.int64), -1)
    found: IntArray = codes[row]
    return found


def forward_of(backward: Run, of_step: list[Run]) -> Run | None:
    """Of the runs of its step the forward one with as many rounds, or one more, that covers most ops.

    Of several of these the last goes with the first backward run that is alike, and so on: a loop within another one.
    """
    alike = [run for run in of_step if not run.backward and run.rounds - backward.rounds in (0, 1)]
    most = max((run.last - run.first for run in alike), default=0)
    largest = sorted((run.first for run in alike if run.last - run.first == most), reverse=True)
    before = [run for run in of_step if run.backward and run.first < backward.first]
    place = sum((run.rounds, run.length) == (backward.rounds, backward.length) for run in before)
    first = largest[min(place, len(largest) - 1)] if largest else -1
    return next((run for run in alike if run.first == first), None)


def share_in_need(facts: Facts, ops: HostSpans, some: list[Run]) -> float | None:
    """Of what rounds compute the share that needs the round before, the mean; None where it is not known of any."""
    flow = optional(dataflow, facts)
    if flow is None:
        return None
    number = facts.rank.ops["sequence"]
    shares = []
    for run in some:
        begins = number.reindex(ops.ids[run.first : run.last : run.length], fill_value=-1).to_numpy()
        if (begins >= 0).all() and (share := flow.needs(run.step, begins.tolist())) is not None:
            shares.append(share)
    return sum(shares) / len(shares) if shares else None
