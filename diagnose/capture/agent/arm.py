"""What an arm of a trial measures beside its steps, and whether a setting changes numbers.

Neither trains: random states and buffers are put back as they were, and optimizers step copies.
"""

import copy
import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import backwards, injection, script_files
from .alone import alone, uses_gpu
from .backwards import Losses


class Arm:
    """Of one process, from its start."""

    def __init__(self) -> None:
        self._losses = Losses()
        backwards.listen(self._backward)

    def _backward(self, tensors: list[Any]) -> None:
        for tensor in tensors:
            if tensor.numel() == 1:
                self._losses.keep(tensor)

    def found(self) -> dict[str, object]:
        """As `Arm` in the manifest. Waits for the device."""
        return {
            "injected": injection.effects(),
            "refused": injection.refused(),
            "losses": self._losses.found(),
            "peak_bytes": alone("the most memory", device_peak if uses_gpu() else own_peak),
            "reread": script_files.reread(),
        }


def device_peak() -> int:
    """Most memory that tensors had on GPUs."""
    torch = sys.modules["torch"]
    return sum(int(torch.cuda.max_memory_allocated(index)) for index in range(torch.cuda.device_count()))


def own_peak() -> int | None:
    """Most resident memory of this process, without its workers; None where the system does not say.

    Not of getrusage: that also holds what the process had before it became this program.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


ROUNDING = 1e-4
"""Typical difference of outputs, as a share of their spread, up to which it is rounding in float32 (our choice)."""

ROUNDING_OF_UPDATES = 1e-3  # The same of updates, which are the small difference of two parameters (our choice).
MOST_ELEMENTS = 1 << 24  # Of a tensor, evenly spaced, that are compared (our choice).
MOST = 1e9  # A larger difference, or one that is no number, is given as that: JSON has no infinity.
SHARE_OF_MEMORY = 0.5  # Of the free memory that copies of an optimizer may take (our choice).


@dataclass(frozen=True)
class Difference:
    """Of two results that should be the same, as shares of the spread of the first (a standard deviation)."""

    largest: float
    typical: float  # Mean absolute difference.
    kind: str  # "same" bits, "rounding", "differ", or "not_deterministic": they differ as much without any change.


class Called:
    """The largest module that is called while gradients are taken, from now on, and what it was called with."""

    def __init__(self) -> None:
        hook = sys.modules["torch"].nn.modules.module.register_module_forward_pre_hook
        self._called: dict[int, Any] = {}
        self._handle = hook(self._calls)

    def _calls(self, module: Any, _args: Any) -> None:
        if sys.modules["torch"].is_grad_enabled():
            self._called[id(module)] = module

    def largest(self) -> Any:
        """Ends it; None if none was called, or none with parameters."""
        self._handle.remove()
        sizes = [(sum(one.numel() for one in module.parameters()), module) for module in self._called.values()]
        size, found = max(sizes, key=lambda pair: pair[0], default=(0, None))
        self._called.clear()
        return found if size else None


class SameBatch:
    """The last batch that a model was called with while gradients were taken."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._given: tuple[Any, Any] | None = None
        self._handle = model.register_forward_pre_hook(self._keep, with_kwargs=True)
        self._as_it_trains = True
        self._own = 0.0  # Typical difference of two outputs of the model as it is.

    def _keep(self, _module: Any, args: Any, kwargs: Any) -> None:
        torch = sys.modules["torch"]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._given = args, kwargs

    def close(self) -> bool:
        """Keep that batch. Whether the model can be asked."""
        self._handle.remove()
        if self._given is None:
            return False
        try:
            first, again, other = self._output(), self._output(), self._output(seed=True)
            self._as_it_trains = _apart(first, other)[1] <= _apart(first, again)[1]
            if not self._as_it_trains:  # What draws random numbers in another order cannot be compared.
                first, again = self._output(), self._output()
            self._own = _apart(first, again)[1]
        except Exception:  # Whatever the model raises, asked once more than it expects.
            return False
        return True

    def compared(self, turn: Callable[[bool], None]) -> Difference:
        """Outputs without and with a setting, which is off before and after. Raises what the model raises with it."""
        without = self._output()
        turn(True)
        try:
            changed = self._output()
        finally:
            turn(False)
        return _difference(without, changed, ROUNDING, self._own)

    def _output(self, seed: bool = False) -> list[Any]:
        torch = sys.modules["torch"]
        assert self._given is not None
        args, kwargs = self._given
        alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        with _unchanged(self._model, training=self._as_it_trains), torch.set_grad_enabled(alone):
            if seed:  # Without gradients where ranks would wait for each other's.
                torch.manual_seed(torch.initial_seed() + 1)
            return _floats(self._model(*args, **kwargs))


def update_compared(optimizers: Sequence[Any], turn: Callable[[Any, bool], None]) -> Difference | None:
    """Parameters after one step of copies, without and with a setting; None where memory does not allow it, or where
    there are no gradients by now. Raises what the step raises with it.
    """
    found = list[Difference]()
    for optimizer in optimizers:
        weights = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        if not weights or not _fits(optimizer, weights):
            continue
        before = [one.detach() for one in weights]
        try:
            without = [after - start for after, start in zip(_stepped(optimizer, weights, None), before, strict=True)]
        except Exception:  # A step that copies do not make, whatever it raises.
            continue
        changed = [after - start for after, start in zip(_stepped(optimizer, weights, turn), before, strict=True)]
        found.append(_difference(without, changed, ROUNDING_OF_UPDATES, 0.0))
    return max(found, key=lambda one: one.typical, default=None)


def _stepped(optimizer: Any, weights: Sequence[Any], turn: Callable[[Any, bool], None] | None) -> list[Any]:
    torch = sys.modules["torch"]
    made = object.__new__(type(optimizer))
    made.__dict__ = {**optimizer.__dict__, "param_groups": [], "state": copy.copy(optimizer.state)}
    made.state.clear()
    copies = {}
    for group in optimizer.param_groups:
        made.param_groups.append({**group, "params": []})
        for weight in group["params"]:
            one = copies[id(weight)] = weight.detach().clone().requires_grad_(weight.requires_grad)
            one.grad = None if weight.grad is None else weight.grad.detach().clone()
            made.param_groups[-1]["params"].append(one)
            if weight in optimizer.state:
                made.state[one] = {
                    name: value.detach().clone() if torch.is_tensor(value) else copy.deepcopy(value)
                    for name, value in optimizer.state[weight].items()
                }
    if turn is not None:
        turn(made, True)
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(made)
    return [copies[id(weight)].detach() for weight in weights]


def _fits(optimizer: Any, weights: Sequence[Any]) -> bool:
    torch = sys.modules["torch"]
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    needed = 2 * sum(one.numel() * one.element_size() for one in [*weights, *weights, *kept])
    if weights[0].device.type == "cuda":
        free: int = torch.cuda.mem_get_info(weights[0].device)[0]
    else:
        free = _free_bytes()
    return bool(needed < SHARE_OF_MEMORY * free)


def _free_bytes() -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return 0


@contextmanager
def _unchanged(model: Any, training: bool) -> Iterator[None]:
    """Puts random states, buffers and modes back. `training`: with the modes that modules have, else in evaluation."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    states = torch.get_rng_state(), torch.cuda.get_rng_state_all() if uses_gpu() else None, random.getstate()
    of_numpy = numpy.random.get_state() if numpy is not None else None
    kept = [
        (module._buffers, name, one, one.detach().clone())
        for module in model.modules()
        for name, one in module._buffers.items()
        if one is not None and not one.is_inference()
    ]
    modes = [] if training else [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for buffers, name, one, value in kept:  # Batch norm changes them and leaves their version as it was.
                buffers[name] = one
                one.copy_(value)
        torch.set_rng_state(states[0])
        random.setstate(states[2])
        if numpy is not None:
            numpy.random.set_state(of_numpy)
        if states[1] is not None:
            alone("the random state of GPUs, which may have changed", torch.cuda.set_rng_state_all, states[1])


def _floats(output: Any) -> list[Any]:
    torch = sys.modules["torch"]
    leaves = torch.utils._pytree.tree_leaves(output)
    return [one.detach().clone() for one in leaves if torch.is_tensor(one) and one.is_floating_point()]


def _difference(without: Sequence[Any], changed: Sequence[Any], rounding: float, own: float) -> Difference:
    largest, typical = _apart(without, changed)
    if largest == 0:
        kind = "same"
    elif typical <= rounding:
        kind = "rounding"
    else:
        kind = "not_deterministic" if typical <= own else "differ"
    return Difference(largest, typical, kind)


def _apart(some: Sequence[Any], others: Sequence[Any]) -> tuple[float, float]:
    """The largest and the typical difference, of the pair of tensors that differ most; 0 only for equal bits."""
    if len(some) != len(others) or any(one.shape != other.shape for one, other in zip(some, others, strict=False)):
        return MOST, MOST
    pairs = [_of_pair(one, other) for one, other in zip(some, others, strict=True)]
    return max((one for one, _ in pairs), default=0.0), max((one for _, one in pairs), default=0.0)


def _of_pair(one: Any, other: Any) -> tuple[float, float]:
    if one.dtype == other.dtype and sys.modules["torch"].equal(one, other):
        return 0.0, 0.0
    stride = max(one.numel() // MOST_ELEMENTS, 1)
    first, second = (tensor.reshape(-1)[::stride].double() for tensor in (one, other))
    finite = first.isfinite() | second.isfinite()
    first, second = first[finite], second[finite]
    spread = float(first.std()) if first.numel() > 1 else 0.0
    scale = spread or float(first.abs().mean()) or 1.0
    apart = (first - second).abs()
    told = (float(apart.max()) / scale, float(apart.mean()) / scale) if apart.numel() else (0.0, 0.0)
    largest, typical = (value if math.isfinite(value) and value < MOST else MOST for value in told)
    return max(largest, sys.float_info.min), typical
