"""What an arm of a trial measures beside its steps, and whether a setting changes numbers.

Neither trains: random states and buffers are put back as they were, and optimizers step copies.
"""

import copy
import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import backwards, injection, noticed, script_files
from .alone import alone, process_group, text_of, uses_gpu
from .backwards import Losses
from .recordings import free_bytes

PEAK = "the most memory of a block"  # Its name for `alone`.
ROUNDING = 1e-4  # Typical difference of outputs, over their spread, up to which it is rounding in float32 (chosen).
ROUNDING_OF_UPDATES = 1e-3  # The same of updates, which are the small difference of two parameters (chosen).
MOST_ELEMENTS = 1 << 24  # Of a tensor, evenly spaced, that are compared (chosen).
MOST = 1e9  # A larger difference, or one that is no number, is given as that: JSON has no infinity.
SHARE_OF_MEMORY = 0.5  # Of the free memory that copies of an optimizer may take (chosen).


class Arm:
    """What one process measures as an arm, from its start on."""

    def __init__(self) -> None:
        self._losses = Losses()
        backwards.listen(self._keep_losses)

    def _keep_losses(self, tensors: list[Any]) -> None:
        for tensor in tensors:
            if tensor.numel() == 1:
                self._losses.keep(tensor)

    def found(self) -> dict[str, object]:
        """The fields of `Arm` in the manifest. Waits for the device."""
        return {
            **injection.found(),
            "losses": self._losses.found(),
            "peak_bytes": alone("the most memory", _device_peak if uses_gpu() else _own_peak),
            "reread": script_files.reread(),
        }


def _device_peak() -> int:
    """Most bytes that tensors had on GPUs since the last reset, summed over GPUs."""
    torch = sys.modules["torch"]
    return sum(int(torch.cuda.max_memory_allocated(index)) for index in range(torch.cuda.device_count()))


def _own_peak() -> int | None:
    """Most resident bytes of this process, without its workers; None where the system does not say.
    Not of getrusage: that also holds what the process had before it became this program."""
    lines = text_of(Path("/proc/self/status")).splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


class Peak:
    """Most memory from now on: of tensors on GPUs where there are any, else of the process."""

    def __init__(self) -> None:
        """Reset the peak, of the GPU's memory if the process uses one, else of the process's resident memory."""
        self._gpu, self._known = uses_gpu(), True
        if self._gpu:
            alone(PEAK, self._reset)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc(5): resets VmHWM.
        except OSError:
            self._known = False

    def _reset(self) -> None:
        torch = sys.modules["torch"]
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)

    def found(self) -> int | None:
        """In bytes; None where the system does not say, or the peak could not be reset."""
        if self._gpu:
            return alone(PEAK, _device_peak)
        return _own_peak() if self._known else None


@dataclass(frozen=True)
class Difference:
    """How far two results that should be the same differ, in standard deviations of the first."""

    largest: float
    typical: float  # Mean absolute difference.
    kind: str  # "same" bits, "rounding", "differ", or "not_deterministic": they differ as much without any change.


class Called:
    """Notes each module that is called anywhere in the process while gradients are taken, until `largest` is asked."""

    def __init__(self) -> None:
        register = sys.modules["torch"].nn.modules.module.register_module_forward_pre_hook
        self._called: dict[int, Any] = {}
        self._handle = register(self._calls)

    def _calls(self, module: Any, _args: Any) -> None:
        if sys.modules["torch"].is_grad_enabled():
            self._called[id(module)] = module

    def largest(self) -> Any:
        """The module with most parameters, and the end of noting; None if none was called, or none with parameters."""
        self._handle.remove()
        found = noticed.largest_of(self._called.values())
        self._called.clear()
        return found


class SameBatch:
    """Compares a model's outputs, with and without a setting, on the last batch that it was trained on."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._given: tuple[Any, Any] | None = None  # Arguments of the last call with gradients.
        self._handle = model.register_forward_pre_hook(self._keep, with_kwargs=True)
        self._as_it_trains = True  # Else in evaluation mode.
        self._own = 0.0  # Typical difference of two outputs of the model as it is.

    def _keep(self, _module: Any, args: Any, kwargs: Any) -> None:
        torch = sys.modules["torch"]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._given = args, kwargs

    def close(self) -> bool:
        """Keep the last batch, and run the model on it. False if there was none, or the model raises."""
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
        """How outputs differ without and with a setting, off before and after. Raises what the model raises with it."""
        without = self._output()
        turn(True)
        try:
            changed = self._output()
        finally:
            turn(False)
        return _difference(without, changed, ROUNDING, self._own)

    def _output(self, seed: bool = False) -> list[Any]:
        """The model's floating-point outputs on the kept batch, copied. `seed`: with another random seed."""
        torch = sys.modules["torch"]
        assert self._given is not None
        args, kwargs = self._given
        grad = process_group() is None  # Else ranks would wait for each other's gradients.
        with _unchanged(self._model, training=self._as_it_trains), torch.set_grad_enabled(grad):
            if seed:
                torch.manual_seed(torch.initial_seed() + 1)
            outputs = torch.utils._pytree.tree_leaves(self._model(*args, **kwargs))
            return [one.detach().clone() for one in outputs if torch.is_tensor(one) and one.is_floating_point()]


def update_compared(optimizers: Sequence[Any], turn: Callable[[Any, bool], None]) -> Difference | None:
    """How an optimizer's step differs without and with a setting, which copies make: of the one that differs most. None
    if memory is short, or without gradients. Raises what the step raises with the setting.
    """
    found = list[Difference]()
    for optimizer in optimizers:
        weights = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        if not weights or not _fits(optimizer, weights):
            continue
        try:
            without = _updates(optimizer, weights, None)
        except Exception:  # A step that copies do not make, whatever it raises.
            continue
        found.append(_difference(without, _updates(optimizer, weights, turn), ROUNDING_OF_UPDATES, 0.0))
    return max(found, key=lambda one: one.typical, default=None)


def _updates(optimizer: Any, weights: Sequence[Any], turn: Callable[[Any, bool], None] | None) -> list[Any]:
    """What a step of a copy of the optimizer adds to each weight, after `turn(copy, True)` unless that is None."""
    torch = sys.modules["torch"]
    copied = object.__new__(type(optimizer))
    copied.__dict__ = {**optimizer.__dict__, "param_groups": [], "state": copy.copy(optimizer.state)}
    copied.state.clear()
    copies = {}
    for group in optimizer.param_groups:
        copied.param_groups.append({**group, "params": []})
        for weight in group["params"]:
            copy_of = copies[id(weight)] = weight.detach().clone().requires_grad_(weight.requires_grad)
            copy_of.grad = None if weight.grad is None else weight.grad.detach().clone()
            copied.param_groups[-1]["params"].append(copy_of)
            if weight in optimizer.state:
                copied.state[copy_of] = {
                    name: value.detach().clone() if torch.is_tensor(value) else copy.deepcopy(value)
                    for name, value in optimizer.state[weight].items()
                }
    if turn is not None:
        turn(copied, True)
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(copied)
    return [copies[id(weight)].detach() - weight.detach() for weight in weights]


def _fits(optimizer: Any, weights: Sequence[Any]) -> bool:
    """Whether two copies of weights, gradients and the optimizer's states fit SHARE_OF_MEMORY of what is free."""
    torch = sys.modules["torch"]
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    needed = 2 * sum(one.numel() * one.element_size() for one in [*weights, *weights, *kept])
    on_gpu = weights[0].device.type == "cuda"
    free = torch.cuda.mem_get_info(weights[0].device)[0] if on_gpu else free_bytes()
    return bool(needed < SHARE_OF_MEMORY * free)


@contextmanager
def _unchanged(model: Any, training: bool) -> Iterator[None]:
    """Inside of it, the model may run: random states, buffers and modes are restored. Not `training`: in evaluation."""
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


def _difference(without: Sequence[Any], changed: Sequence[Any], rounding: float, own: float) -> Difference:
    """How much results differ, and whether by rounding, by no more than repeats do (`own`), or for real."""
    largest, typical = _apart(without, changed)
    if typical > rounding:
        return Difference(largest, typical, "not_deterministic" if typical <= own else "differ")
    return Difference(largest, typical, "rounding" if largest else "same")


def _apart(firsts: Sequence[Any], others: Sequence[Any]) -> tuple[float, float]:
    """The largest and the typical difference of any pair of tensors; 0 for equal bits, MOST for other shapes."""
    if len(firsts) != len(others) or any(one.shape != other.shape for one, other in zip(firsts, others, strict=False)):
        return MOST, MOST
    differences = [_pair_difference(one, other) for one, other in zip(firsts, others, strict=True)]
    return max((one for one, _ in differences), default=0.0), max((one for _, one in differences), default=0.0)


def _pair_difference(one: Any, other: Any) -> tuple[float, float]:
    """The largest and the mean difference of two tensors, in standard deviations of the first; 0 for equal bits."""
    if one.dtype == other.dtype and sys.modules["torch"].equal(one, other):
        return 0.0, 0.0
    stride = max(one.numel() // MOST_ELEMENTS, 1)
    first, second = (tensor.reshape(-1)[::stride].double() for tensor in (one, other))
    finite = first.isfinite() | second.isfinite()
    first, second = first[finite], second[finite]
    spread = float(first.std()) if first.numel() > 1 else 0.0
    scale = spread or float(first.abs().mean()) or 1.0
    apart = (first - second).abs()
    differences = (float(apart.max()) / scale, float(apart.mean()) / scale) if apart.numel() else (0.0, 0.0)
    largest, typical = (value if math.isfinite(value) and value < MOST else MOST for value in differences)
    return max(largest, sys.float_info.min), typical
