"""Reading autograd's graph of one step, as `diagnose profile` leaves it."""

from __future__ import annotations

import msgspec

from diagnose.source.columns import printable
from diagnose.source.packed import check_size, unpacked, within
from diagnose.storage.remote import Place
from diagnose.trace.model import AutogradGraph

_LARGEST = 1 << 62
_WHAT = "graph"


class _Content(msgspec.Struct, frozen=True):
    names: list[str]
    name: list[int]
    number: list[int]
    uses: list[int]
    used: list[int]
    optimizer: list[int] | None = None


def read_graph(path: Place) -> AutogradGraph:
    """The graph in a file. Raises ValueError, in a few words, and OSError."""
    found = unpacked(path, _Content, _WHAT)
    nodes, edges = len(found.name), len(found.uses)
    check_size(_WHAT, len(found.names), nodes, edges)
    optimizer = [-1] * nodes if found.optimizer is None else found.optimizer
    if not len(found.number) == len(optimizer) == nodes or len(found.used) != edges:
        raise ValueError("is no graph: its parts do not fit")
    return AutogradGraph(
        names=tuple(printable(name) for name in found.names),
        name=within(found.name, 0, len(found.names), _WHAT),
        number=within(found.number, -1, _LARGEST, _WHAT),
        uses=within(found.uses, 0, nodes, _WHAT),
        used=within(found.used, 0, nodes, _WHAT),
        optimizer=within(optimizer, -1, _LARGEST, _WHAT),
    )
