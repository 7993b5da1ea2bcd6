"""What numbers do ops take that make them slow, or could be less: subnormal ones, and windows of two lines?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.backward import way_back
from diagnose.facts.base import Facts, Missing, fact
from diagnose.facts.dispatch import host_spans
from diagnose.facts.host import host_threads
from diagnose.facts.shaped import Work, inputs_of, work_of
from diagnose.facts.source_lines import sites_of
from diagnose.facts.values import is_layer, seen_ops
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import Site

_NOT_LOOKED = Missing("what numbers ops compute with", "Record with this version of diagnose profile.")


@dataclass(frozen=True)
class SubnormalProducts:
    """Products of about the same share of subnormal numbers."""

    thousandths: int
    """Of what they take."""
    times: int
    """Per step."""
    work: Work
    steps_seen: int
    """Used steps that have them."""
    site: Site | None


@dataclass(frozen=True)
class SeparableWindows:
    """Convolutions with windows that are a column times a row each."""

    window: tuple[int, int]
    times: int
    """Per step."""
    work: Work
    """With the way back."""
    steps_seen: int
    """Used steps that have them."""
    site: Site | None


@fact
def subnormal_products(facts: Facts) -> tuple[SubnormalProducts, ...]:
    """By share, those that take longest first. Raises Missing like seen_ops, and if nobody looked."""
    seen = seen_ops(facts)
    if seen.rows is None or seen.rows.subnormal is None:
        raise _NOT_LOOKED
    share = np.where([is_layer(name) for name in seen.names], seen.rows.subnormal, 0)
    made = []
    for one in np.unique(share[share > 0]).tolist():
        mine = seen.ids[:, share == one]
        ids = mine[mine >= 0]
        if len(ids):
            made.append(
                SubnormalProducts(
                    thousandths=one,
                    times=mine.shape[1],
                    work=work_of(facts, ids),
                    steps_seen=int((mine >= 0).any(axis=1).sum()),
                    site=sites_of(facts, ids[:1])[0],
                )
            )
    return tuple(sorted(made, key=lambda one: -one.work.longest_ns))


@fact
def separable_windows(facts: Facts) -> tuple[SeparableWindows, ...]:
    """By window, those that take longest first. Raises Missing like seen_ops, and if nobody looked."""
    seen = seen_ops(facts)
    if seen.rows is None or seen.rows.separable is None:
        raise _NOT_LOOKED
    found: dict[tuple[int, int], list[int]] = {}
    chosen = np.flatnonzero((seen.rows.separable > 0) & (seen.ids >= 0).any(axis=0)).tolist()
    for at in chosen:
        if window := _window(facts, seen.ids[:, at]):
            found.setdefault(window, []).append(at)
    spans = host_spans(facts, SpanKind.OP)
    made = []
    for window, some in found.items():
        mine = seen.ids[:, some]
        convolutions = spans.where(np.isin(spans.ids, mine) & (spans.track == host_threads(facts).main)).outermost()
        made.append(
            SeparableWindows(
                window=window,
                times=len(some),
                work=work_of(facts, np.concatenate((convolutions.ids, way_back(facts, convolutions)))),
                steps_seen=int((mine >= 0).any(axis=1).sum()),
                site=sites_of(facts, convolutions.ids[:1])[0],
            )
        )
    return tuple(sorted(made, key=lambda one: -one.work.longest_ns))


def _window(facts: Facts, ids: IntArray) -> tuple[int, int] | None:
    """Of a convolution; None where shapes were not recorded."""
    for inputs in inputs_of(facts, ids[ids >= 0]):
        if len(inputs) > 1 and inputs[1] and len(shape := inputs[1][0].shape) == 4:
            return shape[2], shape[3]
    return None
