"""What rules about results that are known already say alike."""

from __future__ import annotations

from diagnose.facts.values.known_values import KnownValues
from diagnose.replay.edits import Between, Edit, Shorten, Times

BETWEEN = Between(1.0, 0.0, 0.0)
"""Of the time between the ops: it goes if they are left out as a whole, in a function that is not called."""

WAY_BACK = Between(1.0, 0.0, 0.0)
"""Of their backward pass: it goes if it leads nowhere else (our choice)."""

MOST_NAMED = 4
"""Ops that are named (our choice)."""


def left_out(known: KnownValues) -> tuple[Edit, ...]:
    """The recording without these ops."""
    back = known.backward_ops
    return (
        Shorten(known.work.ids, 0.0),
        Shorten(known.work.work_ids, 0.0),
        Shorten(Times(known.track, known.between), BETWEEN),
        Shorten(back.ids, WAY_BACK),
        Shorten(back.work_ids, WAY_BACK),
    )


def ops_named(known: KnownValues) -> str:
    """The ops of a row: `mm, tanh and 3 more`."""
    names = [name.removeprefix("aten::") for name in known.ops]
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + f" and {more} more" * (more > 0)
