"""Backward passes: when they begin and end, the losses that they begin at, and autograd's graph."""

import functools
import gzip
import json
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from . import about
from .alone import capturing, failed, whole
from .noticed import compiler_switch
from .script_files import when_imported

# Are given the tensors that a pass begins at. What they raise is noted, and the script does not hear of it.
_listeners: list[Callable[..., None]] = []
_at_ends: list[Callable[..., None]] = []
_running = False  # In a pass: what begins within it is part of it, as where activations are checkpointed.
_unhook: Callable[[], None] | None = None  # Puts torch's own function back; None while it is there.


def listen(listener: Callable[[list[Any]], None]) -> None:
    """Have it called from now on."""
    _listeners.append(listener)
    when_imported("torch.autograd", _hook)


def listen_to_ends(listener: Callable[[], None]) -> None:
    """Have it called after each pass from now on; what ends the process gets through to the script."""
    _at_ends.append(listener)
    when_imported("torch.autograd", _hook)


def leave(listener: Callable[..., None]) -> None:
    """Call it no more; it may have left before."""
    for listeners in (_listeners, _at_ends):
        if listener in listeners:
            listeners.remove(listener)
    if not _listeners and not _at_ends and _unhook is not None:
        _unhook()


def forget_all() -> None:
    """Let all leave: those of a process that this one was forked from, too."""
    global _running
    _running = False
    for listener in [*_listeners, *_at_ends]:
        leave(listener)


def _hook(module: Any) -> None:
    """Replace `torch.autograd.backward` while anyone listens; `_unhook` puts it back."""
    global _unhook
    if _unhook is None and (_listeners or _at_ends):
        original = module.backward
        told = module.backward = _told(original)

        def put_back() -> None:
            """Unless someone else has put another function there, which calls ours."""
            global _unhook
            if module.backward is told:
                module.backward, _unhook = original, None

        _unhook = put_back


def _told(original: Any) -> Callable[..., Any]:
    """`torch.autograd.backward`, which tells us. Its frame is in stacks: it is there only while someone listens."""
    import torch  # The script is importing it: it is there, if not yet whole.

    compile_with = compiler_switch()

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        global _running
        if torch.compiler.is_compiling():
            return original(tensors, *args, **kwargs)
        compiler = compile_with(None)
        compile_with(compiler)
        if compiler:
            return original(tensors, *args, **kwargs)
        announced = not capturing()
        if announced:
            _tell(_listeners, list(tensors) if isinstance(tensors, (tuple, list)) else [tensors])
        outermost, _running = not _running, True
        try:
            result = original(tensors, *args, **kwargs)
        finally:
            _running = not outermost
        if outermost and announced:
            _tell(_at_ends)
        return result

    # What torch.compile leaves alone it knows by the file, which is torch's own.
    backward.__code__ = backward.__code__.replace(co_filename=original.__code__.co_filename)
    return functools.update_wrapper(backward, original)


def _tell(listeners: list[Any], *given: Any) -> None:
    """Call all listeners; the first that fails ends that, is noted, and does not fail the script."""
    try:
        for listener in list(listeners):
            listener(*given)
    except Exception as error:
        failed("backward passes", error)


MOST = 10_000  # That are kept (chosen).


class Losses:
    """In memory that is taken once for each device.

    A tensor for each step would stay at the top of glibc's heap, which then gives back less to the system: an arm of a
    GPT-2 on a CPU took 116 ms a step with such tensors, and 126 without (transformers 5.24, torch 2.13).
    """

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}
        self._devices: list[Any] = []  # Of each number.

    def keep(self, one: Any) -> None:
        """A tensor of one number. To read it now would wait for the device."""
        place, one = len(self._devices), one.to_local() if hasattr(one, "to_local") else one  # A DTensor's part.
        if place == MOST or not one.is_floating_point():
            return
        torch, device = sys.modules["torch"], one.device
        if device not in self._kept:
            dtype = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64.
            self._kept[device] = torch.zeros(MOST, dtype=dtype, device=device)
        with torch.no_grad():
            self._kept[device][place].copy_(one.detach().reshape(()))
        self._devices.append(device)

    def found(self) -> list[str]:
        """Each as `float.hex` writes it. Waits for the device."""
        numbers = {device: kept[: len(self._devices)].tolist() for device, kept in self._kept.items()}
        return [numbers[device][place].hex() for place, device in enumerate(self._devices)]


MOST_NODES = 50_000  # Of a step (chosen): walking so many took 0.06 s (torch 2.13, one core of a Xeon).
UNNUMBERED = 1 << 63  # Nodes that add to the gradient of a weight have numbers from here on.


def graph_of_a_step(target: Path) -> Generator[None, None, str | None]:
    """Look at the next step's passes, and write them into a file; to its name, or None if there is nothing to write."""
    graphs = Graphs()
    listen(graphs.backward)
    try:
        yield
    finally:  # The training may end before.
        leave(graphs.backward)
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
            for inner in [inner for inner, _ in node.next_functions if inner is not None]:
                if inner not in self._position:
                    self._add(inner)
                    pending.append(inner)
                self._uses.append(position)
                self._used.append(self._position[inner])

    def _add(self, node: Any) -> None:
        """Give a node of autograd's graph the next position, and note its name, sequence number and weight."""
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
