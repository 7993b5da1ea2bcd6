"""Which ops compute what has been computed already, and which give back what they took: no trace tells.

Two steps after the recordings run under a mode of torch's dispatcher, which numbers values: an op's result has the same
number as an earlier one if both come from the same op and from inputs of the same numbers.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .alone import MOST_S, capturing, failed, written_name
from .contents import Contents, Counts, Op, Unknown, described, is_one_number, plain, some_of, tensors_in

T = TypeVar("T")
MOST_OPS = 60_000  # Of both steps (chosen): looking at one took 65 us (torch 2.13, one core of a Xeon).
MOST_EDGES = 2_000_000  # From ops to those that made what they take (chosen): 32 MB of memory.


def values_of_two_steps(target: Path) -> Generator[None, None, str | None]:
    """A course: look at the next two steps, and write a file. Returns its name; None if nothing could be seen."""
    values = Values()
    leave: Callable[[], None] | None = None
    with suppress(AttributeError, ImportError):  # Of an older torch.
        leave = _entered(values)
    if leave is None:
        return None
    try:
        yield
        values.step = 1
        yield
    finally:  # The training may end before.
        leave()
    return written_name(target, values.write)


def _entered(values: Values) -> Callable[[], None] | None:
    """Enter a mode that shows `values` all ops of this thread and of its backward passes. Returns what leaves it.
    None, and no mode, where the script has a mode of its own, and where it compiles: what is compiled calls no ops."""
    from torch.utils import _python_dispatch

    class Mode(_python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return values.called(func, args, kwargs or {})

    def leave() -> None:
        """Modes leave in turn: below one of the script's, ours stays, and does nothing any more."""
        if _python_dispatch._get_current_dispatch_mode() is mode:
            mode.__exit__(None, None, None)
        else:
            values.failed = True

    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    compiles = any(counters.get(what) for what in ("frames", "stats"))
    if compiles or _python_dispatch._get_current_dispatch_mode() is not None:
        return None
    mode = Mode()
    mode.__enter__()
    return leave


class _Call(NamedTuple):
    op: Op
    at: int  # The position of this call among all.
    key: object | None  # None if nothing can be compared with it.
    tensors: list[Any]  # All that it takes.
    written: list[Any]  # Those of them that it writes to.


class Values:
    """Calls of ops in two steps, in the columns of `trace.model.ValueGraph`: one element for each call, or edge."""

    def __init__(self) -> None:
        import torch

        self.torch, self._contents = torch, Contents(torch)
        self._counts = Counts(torch, self._contents)
        self.step = 0
        self.failed = False
        self._lock, self._process = threading.Lock(), os.getpid()
        self._ops: dict[Any, Op] = {}
        self._threads: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._first: dict[int, int] = {}  # Of each value's number the first call that made it.
        self._samples: list[str] = []  # Of each call the sizes and some elements of its result.
        self._written_by: dict[int, list[int]] = {}  # Of each call those that wrote to its result.
        self._name: list[int] = []
        self._thread: list[int] = []
        self._step: list[int] = []
        self._backward: list[int] = []
        self._makes: list[int] = []
        self._same: list[int] = []
        self._uses: list[int] = []
        self._used: list[int] = []

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an op for the script, note it, and return its result. Raises only what the op raises."""
        call = self._tried(self._begun, func, args, kwargs)
        made = func(*args, **kwargs)
        if call is not None:
            self._tried(self._ended, call, made)
        return made

    def _tried(self, what: Callable[..., T], *given: Any) -> T | None:
        """What `what(*given)` returns; None once anything failed or was slow, or while a CUDA graph is captured.
        A process that was forked in the meantime, such as a worker of a loader, has the mode as well."""
        self.failed |= os.getpid() != self._process or capturing()
        if self.failed:
            return None
        begun_s = time.monotonic()
        try:
            with self._lock:
                found = what(*given)
            if time.monotonic() - begun_s > MOST_S:
                raise TimeoutError("an op took too long")
            return found
        except Exception as error:
            self.failed = True
            failed("values of ops", error)
            return None

    def _begun(self, func: Any, args: Any, kwargs: Any) -> _Call | None:
        """Note a call that begins, and which calls filled what it takes; None if the op only marks a range."""
        if (op := self._ops.get(func)) is None:
            op = self._ops[func] = described(func, self.torch)
        if op.name.startswith("profiler::"):  # It only marks a range.
            return None
        given = {**dict(zip(op.arguments, args, strict=False)), **kwargs}
        tensors = list(tensors_in(list(given.values()), self.torch))
        written = list(tensors_in([given[name] for name in op.writes if name in given], self.torch))
        try:
            key = (func, tuple((name, self._contents.key(one)) for name, one in given.items()))
        except Unknown:
            key = None
        at = len(self._name)
        self._name.append(self._names.setdefault(op.name, len(self._names)))
        self._thread.append(self._threads.setdefault(threading.get_ident(), len(self._threads)))
        self._step.append(self.step)
        self._backward.append(int(self.torch._C._current_graph_task_id() != -1))
        self._makes.append(0)
        self._same.append(-1)
        self._samples.append("")
        for one in sorted({self._contents.filled_by(tensor) for tensor in tensors if not is_one_number(tensor)}):
            self._uses.append(at)
            self._used.append(one)
        self._counts.taken(op, given, tensors if op.computes else [], self._backward[at] == 1, self.step)
        self.failed |= at >= MOST_OPS or len(self._uses) > MOST_EDGES
        return _Call(op, at, key if op.comparable else None, tensors, written)

    def _ended(self, call: _Call, made: Any) -> None:
        """Note what a call made, what it wrote to, and the first call with the same value, if samples are equal."""
        at, contents = call.at, self._contents
        results = list(tensors_in([made], self.torch))
        new = [result for result in results if contents.is_new(result)]
        value = contents.fresh() if call.key is None else contents.number(call.key)
        first = self._first.setdefault(value, at)
        looked_at = [one for one in [*new, *call.written][:1] if plain(one, self.torch)]
        self._samples[at] = repr([(tuple(one.shape), some_of(one)) for one in looked_at])
        self._makes[at] = int(bool(new or call.written or not results))
        if first != at and self._makes[at] and self._samples[first] == self._samples[at]:
            self._same[at] = first
        for one in call.written:
            maker = contents.written(one, contents.number(("written", value)), at)
            self._written_by.setdefault(maker, []).append(at)
        for tensor in call.tensors if call.op.turns else []:
            contents.turned(tensor)
        for place, one in enumerate(new):
            contents.made(one, contents.number(("made", value, place)), at)

    def _can_be_left_out(self, at: int) -> bool:
        """Whether the earlier equal result could be used: both are written to with equal values, or not at all."""
        of_both = (self._written_by.get(one, []) for one in (at, self._same[at]))
        own, earlier = ([self._same[one] if self._same[one] >= 0 else one for one in by] for by in of_both)
        return own == earlier

    def _repeats(self) -> list[int]:
        """By op, 1 if its result looks like that of the same call of that op in the step before, else 0."""
        calls, before, repeats = Counter[tuple[int, int]](), dict[tuple[int, int], str](), list[int]()
        for name, step, sample in zip(self._name, self._step, self._samples, strict=True):
            call = name, calls[name, step]
            calls[name, step] += 1
            repeats.append(int(step == 1 and bool(sample) and before.get(call) == sample))
            before.setdefault(call, sample)
        return repeats

    def write(self, target: Path) -> bool:
        """Write the file unless something failed or no op was called; whether it did. Lets go of all memory."""
        self._contents.forget()
        if self.failed or not self._name:
            return False
        content = {
            "names": list(self._names),
            "name": self._name,
            "thread": self._thread,
            "step": self._step,
            "backward": self._backward,
            "makes": self._makes,
            "same": [one if one >= 0 and self._can_be_left_out(at) else -1 for at, one in enumerate(self._same)],
            "sparse": self._counts.sparse,
            "repeats": self._repeats(),
            "looked_up": self._counts.looked_up,
            "uses": self._uses,
            "used": self._used,
        }
        with gzip.open(target, "wt", encoding="utf-8") as file:
            json.dump(content, file, separators=(",", ":"))
        return True
