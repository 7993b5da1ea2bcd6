"""Which convolutions along one dimension are so long that Fourier transforms would be quicker?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.inputs import Inputs, named
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.shaped import Work, inputs_of, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.steps import steps
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

LEAST_TAPS = 32
"""Shorter filters are quicker as they are (our choice)."""

TRANSFORM_NS = (8.0, 3.0, 1.2)
"""Slowly, likely and quickly: to convolve by transforms took 1.2 to 4.4 ns for each number of the inputs, filters and
results on one core, and 7.8 where most are of filters (MKL of torch 2.13; 19 convolutions, filters of 32 to 1000)."""

WITH_WAY_BACK = 4.0
"""Times that, with gradients of input and filter: 2.5 to 6.2 in the same measurements."""

QUICKER = 0.7
"""Share of the time that transforms may take likely, to be worth the change (our choice)."""


class Filter(NamedTuple):
    """Sizes of a convolution along one dimension."""

    batch: int
    channels: int
    """That go in."""
    filters: int
    of_each: int
    """Channels that each filter takes."""
    length: int
    taps: int

    @property
    def transformed(self) -> int:
        """Numbers of inputs, results and filters, each as long as a transform."""
        rows = self.batch * (self.channels + self.filters) + self.filters * self.of_each
        return rows * (self.length + self.taps)


@dataclass(frozen=True)
class LongFilters:
    """Convolutions of the same sizes, on one line."""

    sizes: Filter
    calls: int
    """In the whole recording."""
    work: Work
    """With the backward pass."""
    left: tuple[float, float, float]
    """Share of the time that transforms take, at worst, likely, at best."""
    site: Site | None


@fact
def long_filters(facts: Facts) -> tuple[LongFilters, ...]:
    """Those that would be quicker by transforms, longest first.

    Raises Missing like `main_ops`, and where there are such on another device than the CPU.
    """
    tops, _ = main_ops(facts)
    at = np.flatnonzero(named(facts, tops.ids, "aten::conv1d", "aten::convolution", "aten::_convolution"))
    found: dict[tuple[Site | None, Filter], list[int]] = {}
    ids = tops.ids[at]
    for op, inputs, site in zip(ids.tolist(), inputs_of(facts, ids), sites_of(facts, ids), strict=True):
        sizes = _sizes(inputs)
        if sizes is not None and sizes.taps >= LEAST_TAPS:
            found.setdefault((site, sizes), []).append(op)
    if found and not trains_on_cpu(facts):
        raise Missing("how long Fourier transforms take on this device", "Compare torch.fft with the convolution.")
    made = [_priced(facts, sizes, np.array(ops), site) for (site, sizes), ops in found.items()]
    return tuple(sorted((one for one in made if one.left[1] <= QUICKER), key=lambda one: -one.work.longest_ns))


def _sizes(inputs: Inputs) -> Filter | None:
    """Of the input and the filters; None if these are not of one dimension."""
    shapes = [one[0].shape for one in inputs[:2] if one]
    if len(shapes) < 2 or len(shapes[0]) != 3 or len(shapes[1]) != 3 or 0 in (*shapes[0], *shapes[1]):
        return None
    (batch, channels, length), (filters, of_each, taps) = shapes
    return Filter(batch, channels, filters, of_each, length, taps)


def _priced(facts: Facts, sizes: Filter, ops: IntArray, site: Site | None) -> LongFilters:
    tops, _ = main_ops(facts)
    own = tops.where(np.isin(tops.ids, ops))
    back = backward_ops(facts, own)
    work = work_of(facts, np.concatenate((own.ids, back)))
    times = WITH_WAY_BACK if len(back) else 1.0
    calls = len(own.in_steps(facts).ids) / steps(facts).count
    slowly, likely, quickly = (
        min(each * times * calls * sizes.transformed / max(work.host_ns, 1), 1.0) for each in TRANSFORM_NS
    )
    return LongFilters(sizes, len(own.ids), work, (slowly, likely, quickly), site)
