"""What does torch.compile do during the run: compile again, break graphs, look for compiled code?

Its marks, as torch 2.13 records them: `Torch-Compiled Region: i/j` is a call of compiled code (function i, compiled for
the (j+1)th time); what follows a graph break is a function of its own, called inside the region before the break.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import name_codes
from diagnose.facts.core.spans import NO_SPANS, HostSpans, host_spans, in_used_steps, launched_in, names_of
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import Activity, KernelKind

_REGION = "Torch-Compiled Region: "
_GRAPH = "## Call CompiledFxGraph "
_FUNCTIONS = ("CompiledFunction", "CompiledFunctionBackward")
_LOOKUP = "TorchDynamo Cache Lookup"
_INDUCTOR = (
    KernelKind.TRITON_TEMPLATE,
    KernelKind.TRITON_POINTWISE,
    KernelKind.TRITON_REDUCTION,
    KernelKind.TRITON_FOREACH,
)
"""Kernels whose names only Inductor gives; TRITON_OTHER may be written by hand."""

_HOST = (SpanKind.OP, SpanKind.ANNOTATION, SpanKind.COLLECTIVE, SpanKind.LOADER)


class Compilations(Struct, frozen=True):
    """Some compilations: outermost spans of compiling. Arrays of shape (compilations,)."""

    ids: IntArray
    step: IntArray  # Number of the recorded step each begins in, used or not; -1 none.
    dur_ns: IntArray
    in_steps: npt.NDArray[np.bool_]  # Begins in a used step.

    def since(self, number: int) -> Compilations:
        """Those that begin in a step of this number or a later one."""
        late = self.step >= max(number, 0)
        return Compilations(self.ids[late], self.step[late], self.dur_ns[late], self.in_steps[late])

    @property
    def total(self) -> int:
        """How many there are in the used steps."""
        return int(self.in_steps.sum())

    @property
    def total_ns(self) -> int:
        """Host time in those of the used steps."""
        return int(self.dur_ns[self.in_steps].sum())

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the used steps with at least one, in order."""
        return tuple(np.unique(self.step[self.in_steps & (self.step >= 0)]).tolist())


class Compiling(Struct, frozen=True):
    """torch.compile in the recording."""

    used: bool  # Whether any trace of it was seen.
    compilations: Compilations
    region_calls: int  # Calls of compiled code by the program, after graph breaks included, per step.
    breaks_per_call: float  # Graph breaks that lead to other compiled code, over calls from uncompiled code; 0 without.
    between_ids: IntArray  # Ops that regions run uncompiled before, between, after their graphs; none inside another.
    between: int  # Per step.
    between_ns: int  # Host time in them, per step.
    fused_ids: IntArray  # Calls of Inductor's graphs without ops: all code that could be fused with its neighbours'.
    fused_work_ids: IntArray  # Device work launched in them.
    fused_pieces: int  # How many of them a call of compiled code has, forward, that graph breaks part; 1 where none do.
    missed: int  # Searches that found none, after which code ran uncompiled, per step.
    lookup_ids: IntArray  # Searches for compiled code that fits the arguments: checks of guards.
    lookups: int  # Per step.
    lookup_ns: int  # Host time in them, per step.


@fact
def compiling(facts: Facts) -> Compiling:
    """What torch.compile did; `used=False` and zeros if it is not in use. Raises Missing without host spans."""
    host = host_spans(facts, *_HOST)
    if not len(host.ids):
        raise Missing("ops and annotations", "Profile with ProfilerActivity.CPU as well.")
    used = steps(facts)
    frames = (*_HOST, SpanKind.PYTHON)
    compiled = host_spans(facts, *frames, named=lambda name: kinds.activity(name) is Activity.COMPILE).outermost()
    inside = host_spans(facts, *_HOST, named=lambda name: name.startswith(_REGION))
    nested = inside.parents >= 0
    lookup = host_spans(facts, *_HOST, named=lambda name: name == _LOOKUP)
    looked = lookup.in_steps(facts)
    between = _between(facts, inside)
    outside = between.in_steps(facts)
    calls = inside.in_steps(facts), inside.where(nested).in_steps(facts)
    breaks = len(calls[1].ids)
    fused = _fused(facts)
    labels, kernels = names_of(facts), np.unique(name_codes(facts, device_work(facts).ids)).tolist()
    seen = any(len(spans.ids) for spans in (compiled, lookup, inside, _code(facts)))
    return Compiling(
        used=seen or any(kinds.kernel_kind(labels[code]) in _INDUCTOR for code in kernels),
        compilations=_compilations(facts, compiled),
        region_calls=round_half_up(len(calls[0].ids), used.count),
        breaks_per_call=breaks / max(len(calls[0].ids) - breaks, 1),
        between_ids=between.ids,
        between=round_half_up(len(outside.ids), used.count),
        between_ns=round_half_up(int((outside.end_ns - outside.start_ns).sum()), used.count),
        fused_ids=fused.ids,
        fused_work_ids=device_work(facts).ids[launched_in(facts, fused) >= 0],
        fused_pieces=_pieces(fused, inside.where(~nested)),
        missed=_missed(facts, lookup, inside, compiled),
        lookup_ids=lookup.ids,
        lookups=round_half_up(len(looked.ids), used.count),
        lookup_ns=round_half_up(int((looked.end_ns - looked.start_ns).sum()), used.count),
    )


def _compilations(facts: Facts, compiled: HostSpans) -> Compilations:
    numbers = np.array([*(mark.number for mark in facts.rank.steps), -1], dtype=np.int64)
    step = numbers[facts.rank.spans["step"].to_numpy()[compiled.ids]]
    return Compilations(compiled.ids, step, compiled.end_ns - compiled.start_ns, in_used_steps(facts, compiled.ids))


def _missed(facts: Facts, lookup: HostSpans, regions: HostSpans, compiled: HostSpans) -> int:
    """Searches per step that neither a call of compiled code nor compiling follows before the thread's next search."""
    found = 0
    for thread in np.unique(lookup.track):
        mine = lookup.where(lookup.track == thread)
        after = np.sort(np.concatenate([one.start_ns[one.track == thread] for one in (regions, compiled)]))
        until = np.append(mine.start_ns[1:], np.iinfo(np.int64).max)
        used = np.searchsorted(after, until) > np.searchsorted(after, mine.start_ns)
        found += int((~used & in_used_steps(facts, mine.ids)).sum())
    return round_half_up(found, steps(facts).count)


def _between(facts: Facts, regions: HostSpans) -> HostSpans:
    """Outermost ops inside regions and outside of compiled functions; none where those were not recorded."""
    compiled = _code(facts)
    if not len(compiled.ids):
        return NO_SPANS
    marks = (_REGION, _GRAPH, _LOOKUP, *_FUNCTIONS)
    ops = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE, named=lambda name: not name.startswith(marks))

    def within(spans: HostSpans) -> npt.NDArray[np.bool_]:
        found = intervals.innermost_at(ops.start_ns, ops.track, spans.track, spans.start_ns, spans.end_ns)
        return np.asarray(found >= 0)

    return ops.where(within(regions) & ~within(compiled)).outermost()


def _fused(facts: Facts) -> HostSpans:
    """Calls of compiled graphs in which no single op runs."""
    graphs = host_spans(facts, *_HOST, named=lambda name: name.startswith(_GRAPH))
    ops = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE, named=lambda name: not name.startswith("#"))
    inside = intervals.innermost_at(ops.start_ns, ops.track, graphs.track, graphs.start_ns, graphs.end_ns)
    return graphs.where(np.bincount(inside[inside >= 0], minlength=len(graphs.ids)) == 0)


def _pieces(fused: HostSpans, calls: HostSpans) -> int:
    """The median number of these graphs in a call, over the calls that have any; 1 if none has."""
    found = intervals.innermost_at(fused.start_ns, fused.track, calls.track, calls.start_ns, calls.end_ns)
    counts = np.bincount(found[found >= 0])
    return round(float(np.median(counts[counts > 0]))) if counts.any() else 1


def _code(facts: Facts) -> HostSpans:
    """Calls of compiled code, without what runs uncompiled in a region after a graph break."""
    return host_spans(facts, *_HOST, named=lambda name: name in _FUNCTIONS or name.startswith(_GRAPH))
