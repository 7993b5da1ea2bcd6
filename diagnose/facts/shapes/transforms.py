"""Which Fourier transforms have lengths that divide into large primes?

For small factors a transform is many small ones; for a large prime it is made of two or three transforms of more than
twice the length (Bluestein).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import numpy as np

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.inputs import NO_SHAPES
from diagnose.facts.core.names import name_of
from diagnose.facts.core.shaped import Work, first_shape, inputs_of, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans, host_spans, on_training_threads, used_step
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site

_FORWARD, _BACK, _COMPLEX = "aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"

LEAST_PRIME = 23
"""With 13 as the largest a transform took 0.5 to 1.4 times as long as that of the next length of factors up to 7, with
23 to 67 1.4 to 17 times, and with larger ones 1.6 to 8 (MKL of torch 2.13, lengths 127 to 65,521)."""

HANDY = 7
"""cuFFT and MKL have kernels of their own for factors up to this."""

_LENGTHS = range(64, 1 << 24)
"""That are looked at: shorter transforms cost little, longer ones are none."""


@dataclass(frozen=True)
class UnhandyTransforms:
    """Transforms of one length, and those that lead back from them."""

    length: int
    prime: int
    """The largest that divides the length."""
    handy: int
    """The next length without factors over HANDY."""
    times: float
    """Per step."""
    goes_back: bool
    """What is transformed comes back, as in a convolution: then it may be longer."""
    work: Work
    site: Site | None
    """The line that runs the first."""


@fact
def unhandy_transforms(facts: Facts) -> tuple[UnhandyTransforms, ...]:
    """By length, those that take longest first. Raises Missing without shapes.

    Only of the last dimension: along which others an op goes is not known.
    """
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    wanted = (_FORWARD, _BACK, _COMPLEX)
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, named=lambda name: name in wanted))
    names = [name_of(facts, one) for one in ops.ids.tolist()]
    sizes = [shape[-1] if (shape := first_shape(one)) else 0 for one in inputs_of(facts, ops.ids)]
    found = (
        _of_length(facts, ops, names, sizes, length)
        for length in sorted({size for name, size in zip(names, sizes, strict=True) if name != _BACK})
        if length in _LENGTHS and largest_prime(length) >= LEAST_PRIME
    )
    return tuple(sorted(found, key=lambda one: -one.work.longest_ns))


def _of_length(facts: Facts, ops: HostSpans, names: list[str], sizes: list[int], length: int) -> UnhandyTransforms:
    back = np.array([name == _BACK for name in names], dtype=bool)
    half = length // 2 + 1  # What is left of the spectrum of real numbers.
    mine = np.where(back, np.array(sizes) == half, np.array(sizes) == length)
    own = ops.where(mine)
    used = used_step(facts, own.ids) >= 0
    return UnhandyTransforms(
        length=length,
        prime=largest_prime(length),
        handy=next(more for more in count(length) if largest_prime(more) <= HANDY),
        times=float(used.sum()) / max(len(set(used_step(facts, own.ids)[used].tolist())), 1),
        goes_back=bool((mine & back).any()),
        work=work_of(facts, own.ids),
        site=sites_of(facts, own.ids[:1])[0],
    )


def largest_prime(number: int) -> int:
    """That divides a positive number; 1 of 1."""
    largest, divisor = 1, 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            largest, number = divisor, number // divisor
        divisor += 1
    return max(largest, number) if number > 1 else largest
