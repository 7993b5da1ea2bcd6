"""Times ops as they were recorded and after a change: run by the Python of the training, as a program of its own.

Reads what to time as JSON from standard input, and prints a line of JSON for each that is done, so that what was
measured is there whenever it is ended. It needs torch and nothing else, and runs no code of the user's.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

MARK = "diagnose-timed:"
"""Begins the lines that are ours: importing torch may print others."""

LONG_NS, FEWEST, MOST = 60_000_000, 5, 200
"""Both together are called for so long, and each at least, and at most, so often (our choice)."""
WARM_NS = 20_000_000
FLUSHED_BYTES = 256 << 20
"""Written before each repetition on a GPU: more than any L2 cache holds."""
LONGEST = 120
"""Characters of an error."""
ALIGNED, ROUND = 8, 64
"""Sizes that are no multiple of the first are rounded up to one of the second."""

_FLOATING = {"double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
_OTHER = {
    **{"long int": "int64", "int": "int32", "short int": "int16", "bool": "bool"},
    **{"unsigned char": "uint8", "signed char": "int8"},
}
_AFTER = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_SCALARS: dict[str, object] = {"alpha": 1, "beta": 1, "dim": -1, "eps": 1e-5, "keepdim": False, "half_to_float": False}
"""Arguments whose value changes little of what an op takes; of others it is not known."""


class CannotTime(Exception):
    """Why an op is not timed, in a few words."""


def main() -> None:
    """Time what standard input asks for, in its order."""
    asked = json.load(sys.stdin)
    import torch

    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    if asked["threads"]:
        torch.set_num_threads(asked["threads"])
    torch.backends.cuda.matmul.allow_tf32 = bool(asked["tf32"])
    device = torch.device(asked["device"])
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    say({"device": torch.cuda.get_device_name() if on_gpu else "", "torch": torch.__version__})
    if device.type == "cuda" and not on_gpu:
        return
    for index, one in enumerate(asked["ops"]):
        for change in one["changes"]:
            try:
                said = compared(torch, device, one, change)
            except CannotTime as error:
                said = {"why": str(error)}
            except Exception as error:
                said = {"why": f"{type(error).__name__}: {first_line(error)}"}
            say({"index": index, "change": change, **said})


def first_line(error: Exception) -> str:
    """What an error says, in few characters."""
    return (str(error).strip() or "no reason given").splitlines()[0][:LONGEST]


def say(line: dict[str, object]) -> None:
    """A line of JSON, at once."""
    print(MARK + json.dumps(line), flush=True)


def compared(torch: Any, device: Any, one: dict[str, str], change: str) -> dict[str, object]:
    """What an op takes at least, as it is and after a change: whatever else a machine does makes it longer.

    Both are called in turn, so that clocks and neighbours are the same. Raises CannotTime.
    """
    calls = [bound(torch, device, one, which) for which in ("", change)]
    tf32 = bool(torch.backends.cuda.matmul.allow_tf32)
    allowed = [tf32, tf32 or "tf32" in change.split("+")]
    once = [timer(torch, device, call) for call in calls]
    took: list[list[float]] = [[], []]
    begin, spent = time.perf_counter_ns(), 0
    try:
        while len(took[1]) < FEWEST or (len(took[1]) < MOST and spent < LONG_NS):
            for which in (0, 1):
                torch.backends.cuda.matmul.allow_tf32 = allowed[which]
                took[which].append(once[which]())
            spent = time.perf_counter_ns() - begin
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32
    before, after = took
    spread = max(_spread(before), _spread(after))
    return {"before_ns": min(before), "after_ns": min(after), "spread": spread, "runs": len(after)}


def _spread(took: list[float]) -> float:
    """By which share the quicker half of the runs differ."""
    return (statistics.median(took) - min(took)) / max(min(took), 1.0)


def timer(torch: Any, device: Any, call: Callable[[], object]) -> Callable[[], float]:
    """Takes the time of a call in ns, by events on a GPU, by the clock on the CPU; the call is warm."""
    on_gpu = device.type == "cuda"
    cache = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=device) if on_gpu else None

    def once() -> float:
        if cache is None:
            began = time.perf_counter_ns()
            call()
            return float(time.perf_counter_ns() - began)
        cache.zero_()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last) * 1e6)

    begin = time.perf_counter_ns()
    call()
    while time.perf_counter_ns() - begin < WARM_NS:
        call()
    return once


def bound(torch: Any, device: Any, one: dict[str, str], change: str) -> Callable[[], object]:
    """A call of the op with inputs as recorded, after a change. Raises CannotTime."""
    shapes, dtypes = json.loads(one["shapes"]), json.loads(one["dtypes"])
    strides = json.loads(one["strides"]) if one["strides"] else []
    after = [_AFTER[word] for word in change.split("+") if word in _AFTER]
    if "padded" in change.split("+"):
        shapes, strides = padded(shapes), []
    room = free_bytes(torch, device) // 2
    needed = 3 * 8 * sum(_elements(shape) for shape in shapes)
    if needed > room:
        raise CannotTime(f"it needs {needed / 1e9:.1f} GB, and {room / 1e9:.1f} GB may be taken")
    given = [
        tensors(torch, device, shape, dtype or "", step or [], after)
        for shape, dtype, step in zip_longest(shapes, dtypes[: len(shapes)], strides[: len(shapes)])
    ]
    whys = list[str]()
    for overload in overloads(torch, one["op"]):
        try:
            arguments = fitted(overload, given)
            overload(**arguments)
        except CannotTime as error:
            whys.append(str(error))
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as error:
            whys.append(first_line(error))
        else:
            return partial(overload, **arguments)
    raise CannotTime(whys[0] if whys else "torch has no such op")


def _elements(shape: Any) -> int:
    if not isinstance(shape, list) or not shape:
        return 1
    if isinstance(shape[0], list):
        return sum(map(_elements, shape))
    many = 1
    for size in shape:
        many *= size
    return many


def free_bytes(torch: Any, device: Any) -> int:
    """Memory that is free now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kb = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 2 << 30
    return kb * 1024


def padded(shapes: list[Any]) -> list[Any]:
    """Shapes of a product whose inner sizes are rounded up; the number of rows stays, unless it is one of these."""
    matrices = [shape for shape in shapes if isinstance(shape, list) and len(shape) >= 2 and isinstance(shape[0], int)]
    if len(matrices) < 2:
        raise CannotTime("it is no product of two matrices")
    inner = {size for size in (*matrices[-2][-1:], *matrices[-1][-2:]) if size % ALIGNED}
    return [
        [-(-size // ROUND) * ROUND if size in inner else size for size in shape] if isinstance(shape, list) else shape
        for shape in shapes
    ]


def tensors(torch: Any, device: Any, shape: Any, dtype: str, strides: Any, after: list[str]) -> Any:
    """What an input was: a tensor, a list of tensors, or None for what is none."""
    if isinstance(shape, list) and shape and isinstance(shape[0], list):
        return [tensors(torch, device, one, "float", [], after) for one in shape]
    if dtype in _FLOATING:
        made = torch.randn(shape, device=device).to(getattr(torch, _FLOATING[dtype]))
        made = made.to(getattr(torch, after[-1])) if after else made
    elif dtype in _OTHER:
        made = torch.zeros(shape, dtype=getattr(torch, _OTHER[dtype]), device=device)
    else:
        return None
    if len(strides) == len(shape) and any(strides) and list(made.stride()) != strides:
        last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1
        if min(strides) >= 0 and 0 < last <= 4 * max(made.numel(), 1):
            return torch.empty_strided(shape, strides, dtype=made.dtype, device=device).copy_(made)
    return made


def overloads(torch: Any, op: str) -> Iterator[Any]:
    """The overloads of an op, such as aten::add.Tensor."""
    space, _, name = op.partition("::")
    packet = getattr(getattr(torch.ops, space, None), name, None) if space == "aten" and name.isidentifier() else None
    for overload in packet.overloads() if packet is not None else ():
        if not overload.endswith("out") and "out" not in overload.split("_"):
            yield getattr(packet, overload)


def fitted(overload: Any, given: list[Any]) -> dict[str, Any]:
    """The arguments of an overload by what was recorded, in its order. Raises CannotTime where one is not known."""
    recorded = [*given, *[None] * len(overload._schema.arguments)]
    found = dict[str, Any]()
    for argument, value, later in zip(overload._schema.arguments, recorded, range(1, len(recorded)), strict=False):
        kind = str(argument.type)
        if "Tensor" in kind:
            if (value is None and "Optional" not in kind) or (isinstance(value, list) and "List" not in kind):
                raise CannotTime(f"its {argument.name} was not recorded")
            found[argument.name] = value
        else:
            found[argument.name] = _number(argument, kind, value, given[later:])
    return found


def _number(argument: Any, kind: str, value: Any, behind: list[Any]) -> Any:
    """What is no tensor: some usual value, as none is recorded."""
    if value is not None and value.dim():
        raise CannotTime(f"its {argument.name} is a tensor")
    if value is not None and kind in ("number", "float"):
        return 1.0
    if argument.has_default_value():
        return argument.default_value
    weight = next((one for one in behind if one is not None), None)
    if argument.name == "normalized_shape" and weight is not None:
        return list(weight.shape)
    if argument.name not in _SCALARS:
        raise CannotTime(f"its {argument.name} was not recorded")
    return _SCALARS[argument.name]


if __name__ == "__main__":
    main()
