"""Where one training step ends and the next begins, in a script that does not say so; and where epochs do."""

import functools
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from types import ModuleType
from typing import Any

from .interruptions import OPTIMIZER, phases
from .noticed import compiler_switch
from .script_files import when_imported

# What steps are found by, best first: an optimizer's step, a backward pass, a batch asked for, a model call.
ORDER = ("optimizer", "backward", "loader", "call")

# More events of a kind than this, and none of a better kind, count as steps (chosen): accumulated gradients and a first
# validation make fewer. ENOUGH_BESIDE: once an optimizer has been made, which is going to step some time.
ENOUGH, ENOUGH_BESIDE = 30, 200

# Seconds since the first of them that must have passed, too: a validation before the training is mostly shorter
# (chosen). Not for backward passes where no optimizer has been made: these train.
ENOUGH_S = 10.0
FEW, FEW_S = 3, 20.0  # Backward passes, and the time since the first, after which slow ones count too (chosen).
GONE = 7  # An optimizer is gone after so many times the most steps of others between two of its own (chosen).


class Steps:
    """Calls `on_step(number)` after each step, numbered from 0.

    A step ends with the step of an optimizer. Of several the rarest counts, of equally rare ones the last of the
    round: so a round of all is one step. Which one it is may change until `fixed` is set; after that only if it is
    gone, as when each epoch makes an optimizer of its own. Without any optimizer a step ends with a backward pass; with
    none of these either it begins when a batch is asked for, else when the model is called.
    """

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self._on_step = on_step
        self._stepped: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._anchor: weakref.ref[object] | None = None  # The optimizer whose steps count.
        self._number = self._ahead = -1  # Of the last step; what is added to the anchor's count to number its steps.
        self._others = self._most_others = 0  # Steps of others since the anchor's last; most between two of its own.
        self._counts = dict.fromkeys(ORDER, 0)
        self._since_s = dict.fromkeys(ORDER, 0.0)
        self.by: str | None = None  # One of ORDER; None until a step has ended.
        self.optimizer_made = False  # There is one, even if it has not stepped yet.
        self.fixed = False

    def optimizer_stepped(self, optimizer: object) -> None:
        """An optimizer's step has ended. Calls `on_step` if it is the optimizer that counts, or counts from now on."""
        if self.by != "optimizer" and self.fixed:
            return
        anchor = self._anchor() if self._anchor is not None else None
        if self.fixed and optimizer is anchor:
            self._most_others, self._others = max(self._most_others, self._others), 0
            self._number += 1
            return self._on_step(self._number)
        count = self._stepped[optimizer] = self._stepped.get(optimizer, 0) + 1
        if optimizer is not anchor:
            self._others += 1
            overdue = self.fixed and self._others > GONE * self._most_others + 1
            gone = self._anchor is not None and (anchor is None or overdue)
            better = anchor is not None and not self.fixed and 2 <= count <= self._stepped[anchor]
            if not (self._anchor is None or gone or better):
                return
            self._anchor = weakref.ref(optimizer)
            self._ahead = self._number + 1 - count if gone else -1
        else:
            self._most_others = max(self._most_others, self._others)
        self._others = 0
        self.by, self._number = "optimizer", count + self._ahead
        self._on_step(self._number)

    def happened(self, kind: str) -> None:
        """Count an event of a kind in ORDER[1:]. A backward pass ends a step; others begin the next one."""
        if self.by == "optimizer" or (self.fixed and self.by != kind):
            return
        if not self.fixed:
            for less_reliable in ORDER[ORDER.index(kind) + 1 :]:
                self._counts[less_reliable] = 0
        if not self._counts[kind]:
            self._since_s[kind] = time.monotonic()
        self._counts[kind] += 1
        if self.fixed or self._enough(kind):
            self.by = kind
            self._on_step(self._counts[kind] - (1 if kind == "backward" else 2))

    def seen(self) -> dict[str, int]:
        """How many events of each kind in ORDER[1:] were counted; kinds without any are left out."""
        return {kind: count for kind, count in self._counts.items() if count}

    def _enough(self, kind: str) -> bool:
        """Whether events of this kind have come often and long enough to count as steps."""
        count, since_s = self._counts[kind], time.monotonic() - self._since_s[kind]
        if self.optimizer_made:
            return kind != "call" and count > ENOUGH_BESIDE and since_s > ENOUGH_S
        if count > ENOUGH:
            return kind == "backward" or since_s > ENOUGH_S
        return kind == "backward" and count > FEW and since_s > FEW_S


def watch_optimizers(on_step: Callable[[object], None]) -> dict[str, bool]:
    """Have `on_step(optimizer)` called after each optimizer's step, once its range in a trace has been closed.

    Returns a dict that gets the key "made" once there is an optimizer, and "compiled" once one stepped within
    torch.compile: `on_step` is not called for such steps.
    """
    seen: dict[str, bool] = {}

    def wrap(module: ModuleType) -> None:
        """Wrap the decorator by which each optimizer's class gets its `step`."""
        import torch  # The script is importing it: it is there, if not yet whole.

        original, compile_with = module.Optimizer.profile_hook_step, compiler_switch()

        def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
            inner = original(function)
            seen["made"] = True

            @functools.wraps(inner)
            def step(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return inner(*args, **kwargs)
                compiler = compile_with(None)
                compile_with(compiler)
                counted = not compiler and phases.begin(OPTIMIZER)
                try:
                    result = inner(*args, **kwargs)
                finally:
                    if counted:
                        phases.end(OPTIMIZER)
                if compiler:
                    seen["compiled"] = True
                else:
                    on_step(args[0])
                return result

            return step

        module.Optimizer.profile_hook_step = staticmethod(profile_hook_step)

    when_imported("torch.optim.optimizer", wrap)
    return seen


MOST_STEPS = 10_000  # Whose ends are kept, the latest ones (chosen).
MOST_BEGUN = 1_000  # Beginnings that are kept, the latest ones: a script may make an iterator for each step (chosen).
MOST_TOLD = 64  # Beginnings that the manifest has (chosen).


@dataclass
class _Begun:
    loader: Hashable  # The one that an iterator was asked of.
    step: int  # The first of the epoch.
    asked_ns: int  # When the iterator was asked for, by `time.perf_counter_ns`.
    first_ns: int | None = None  # When its first batch was there; None: not yet.


class Epochs:
    """Where epochs begin, and the time they add to steps; reads the clock at each step's end until it is closed.
    `loader` in all methods: any hashable object that stands for a DataLoader."""

    def __init__(self) -> None:
        self._ends_ns: deque[int] = deque(maxlen=MOST_STEPS)
        self._begun: deque[_Begun] = deque(maxlen=MOST_BEGUN)
        self._waiting: _Begun | None = None  # The latest, until its first batch is there.
        self._kinds: dict[Hashable, Hashable] = {}  # Of each loader.
        self._trained: Counter[Hashable] = Counter()  # Steps whose last batch came from each loader; None: no batch.
        self._latest: Hashable = None  # The loader of the last batch in this step.
        self._last = self._closed_at = -1
        self._steady_from: int | None = None
        self._open = True

    def begins(self, loader: Hashable, kind: Hashable = None) -> None:
        """An iterator of a loader is about to be made. Loaders of equal `kind` count as one; None: its own kind."""
        self._kinds[loader] = loader if kind is None else kind
        self._waiting = _Begun(loader, self._last + 1, time.perf_counter_ns())
        self._begun.append(self._waiting)

    def got(self, loader: Hashable) -> None:
        """The training has got a batch from this loader."""
        self._latest = loader
        if self._waiting is not None and self._waiting.loader is loader:
            self._waiting.first_ns, self._waiting = time.perf_counter_ns(), None

    def step_ended(self, number: int) -> None:
        """The step of this number has ended. After a gap in the numbers, earlier steps and epochs are forgotten."""
        if number != self._last + 1:  # Steps are counted from a new start.
            self._ends_ns.clear()
            self._begun.clear()
        self._last = number
        if self._open:
            self._ends_ns.append(time.perf_counter_ns())
            self._trained[self._latest] += 1
            self._latest = None

    def steady(self, steps: int) -> None:
        """Step times are steady, from the last `steps` steps on: `found` takes means over these and later ones only."""
        self._steady_from = max(self._last - steps + 1, 0)

    def close(self) -> None:
        """A recording disturbs later steps: from now on only the beginnings of epochs are noted, and no times."""
        self._open, self._closed_at = False, self._last

    def found(self) -> dict[str, object] | None:
        """The fields of `Epochs` in the manifest; None if no kind of loader gave at least half of the steps a batch."""
        begun = self._training_iterators()
        if not begun:
            return None
        lengths = [after.step - before.step for before, after in pairwise(begun)]
        times = self._whole(begun, lengths[-1]) if lengths else {}
        return {"began": [one.step for one in begun[-MOST_TOLD:]], "steps": lengths[-1] if lengths else None, **times}

    def _training_iterators(self) -> list[_Begun]:
        """Iterators of the kind of loader that gave most steps their batches; none if these are under half of all."""
        trained = Counter[Hashable]()
        for loader, count in self._trained.items():
            if loader in self._kinds:
                trained[self._kinds[loader]] += count
        ((kind, most),) = trained.most_common(1) or ((None, 0),)
        if 2 * most < self._trained.total():
            return []
        of_kind = [one for one in list(self._begun) if self._trained[one.loader] and self._kinds[one.loader] == kind]
        # Of several before one step, as where a script looks at a batch, the last is trained on.
        return list({one.step: one for one in of_kind}.values())

    def _whole(self, begun: list[_Begun], length: int) -> dict[str, object]:
        """Mean times over the latest steady steps, as many as make whole epochs of `length`; empty if none is whole."""
        last = self._last if self._open else self._closed_at
        first = last - len(self._ends_ns) + 1
        if self._steady_from is None:
            return {}
        count = (last - max(self._steady_from, first + 1) + 1) // length * length
        if count <= 0:
            return {}
        since = last - count + 1

        def end_ns(number: int) -> int:
            return self._ends_ns[number - first]

        epochs = [one for one in begun if since <= one.step <= last]
        means = {
            "first_step_ns": [end_ns(one.step) - end_ns(one.step - 1) for one in epochs],
            "between_ns": [one.asked_ns - end_ns(one.step - 1) for one in epochs],
            "starting_ns": [one.first_ns - one.asked_ns for one in epochs if one.first_ns is not None],
        }
        return {
            "timed": count,
            "step_ns": round((end_ns(last) - end_ns(since - 1)) / count),
            **{name: round(fmean(values)) if values else None for name, values in means.items()},
        }
