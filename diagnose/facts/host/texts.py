"""Which tensors are written as text, as by print, str and f-strings?"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.run import marked_ranges
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans, host_spans, idle_under, on_training_threads, used_step
from diagnose.facts.core.steps import steps
from diagnose.trace import kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.kinds import Activity

_ON_HOST = (SpanKind.OP, SpanKind.ANNOTATION, SpanKind.PYTHON)


class Texts(Struct, frozen=True):
    """Tensors that training threads write as text, one after the other."""

    spans: HostSpans
    count: int  # Per step.
    host_ns: int  # Per step.
    idle_ns: int | None  # Idle time of the device under them, per step; None without device work.
    steps_seen: int  # Used steps with at least one.
    site: Site | None  # The line that writes the longest.


@fact
def texts(facts: Facts) -> Texts:
    """Raises Missing if none was recorded, and neither stacks nor `diagnose profile` would show them."""
    named = host_spans(facts, *_ON_HOST, named=lambda name: kinds.activity(name) is Activity.TEXT)
    found = on_training_threads(facts, named).outermost()
    unseen = "stacks" not in facts.rank.provenance.recorded and Activity.TEXT.value not in marked_ranges(facts)
    if not len(found.ids) and unseen:
        raise Missing("printing and formatting of tensors", "Record with diagnose profile, or with_stack=True.")
    inside = found.in_steps(facts)
    lasted, count = inside.end_ns - inside.start_ns, steps(facts).count
    return Texts(
        spans=found,
        count=round_half_up(len(inside.ids), count),
        host_ns=round_half_up(int(lasted.sum()), count),
        idle_ns=idle_under(facts, inside.times),
        steps_seen=len(np.unique(used_step(facts, inside.ids))),
        site=sites_of(facts, inside.ids[[int(lasted.argmax())]])[0] if len(lasted) else None,
    )
