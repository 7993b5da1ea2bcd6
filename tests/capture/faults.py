"""What the agent asks of torch's CUDA, profiler and internals, by its syntax trees; and a stand-in that has a GPU.

One call can be broken, for the agent alone: torch's own calls go through. The training calls `install` itself.
"""

import ast
import functools
import inspect
import os
import sys
import time
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

AGENT = Path(__file__).parents[2] / "diagnose/capture/agent"
ROOTS = ("torch.cuda.", "torch.profiler.", "torch.autograd.", "torch._C.")
SAME = {"torch.autograd.profiler.record_function": "torch.profiler.record_function"}
BROKEN, ASKED = "BROKEN_CALL", "ASKED_CALLS"  # Variables: "call how", and the file that names what was asked.
HANG_S = 0.3


class _Chains(ast.NodeVisitor):
    """Attribute chains that begin at torch, through a file's own names for their beginnings."""

    def __init__(self, tree: ast.AST) -> None:
        self.names, self.found, self.called = {"torch": "torch"}, set[str](), set[str]()
        self.visit(tree)

    def chain(self, node: ast.AST) -> str | None:
        match node:
            case ast.Name(id):
                return self.names.get(id)
            case ast.Attribute(attr="torch") | ast.Subscript(slice=ast.Constant("torch")):
                return "torch"
            case ast.Attribute(value, name) | ast.Call(ast.Name("getattr"), [value, ast.Constant(name), *_]):
                return f"{base}.{name}" if (base := self.chain(value)) else None
        return None

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("torch"):
            self.names |= {one.name: f"{node.module}.{one.name}" for one in node.names}
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and (chain := self.chain(node.value)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            self.names |= {target.id: chain} if isinstance(target, ast.Name) else {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            self.called.add(node.func.attr)
        if chain := self.chain(node):
            self.found.add(chain)
        else:
            self.generic_visit(node)


def calls() -> set[str]:
    """All that the agent calls: functions, and of classes the methods of whose names it calls any."""
    files = [_Chains(ast.parse(path.read_text(encoding="utf-8"))) for path in AGENT.rglob("*.py")]
    methods = {"__init__", "__enter__", "__exit__"}.union(*(one.called for one in files)) - {"__new__"}
    found = set[str]()
    for name in {name for one in files for name in one.found if name.startswith(ROOTS)}:
        real = owner_of(name)[2]
        if inspect.isclass(real) and not issubclass(real, Enum):
            found |= {f"{SAME.get(name, name)}.{one}" for one in methods if hasattr(real, one)}
        elif callable(real):
            found.add(name)
    return found


def owner_of(name: str) -> tuple[Any, str, Any]:
    """Of a name in torch: what has it, its last part, and what it is; None where this torch has none."""
    *path, last = name.split(".")
    owner = functools.reduce(lambda one, part: getattr(one, part, None), path[1:], sys.modules["torch"])
    return owner, last, getattr(owner, last, None)


class Event:
    """Of a device that does at once what it is told."""

    def __init__(self, enable_timing: bool = False) -> None: ...

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def elapsed_time(self, other: "Event") -> float:
        return (other.at_s - self.at_s) * 1e3

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


class Range:
    """A `_RecordFunctionFast`, of which there can be no subclass."""

    def __init__(self, name: str) -> None:
        self._real = REAL_RANGE(name)

    def __enter__(self) -> None:
        self._real.__enter__()

    def __exit__(self, *error: object) -> None:
        self._real.__exit__(*error)


A_GPU = {
    **dict.fromkeys(("is_available", "is_initialized"), True),
    **dict.fromkeys(("is_current_stream_capturing", "reset_peak_memory_stats", "set_rng_state_all"), False),
    **dict.fromkeys(("synchronize", "nvtx.range_push", "nvtx.range_pop", "nvtx.range_end", "current_device"), 0),
    **dict.fromkeys(("device_count", "nvtx.range_start", "max_memory_allocated"), 1),
    **{"_get_nvml_device_index": 0, "nccl.version": (2, 27), "get_rng_state_all": [], "memory_stats": {}},
    "get_device_properties": SimpleNamespace(
        name="GPU X", total_memory=1 << 30, major=9, minor=0, multi_processor_count=132, uuid="GPU-0"
    ),
}
EMIT = "torch.autograd.profiler.emit_nvtx"
ANSWERS = {f"torch.cuda.{name}": answer for name, answer in A_GPU.items()} | {f"{EMIT}.__exit__": None}


def install() -> None:
    """Have the agent, and nothing else, find a GPU, and the call broken that a variable names."""
    global REAL_RANGE
    import torch.cuda.nvtx

    names, internals, zeros = calls(), torch._C._profiler, torch.zeros
    REAL_RANGE = internals._RecordFunctionFast
    torch.cuda.Event, internals._RecordFunctionFast = Event, Range
    internals._ExperimentalConfig = type("_ExperimentalConfig", (internals._ExperimentalConfig,), {})
    torch._C._nvtx = None
    torch.zeros = lambda *args, device=None, **more: zeros(*args, device=None if device == "cuda" else device, **more)
    broken, _, how = os.environ.get(BROKEN, "").partition(" ")
    for name in names:
        owner, last, real = owner_of(name)
        setattr(owner, last, _stand_in(name, real, how if name == broken else ""))
    for module in [one for name, one in sys.modules.items() if name.startswith("diagnose_agent.") and how == "hangs"]:
        vars(module).update({"MOST_S": HANG_S / 2} if hasattr(module, "MOST_S") else {})


def _stand_in(name: str, real: Any, how: str) -> Any:
    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not sys._getframe(1).f_globals["__name__"].startswith("diagnose_agent"):
            return real(*args, **kwargs)
        with Path(os.environ[ASKED]).open("a") as file:
            file.write(f"{name}\n")
        if how == "raises":
            raise RuntimeError("broken")
        if how == "hangs":
            time.sleep(HANG_S)
        if how == "nonsense" and not name.endswith("__"):
            return -1
        if "activities" in kwargs:
            kwargs["activities"] = [sys.modules["torch"].profiler.ProfilerActivity.CPU]
        if name == f"{EMIT}.__enter__":
            return args[0]
        return ANSWERS[name] if name in ANSWERS else real(*args, **kwargs)

    return call
