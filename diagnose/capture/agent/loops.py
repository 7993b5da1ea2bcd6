"""Which loop of the script runs now, from the stack of its main thread."""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_PLACES = ("stdlib", "platstdlib", "purelib", "platlib")
LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in _PLACES})
CALLS_OF_MODULES = "/torch/nn/modules/module.py"
LOOKS = 9  # Moments that are looked at, of which some are in other loops (our choice).

BETWEEN_S = 0.05
_HERE = Path(__file__).resolve().parent
OWN = (str(_HERE), *(str(_HERE.parents[1] / ours) for ours in ("fixes", "statistics.py")))
"""What we load into the script's process."""
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
"""Of whatever environment: one may use the libraries of another."""


def is_library(file: str) -> bool:
    """Whether a file, named with its whole path, is installed, Python's, or ours, rather than the user's own."""
    return file.startswith((*LIBRARIES, *OWN)) or _INSTALLED.search(file) is not None


OWNERS = {
    "transformers.trainer": "transformers",
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "deepspeed.runtime": "deepspeed",
    "lightning.fabric": "fabric",
    "lightning_fabric": "fabric",
    "accelerate.data_loader": "accelerate",
    "accelerate.optimizer": "accelerate",
}
"""Modules that run or wrap a training's loop -> `diagnose.fixes.setting.Loop`. Earlier ones may stand on later ones."""


def owner() -> str:
    """What owns the training loop in which this thread is."""
    frame: FrameType | None = sys._getframe(1)
    modules = set[str]()
    while frame is not None:
        modules.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    met = (known for known in OWNERS if any(f"{name}.".startswith(f"{known}.") for name in modules))
    return OWNERS.get(next(met, ""), "own")


def line_of(frame: FrameType) -> int:
    """The line that runs; from Python 3.11 on none is known at times: then the first of its function."""
    return frame.f_lineno or frame.f_code.co_firstlineno


class Loop(NamedTuple):
    """A loop in a file of the user's."""

    file: str
    line: int
    head: str  # Its first line as it stands, as in `for batch in batches:`.


def running() -> Loop | None:
    """The loop of the user's own files that the main thread is in, at most of some moments; None if there is none.

    It is the innermost one that calls the model, as that may have loops of its own.
    """
    seen = Counter[Loop]()
    for _ in range(LOOKS):
        if (found := _now()) is not None:
            seen[found] += 1
        time.sleep(BETWEEN_S)
    return seen.most_common(1)[0][0] if seen else None


def _now() -> Loop | None:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found: Loop | None = None
    while frame is not None:
        if frame.f_code.co_filename.endswith(CALLS_OF_MODULES):
            found = None
        found = found or _around(frame)
        frame = frame.f_back
    return found


def _around(frame: FrameType) -> Loop | None:
    path = Path(frame.f_code.co_filename)
    if not path.is_file() or is_library(str(path.resolve())):
        return None
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return None
    loops = [one for one in _of(frame, tree) if one.lineno <= line_of(frame) <= (one.end_lineno or 0)]
    if not loops:
        return None
    line = max(loop.lineno for loop in loops)
    return Loop(str(path), line, source.splitlines()[line - 1].strip())


def _of(frame: FrameType, tree: ast.Module) -> list[ast.For | ast.AsyncFor | ast.While]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    first, found = frame.f_code.co_firstlineno, list[ast.For | ast.AsyncFor | ast.While]()
    begins = {
        min([one.lineno, *(each.lineno for each in getattr(one, "decorator_list", []))]): one
        for one in ast.walk(tree)
        if isinstance(one, functions)
    }
    whole = frame.f_code.co_name == "<module>"
    pending: list[ast.AST] = [tree] if whole else [begins[first]] if first in begins else []
    while pending:
        one = pending.pop()
        if isinstance(one, (ast.For, ast.AsyncFor, ast.While)):
            found.append(one)
        pending += [each for each in ast.iter_child_nodes(one) if not isinstance(each, functions)]
    return found
