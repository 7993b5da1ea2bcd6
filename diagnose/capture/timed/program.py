"""The process that times ops: what to time as JSON on standard input, a line of JSON for each that is done.

So what was measured is there whenever it is ended. It runs no code of the user's.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct

from diagnose.capture.timed import MARK, calls
from diagnose.capture.timed.calls import Call, CannotTime, Tensor, filled

LONG_NS, FEWEST, MOST = 60_000_000, 5, 200  # How long both are called, and how often at least and at most (chosen).
STEADY, LONGER = 0.1, 4  # Where the quickest runs differ by more, they run up to so many times as long (chosen).
WARM_NS = 20_000_000
FLUSHED_BYTES = 256 << 20  # Written before each repetition on a GPU: more than any L2 cache holds.

# Written out: matmul, softmax, matmul. It takes queries, keys and values of shape (batch times heads, n, size).
ATTENTION = "attention"
OPTIMIZER = re.compile(r"torch\.optim\.(Adadelta|Adagrad|Adam|AdamW|Adamax|ASGD|NAdam|RAdam|RMSprop|Rprop|SGD)")
SETTINGS = frozenset({"foreach", "momentum", "weight_decay"})  # What is passed on to optimizers.
_BACKWARD_OF_ATTENTION = re.compile(r"aten::_scaled_dot_product_(flash|efficient|cudnn)_attention(_for_cpu)?_backward")
_BACKENDS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


def main() -> None:
    """Time what standard input asks for, in its order."""
    asked = json.load(sys.stdin)
    _harmless(float(asked["seconds"]))
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    if asked["threads"]:
        torch.set_num_threads(asked["threads"])
    device = torch.device(asked["device"])
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    say({"device": torch.cuda.get_device_name() if on_gpu else "", "torch": torch.__version__})
    if device.type == "cuda" and not on_gpu:
        return
    for index, one in enumerate(asked["ops"]):
        for change in one["changes"]:
            try:
                said = compared(device, one, change, Flags(**asked["flags"]))
            except CannotTime as error:
                said = {"why": str(error)}
            except Exception as error:
                said = {"why": f"{type(error).__name__}: {calls.first_line(error)}"}
            say({"index": index, "change": change, **said})


def _harmless(seconds: float) -> None:
    """Have the system end this process after so many seconds, and first where memory runs out."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def say(line: dict[str, object]) -> None:
    """A line of JSON, at once."""
    print(MARK + json.dumps(line), flush=True)


class Flags(Struct, frozen=True):
    """What libraries of a GPU may do, as torch.backends has it."""

    matmul_tf32: bool
    cudnn_tf32: bool
    benchmark: bool
    deterministic: bool

    def after(self, words: list[str]) -> Flags:
        """The flags after a change, by its words."""
        tf32, benchmark = "tf32" in words, self.benchmark or "searched" in words
        return Flags(self.matmul_tf32 or tf32, self.cudnn_tf32 or tf32, benchmark, self.deterministic)

    def set(self) -> None:
        """Set them in torch, from now on."""
        torch.backends.cuda.matmul.allow_tf32 = self.matmul_tf32
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.backends.cudnn.benchmark = self.benchmark
        torch.backends.cudnn.deterministic = self.deterministic


def compared(device: torch.device, one: dict[str, str], change: str, flags: Flags) -> dict[str, object]:
    """The shortest time of an op as it is and after a change, in ns: whatever else a machine does makes it longer.
    Both are called in turn, so that clocks and neighbours are the same. Raises CannotTime."""
    words, before, after = change.split("+"), list[float](), list[float]()
    sides = []
    for changed, holds, times in ((list[str](), flags, before), (words, flags.after(words), after)):
        holds.set()
        sides.append((holds, times, timer(device, call_of(device, one, changed))))
    begin = time.perf_counter_ns()
    while not _enough(before, after, time.perf_counter_ns() - begin):
        for holds, times, clock in sides:
            holds.set()
            times.append(clock())
    spread = max(_spread(before), _spread(after))
    return {"before_ns": min(before), "after_ns": min(after), "spread": spread, "runs": len(after)}


def _enough(before: list[float], after: list[float], spent_ns: int) -> bool:
    """Whether to stop: after LONG_NS or MOST runs if the quickest agree, else after LONGER times LONG_NS."""
    if len(after) < FEWEST or (len(after) < MOST and spent_ns < LONG_NS):
        return False
    return spent_ns >= LONGER * LONG_NS or max(_spread(before), _spread(after)) <= STEADY


def _spread(took: list[float]) -> float:
    """By which share the slowest of the quickest quarter of the runs differs from the quickest."""
    return (sorted(took)[len(took) // 4] - min(took)) / max(min(took), 1.0)


def timer(device: torch.device, call: Call) -> Callable[[], float]:
    """A function that runs a call once and returns its ns: of the GPU's work alone, by events, with a cold L2 cache; on
    the CPU by the clock. The call is warmed up here."""
    cache = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=device) if device.type == "cuda" else None
    flushes = 1

    def once() -> float:
        if cache is None:
            began = time.perf_counter_ns()
            call()
            return float(time.perf_counter_ns() - began)
        for _ in range(flushes):
            cache.zero_()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last) * 1e6)

    begin, called = time.perf_counter_ns(), 0
    while not called or time.perf_counter_ns() - begin < WARM_NS:
        call()
        called += 1
    if cache is not None:
        # The GPU is kept at flushing until the host has launched the whole call: what counts is its work alone.
        host_ns = (time.perf_counter_ns() - begin) / called
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        cache.zero_()
        torch.cuda.synchronize()
        flushes = min(int(2 * host_ns / (time.perf_counter_ns() - began)) + 1, MOST)
    return once


def call_of(device: torch.device, one: dict[str, str], words: list[str]) -> Call:
    """The call that an op's spec and the words of a change stand for, with inputs as recorded. Raises CannotTime."""
    if OPTIMIZER.fullmatch(one["op"]):
        return updating(device, one, words)
    given = [calls.narrowed(some, words) for some in calls.inputs(one)]
    if one["op"].startswith(ATTENTION):
        return written_out(device, one, words, given)
    if _BACKWARD_OF_ATTENTION.fullmatch(one["op"]):
        return backward_of_attention(device, one, words, given)
    if "padded" in words:
        given = calls.padded(given)
    return calls.bound(device, one["op"], given)


def updating(device: torch.device, one: dict[str, str], words: list[str]) -> Call:
    """A step of an optimizer over parameters of these sizes. Raises CannotTime."""
    given = [some for value in calls.inputs(one) for some in (value if isinstance(value, list) else [value])]
    settings = json.loads(one["scalars"] or "{}")
    if not all(isinstance(some, Tensor) and some.dtype.is_floating_point for some in given):
        raise CannotTime("its parameters were not recorded")
    if not isinstance(settings, dict) or settings.keys() - SETTINGS:
        raise CannotTime("its settings are not known")
    for word in ("fused", "foreach"):
        if word in words:
            settings = {**settings, "foreach": None, word: True}
    # A parameter, its gradient, two states, and one to work in.
    calls.ask(device, 5 * sum(some.bytes for some in given) // calls.WORKSPACE)
    parameters = [filled(device, some, 0, signs=False).requires_grad_(True) for some in given]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    form = getattr(torch.optim, one["op"].rpartition(".")[2])
    step: Call = form(parameters, lr=1e-6, **settings).step
    return step


def written_out(device: torch.device, one: dict[str, str], words: list[str], given: list[Any]) -> Call:
    """A call of attention as matmul, softmax and matmul, or as the fused op if `words` has "fused"; for another op than
    ATTENTION, of its backward pass alone. Raises CannotTime."""
    if [len(some.shape) for some in given if isinstance(some, Tensor)] != [3, 3, 3] or len(given) != 3:
        raise CannotTime("its queries, keys and values were not recorded")
    (batch, queries, size), keys = given[0].shape, given[1].shape[1]
    # Scores, softmax and its gradient, besides what goes in and comes out.
    calls.ask(device, 2 * calls.sizes(given) + 3 * batch * queries * keys * int(given[0].dtype.itemsize))

    def attention(q: Any, k: Any, v: Any) -> Any:
        if "fused" in words:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return torch.softmax((q @ k.transpose(-2, -1)) * size**-0.5, -1) @ v

    some = [filled(device, one, 0, signs=False)[None] for one in given]
    if one["op"] == ATTENTION:
        return lambda: attention(*some)
    return _gradients(attention, some)


def backward_of_attention(device: torch.device, one: dict[str, str], words: list[str], given: list[Any]) -> Call:
    """The fused op's backward, by the op that it comes after: what that keeps is not recorded. Raises CannotTime."""
    overload = next(calls.overloads(one["op"], len(given)), None)
    if overload is None:
        raise CannotTime("torch has no such op")
    recorded = calls.fitted(overload, given)
    mask = recorded.get("attn_mask") or recorded.get("attn_bias")
    how = {"dropout_p": recorded["dropout_p"], "is_causal": recorded["is_causal"], "scale": recorded.get("scale")}
    some = [recorded[name] for name in ("query", "key", "value")]
    calls.ask(device, 4 * calls.sizes(some))
    tensors = [filled(device, tensor, 0, signs=False) for tensor in some]
    masking = None if mask is None else filled(device, mask, 0, signs=False)
    fused = torch.nn.functional.scaled_dot_product_attention
    backend = one["op"].removeprefix("aten::_scaled_dot_product_").partition("_")[0]
    chosen = torch.nn.attention.SDPBackend.__members__[_BACKENDS[backend]]
    # What is computed in another type may come to another backend.
    held = nullcontext() if words or device.type == "cpu" else torch.nn.attention.sdpa_kernel(chosen)
    with held:
        return _gradients(lambda *qkv: fused(*qkv, attn_mask=masking, **how), tensors)


def _gradients(form: Callable[..., Any], some: list[Any]) -> Call:
    """A call that computes the gradients of `form(*some)` by its inputs; the forward pass has run before."""
    with torch.enable_grad():
        leaves = [one.detach().requires_grad_(True) for one in some]
        out = form(*leaves)
    gradient = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)
