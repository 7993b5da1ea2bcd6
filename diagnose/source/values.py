"""Reading which ops of two steps made equal values, as `diagnose profile` leaves it."""

from __future__ import annotations

import msgspec

from diagnose.source.columns import printable
from diagnose.source.packed import check_size, unpacked, within
from diagnose.storage.remote import Place
from diagnose.trace.model import ValueGraph

_WHAT = "list of ops"


class _Content(msgspec.Struct, frozen=True):
    names: list[str]
    name: list[int]
    thread: list[int]
    step: list[int]
    backward: list[int]
    makes: list[int]
    same: list[int]
    uses: list[int]
    used: list[int]
    sparse: list[int] | None = None
    looked_up: list[int] | None = None


def read_values(path: Place) -> ValueGraph:
    """What is in a file. Raises ValueError, in a few words, and OSError."""
    found = unpacked(path, _Content, _WHAT)
    ops = len(found.name)
    columns = [found.thread, found.step, found.backward, found.makes, found.same]
    columns += [one for one in (found.sparse, found.looked_up) if one is not None]
    check_size(_WHAT, len(found.names), ops, len(found.uses))
    if any(len(column) != ops for column in columns) or len(found.uses) != len(found.used):
        raise ValueError(f"is no {_WHAT}: its parts do not fit")
    if found.step != sorted(found.step):
        raise ValueError(f"is no {_WHAT}: its steps are mixed")
    return ValueGraph(
        names=tuple(printable(name) for name in found.names),
        name=within(found.name, 0, len(found.names), _WHAT),
        thread=within(found.thread, 0, max(ops, 1), _WHAT),
        step=within(found.step, 0, 2, _WHAT),
        backward=within(found.backward, 0, 2, _WHAT),
        makes=within(found.makes, 0, 2, _WHAT),
        same=within(found.same, -1, ops, _WHAT),
        uses=within(found.uses, 0, ops, _WHAT),
        used=within(found.used, -1, ops, _WHAT),
        sparse=None if found.sparse is None else within(found.sparse, 0, 1001, _WHAT),
        looked_up=None if found.looked_up is None else within(found.looked_up, -1, ops, _WHAT),
    )
