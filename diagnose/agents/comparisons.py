"""Answers about what differs between two recordings."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from diagnose.agents.answers import Answer, Data, Item, page
from diagnose.contracts.comparison import Change, ChangeKind, Comparison, Part
from diagnose.reports import comparison
from diagnose.reports.comparison import signed
from diagnose.reports.quoting import plain, quoted
from diagnose.reports.sections import place
from diagnose.trace.units import duration

MOST_NAME = 120


def compared(found: Comparison, start: int) -> Answer:
    """The verdict, what makes up the difference, the parts that add up to it, and what changed in them."""
    lines = [comparison.headline(found), f"It rests on: {quoted(found.why)}"]
    data: Data = {
        "verdict": found.verdict,
        "before_ns": found.before_ns,
        "after_ns": found.after_ns,
        "difference_ns": msgspec.to_builtins(found.difference_ns),
        "difference_share": msgspec.to_builtins(found.difference_share),
        "smallest_visible_share": found.smallest_visible_share,
    }
    return page(lines, data, "rows", _items(found), start)


def _items(found: Comparison) -> Iterator[Item]:
    yield from (_text("incomparable", sentence) for sentence in found.incomparable)
    yield from (_text("cause", sentence) for sentence in comparison.causes(found))
    yield from (_part(one) for one in found.parts)
    changes = [(one, part) for part in found.parts for one in part.detail if one.change is not ChangeKind.REST]
    yield from (_change(one, part) for one, part in sorted(changes, key=lambda both: -abs(both[0].ns)))
    for title, rows in comparison.lists(found):
        yield from (_text(title, f"{first} {rest}") for first, rest in rows)


def _text(kind: str, text: str) -> Item:
    return Item((f"{kind}: {quoted(text)}",), {"kind": kind, "text": plain(text)})


def _part(one: Part) -> Item:
    times = f"{duration(one.before_ns)} before, {duration(one.after_ns)} after"
    data = {"kind": "part", "what": plain(one.what, MOST_NAME), "before_ns": one.before_ns, "after_ns": one.after_ns}
    return Item((f"part {signed(one.ns)} {quoted(one.what, MOST_NAME)}: {times}",), {**data, "ns": one.ns})


def _change(one: Change, part: Part) -> Item:
    at = f" at {quoted(place(one.site), MOST_NAME)}" if one.site else ""
    what = f"{one.what or part.what}: {comparison.how(one)}"
    data: Data = {
        "kind": "change",
        "part": plain(part.what, MOST_NAME),
        "what": plain(one.what, MOST_NAME),
        "change": one.change.value,
        "ns": one.ns,
        "before_calls": one.before_calls,
        "after_calls": one.after_calls,
        "at": plain(place(one.site), MOST_NAME) if one.site else None,
    }
    return Item((f"change {signed(one.ns)} in {quoted(part.what, MOST_NAME)}: {quoted(what)}{at}",), data)
