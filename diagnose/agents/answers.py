"""What a tool answers: text, and the same as data; both together within one bound, with a handle to what is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from diagnose.reports.quoting import MOST_BYTES, NOTE, size

Data = dict[str, Any]
"""A JSON object, as the protocol has it."""

ENDING_BYTES = 300
"""Kept for the sentence on what is left."""


@dataclass(frozen=True)
class Answer:
    """To one call of a tool."""

    text: str
    data: Data

    @property
    def bytes(self) -> int:
        """Of the text and of the data as JSON, together."""
        return size(self.text) + len(msgspec.json.encode(self.data))


@dataclass(frozen=True)
class Item:
    """A part that is told as a whole: in lines, and as data."""

    lines: tuple[str, ...]
    data: Any

    @property
    def bytes(self) -> int:
        """Of both."""
        return sum(size(line) + 1 for line in self.lines) + len(msgspec.json.encode(self.data)) + 1


def whole(lines: Iterable[str], data: Data) -> Answer:
    """An answer that is short by how it is made, and says itself what of it is data."""
    return Answer("\n".join(lines) + "\n", {**data, "untrusted": NOTE})


def page(lines: Iterable[str], data: Data, name: str, items: Iterator[Item], first: int) -> Answer:
    """As many items as there is room for, from number `first` on (0 is the first), as `name` in the data.

    `next` in the data is the number to go on with; None if that was all.
    """
    head = whole([NOTE, *lines], {**data, name: [], "next": None})
    left, told, rows, following = MOST_BYTES - ENDING_BYTES - head.bytes, list[str](), list[Any](), None
    for number, item in enumerate(items):
        if number < first:
            continue
        left -= item.bytes
        if left < 0 and rows:
            following = number
            break
        told += item.lines
        rows.append(item.data)
    if following is not None:
        told.append(f"There is more: ask again with start={following}.")
    elif first and not rows:
        told.append(f"There is nothing from {first} on.")
    return Answer(head.text + "\n".join([*told, ""]), {**head.data, name: rows, "next": following})
