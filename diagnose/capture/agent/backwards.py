"""Backward passes: when they begin and end, the losses that they begin at, and autograd's graph."""

import functools
import gzip
import json
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from . import about
from .alone import capturing, failed, written_name
from .noticed import compiler_switch
from .script_files import when_imported

# Called when a pass begins, with the tensors that it begins at, and when one has ended. What they raise is only noted.
_listeners: list[Callable[..., None]] = []
_at_ends: list[Callable[..., None]] = []
_at_failures: list[Callable[..., None]] = []
_running: set[object] = set()
"""One for each pass that goes on: what begins within another is part of it, as where activations are checkpointed."""
_unhook: Callable[[], None] | None = None  # Puts torch's own function back; None while it is there.


def listen(listener: Callable[[list[Any]], None]) -> None:
    """From now on have it called before each pass, also one within another, with the tensors it begins at."""
    _listeners.append(listener)
    when_imported("torch.autograd", _hook)


def listen_to_ends(listener: Callable[[], None], of_failed: bool = False) -> None:
    """From now on have it called after each pass that is in no other; SystemExit in it gets through to the script.
    `of_failed`: also after one that raised."""
    _at_ends.append(listener)
    _at_failures.extend([listener] * of_failed)
    when_imported("torch.autograd", _hook)


def leave(listener: Callable[..., None]) -> None:
    """Call it no more; it may have left before."""
    for listeners in (_listeners, _at_ends, _at_failures):
        if listener in listeners:
            listeners.remove(listener)
    if not _listeners and not _at_ends and _unhook is not None:
        _unhook()


def forget_all() -> None:
    """Remove all listeners, those inherited from the process that this one was forked from included."""
    _running.clear()
    for listener in [*_listeners, *_at_ends]:
        leave(listener)


def _hook(module: Any) -> None:
    """Replace `torch.autograd.backward` while anyone listens; `_unhook` puts it back."""
    global _unhook
    if _unhook is None and (_listeners or _at_ends):
        original = module.backward
        wrapped = module.backward = _with_listeners(original)

        def put_back() -> None:
            """Restore the original, unless someone else has put another function there, which calls ours."""
            global _unhook
            if module.backward is wrapped:
                module.backward, _unhook = original, None

        _unhook = put_back


def _with_listeners(original: Any) -> Callable[..., Any]:
    """`torch.autograd.backward` with calls of listeners, which are left out in compiled code and graph capture."""
    import torch  # The script is importing it: it is there, if not yet whole.

    compile_with = compiler_switch()

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(tensors, *args, **kwargs)
        compiler = compile_with(None)  # By no function of ours: it would be compiled (see compiler_switch).
        compile_with(compiler)
        if compiler:
            return original(tensors, *args, **kwargs)
        heard = not capturing()
        if heard:
            _tell(_listeners, list(tensors) if isinstance(tensors, (tuple, list)) else [tensors])
        outermost, this = not _running, object()
        _running.add(this)
        try:
            result = original(tensors, *args, **kwargs)
        except BaseException:
            if outermost and heard:
                _tell(_at_failures)
            raise
        finally:
            _running.discard(this)
        if outermost and heard:
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


MOST = 10_000  # Losses that are kept, the first ones (chosen).


class Losses:
    """Losses, kept on their devices, in memory that is taken once for each device.

    A tensor for each step would stay at the top of glibc's heap, which then gives back less to the system: an arm of a
    GPT-2 on a CPU took 116 ms a step with such tensors, and 126 without (transformers 5.24, torch 2.13).
    """

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}
        self._devices: list[Any] = []  # Of each loss.

    def keep(self, one: Any) -> None:
        """Keep a tensor of one floating-point number, up to MOST; it is not read, as that would wait for the device."""
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
        """All losses in order, each as `float.hex` writes it. Waits for the device."""
        numbers = {device: kept[: len(self._devices)].tolist() for device, kept in self._kept.items()}
        return [numbers[device][place].hex() for place, device in enumerate(self._devices)]


MOST_NODES = 50_000  # Of a step (chosen): walking so many took 0.06 s (torch 2.13, one core of a Xeon).
UNNUMBERED = 1 << 63  # Nodes that add to the gradient of a weight have numbers from here on.


def graph_of_a_step(target: Path) -> Generator[None, None, str | None]:
    """A course: note the next step's passes, and write their graph. Returns the file's name; None: none is written."""
    graphs = Graphs()
    listen(graphs.backward)
    try:
        yield
    finally:  # The training may end before.
        leave(graphs.backward)
    return written_name(target, graphs.write)


class Graphs:
    """The graph of the backward passes that it hears of, in the columns of `trace.model.AutogradGraph`."""

    def __init__(self) -> None:
        self.too_large = False
        self._names: dict[str, int] = {}
        self._position: dict[Any, int] = {}  # Of each node in the columns.
        self._name: list[int] = []
        self._number: list[int] = []
        self._uses: list[int] = []
        self._used: list[int] = []
        self._weight: list[Any] = []

    def backward(self, ends: list[Any]) -> None:
        """A pass begins at these tensors: add all nodes that it reaches. Raises what torch raises."""
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
        """Write the file unless the graph is empty or too large; whether it did. Lets go of the graph's memory."""
        self._position.clear()
        weights, self._weight = self._weight, []
        if self.too_large or not self._name:
            return False
        has = {id(one): at for at, some in enumerate(about.all_optimizers(), 1) for one in about.weights(some)}
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
