"""How long does Python collect garbage, by itself and because it is asked to?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import Mask
from diagnose.facts.core.run import manifest, marked_ranges
from diagnose.facts.core.source_lines import site_of_spans
from diagnose.facts.core.spans import HostSpans, host_spans, idle_under, on_training_threads, used_step
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity
from diagnose.trace.steps import never_again

HOW_COLLECTIONS = "Record with diagnose profile, or stacks and _ExperimentalConfig(record_python_gc_info=True)."

FEW = 0.5  # Of the recorded steps: what is in more of them, the median step without the profiler has as well.

_AUTOMATIC = "Python GC"
_ON_HOST = (SpanKind.OP, SpanKind.LOADER, SpanKind.COLLECTIVE, SpanKind.ANNOTATION, SpanKind.PYTHON)


class Collections(Struct, frozen=True):
    """Garbage collections on the training threads, none inside another."""

    ids: IntArray
    total: int  # In all used steps.
    host_ns: int  # Host time in them, per step.
    idle_ns: int | None  # Idle time of the device under them, per step; None without device work.
    longest_ns: int  # Longest of the used steps; 0 without any.
    site: Site | None = None  # The line that asks for most of it; None of those that no line asks for.


class GarbageCollections(Struct, frozen=True):
    """Python's garbage collection, except the compiler's own."""

    automatic: Collections  # Those that Python started by itself, but for `once_ids`.
    explicit: Collections  # Those that the program asked for with gc.collect.
    automatic_recorded: bool  # Whether those that Python started by itself can be seen at all.
    once_ids: IntArray
    """Long ones that Python started by itself in few steps, as no step without the profiler shows them."""


@fact
def garbage_collections(facts: Facts) -> GarbageCollections:
    """Collections in the used steps. Raises Missing if none was recorded and there are no stacks to show them.

    torch 2.13 records automatic collections only with stacks and record_python_gc_info both; `diagnose profile`
    all but those of the youngest objects.
    """
    marked = Activity.GARBAGE_COLLECTION.value in marked_ranges(facts)
    named = host_spans(facts, *_ON_HOST, named=lambda name: kinds.activity(name) is Activity.GARBAGE_COLLECTION)
    found = on_training_threads(facts, named).outermost()
    if not len(found.ids) and not marked and "stacks" not in facts.rank.provenance.recorded:
        raise Missing("garbage collections", HOW_COLLECTIONS)
    compiling = host_spans(facts, *_ON_HOST, named=lambda name: kinds.activity(name) is Activity.COMPILE)
    found = found.where(intervals.covered(Intervals(found.start_ns, found.end_ns), compiling.times) == 0)
    started = host_spans(facts, *_ON_HOST, named=lambda name: name == _AUTOMATIC)
    automatic = np.isin(found.ids, started.ids)
    once = automatic & _once(facts, found, automatic)
    return GarbageCollections(
        automatic=_collections(facts, found.where(automatic & ~once)),
        explicit=replace(
            _collections(facts, found.where(~automatic)), site=site_of_spans(facts, found.where(~automatic))
        ),
        automatic_recorded=marked or len(started.ids) > 0,
        once_ids=found.ids[once],
    )


def _once(facts: Facts, found: HostSpans, automatic: Mask) -> Mask:
    """Which are at least half as long as the longest of some, if few steps have those and the others none."""
    lasted = found.end_ns - found.start_ns
    longest = int(lasted[automatic].max(initial=0))
    long: Mask = 2 * lasted >= longest
    often = len(set(used_step(facts, found.ids[long & automatic]).tolist()) - {-1}) > FEW * steps(facts).count
    return long & (not often and never_again(optional(manifest, facts), longest))


def _collections(facts: Facts, found: HostSpans) -> Collections:
    inside = found.in_steps(facts)
    return Collections(
        ids=found.ids,
        total=len(inside.ids),
        host_ns=round_half_up(inside.times.total, steps(facts).count),
        idle_ns=idle_under(facts, inside.times),
        longest_ns=int((inside.end_ns - inside.start_ns).max(initial=0)),
    )
