"""What owns the training loop: the user's script, or a framework."""

from __future__ import annotations

from diagnose.facts.core.base import Facts, fact
from diagnose.fixes.setting import Loop
from diagnose.trace import enums, frames
from diagnose.trace.enums import SpanKind


@fact
def loop_owner(facts: Facts) -> Loop:
    """As the recorder says, else by the frames that were recorded; the user's script where none is a framework's."""
    context = facts.rank.context
    if context is not None and context.rank.loop is not None:
        return Loop(context.rank.loop)
    spans = facts.rank.spans
    names, is_python = spans["name"].cat, spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON)
    seen = {str(names.categories[code]) for code in set(names.codes.to_numpy()[is_python].tolist())}
    seen.update(map(str, facts.rank.lines["framework"].cat.categories))
    owners = {owner for name in seen if (owner := frames.loop_owner(name)) is not None}
    return Loop(frames.outermost_owner(owners) or Loop.OWN)
