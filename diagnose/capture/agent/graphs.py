"""What autograd's graph says of how ops depend on each other, which no trace tells: of the passes of one step."""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from . import about, backwards
from .alone import whole

MOST_NODES = 50_000  # Of a step (our choice): walking so many took 0.06 s (torch 2.13, one core of a Xeon).
UNNUMBERED = 1 << 63  # Nodes that add to the gradient of a weight have numbers from here on.


def graph_of_a_step(target: Path) -> Generator[None, None, str | None]:
    """Look at the next step's passes, and write them into a file; to its name, or None if there is nothing to write."""
    graphs = Graphs()
    backwards.listen(graphs.backward)
    try:
        yield
    finally:  # The training may end before.
        backwards.leave(graphs.backward)
    return whole(target, graphs.write)


class Graphs:
    """Nodes of the backward passes that it was told of, by the names of `trace.model.AutogradGraph`."""

    def __init__(self) -> None:
        self.too_large = False
        self._names: dict[str, int] = {}
        self._position: dict[Any, int] = {}
        self._name: list[int] = []
        self._number: list[int] = []
        self._uses: list[int] = []
        self._used: list[int] = []
        self._weight: list[Any] = []

    def backward(self, ends: list[Any]) -> None:
        """A pass begins at these tensors. Raises what torch raises."""
        pending = [node for end in ends if (node := getattr(end, "grad_fn", None)) is not None]
        for node in pending:
            self._add(node)
        while pending and not self.too_large:
            node = pending.pop()
            position = self._position[node]
            for inner, _ in node.next_functions:
                if inner is None:
                    continue
                if inner not in self._position:
                    self._add(inner)
                    pending.append(inner)
                self._uses.append(position)
                self._used.append(self._position[inner])

    def _add(self, node: Any) -> None:
        if node not in self._position:
            self._position[node] = len(self._position)
            self._name.append(self._names.setdefault(node.name(), len(self._names)))
            number = node._sequence_nr()
            self._number.append(-1 if number >= UNNUMBERED else number)
            self._weight.append(getattr(node, "variable", None))
            self.too_large |= len(self._position) > MOST_NODES

    def write(self, target: Path) -> bool:
        """Into a file, if there is something to write. Lets go of the graph."""
        self._position.clear()
        weights, self._weight = self._weight, []
        if self.too_large or not self._name:
            return False
        has = {id(one): at for at, some in enumerate(about.alive(), 1) for one in about.weights(some)}
        content = {
            "names": list(self._names),
            "name": self._name,
            "number": self._number,
            "uses": self._uses,
            "used": self._used,
            "optimizer": [-1 if weight is None else has.get(id(weight), 0) for weight in weights],
        }
        with gzip.open(target, "wt", encoding="utf-8") as file:
            json.dump(content, file, separators=(",", ":"))
        return True
