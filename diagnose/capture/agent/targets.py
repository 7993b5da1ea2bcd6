"""How many rows a cross entropy is told to ignore, of which no trace tells.

Looked up where autograd keeps it, when a backward pass begins, while the training warms up.
"""

from __future__ import annotations

from collections import deque
from typing import Any

MOST_LOOKS = 16
"""Backward passes that are looked into (our choice)."""

MOST_NODES = 256
"""Nodes between the end of the graph and the losses (our choice)."""

LOSSES = ("NllLossBackward0", "NllLoss2DBackward0")

UNSIGNED = 1 << 64
"""Autograd shows negative numbers as these less so much."""


class Targets:
    """What was seen of the losses of this process."""

    def __init__(self) -> None:
        self._looks = 0
        self._seen: dict[int, list[int]] = {}

    def backward(self, ends: list[Any]) -> None:
        """A pass begins at these tensors. Raises what torch raises."""
        if self._looks >= MOST_LOOKS:
            return
        self._looks += 1
        for one in ends:
            for loss in _losses(getattr(one, "grad_fn", None)):
                self._note(loss)

    def _note(self, loss: Any) -> None:
        # What has hooks is somewhere else, or is to be computed again: to ask for it would do so.
        if any(_hooked(getattr(loss, f"_raw_saved_{name}")) for name in ("self", "target")):
            return
        shape, target, ignored = loss._saved_self.shape, loss._saved_target, loss._saved_ignore_index
        ignored -= UNSIGNED if ignored >= UNSIGNED // 2 else 0
        seen = self._seen.setdefault(int(shape[1] if len(shape) > 1 else shape[0]), [0, 0, 0])
        for at, more in enumerate((1, target.numel(), int((target == ignored).sum()))):
            seen[at] += more

    def found(self) -> list[dict[str, int]]:
        """Each as `Targets` in the manifest."""
        return [
            {"classes": classes, "looks": looks, "rows": rows, "ignored": ignored}
            for classes, (looks, rows, ignored) in sorted(self._seen.items())
        ]


def _hooked(saved: Any) -> bool:
    """Whether hooks of the script keep a tensor that autograd saved. Where torch does not tell, they may."""
    return getattr(saved, "unpack_hook", saved) is not None


def _losses(node: Any) -> list[Any]:
    """The losses of `LOSSES` nearest to the end of a graph."""
    found, known, pending = [], {node}, deque([node] if node is not None else [])
    while pending and len(known) <= MOST_NODES:
        node = pending.popleft()
        if node.name() in LOSSES:
            found.append(node)
            continue
        for inner, _ in node.next_functions:
            if inner is not None and inner not in known:
                known.add(inner)
                pending.append(inner)
    return found
