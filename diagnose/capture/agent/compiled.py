"""What torch.compile makes of the script: not to run within it, and why compiled code did not fit."""

import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .alone import alone


def compiler_switch() -> Callable[[Any], Any]:
    """A function that sets what compiles frames that are entered from now on, and returns what did so before.

    Where torch.compile gives up on a function it still compiles what that calls: us as well, which takes seconds; and a
    profiler that starts in there crashes the process at random (torch 2.13). So within it nothing of ours may run, and
    to find that out no function of ours may be called: use this where the script's own frame has called us.
    """
    import torch

    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    switch: Callable[[Any], Any] = getattr(frames, "set_eval_frame", lambda compiler: None)
    return alone("what torch.compile compiles", _tried, switch, default=lambda compiler: None)


def _tried(switch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    switch(switch(None))
    return switch


MOST_GUARDS = 8  # That are told, those first by which the most compiled forms failed (our choice).
LONGEST_GUARD = 200  # characters

_REASON = re.compile(r"(?P<form>\d+/\d+): (?P<said>[^\n]*)(?P<rest>.*)", re.DOTALL)
_COMMENT = re.compile(r"\s{2,}#.*|\s*\(HINT:.*")
_TENSOR = re.compile(r"tensor '(?P<source>.+?)' ")
_LINE = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>\S+)')
_SIZE = re.compile(r"(size|stride) mismatch|\.(size|stride)\(\)")


def failed() -> list[dict[str, object]]:
    """As `FailedGuard` of the manifest; nothing where torch.compile was not used, or keeps none."""
    utils = sys.modules.get("torch._dynamo.utils")
    failures = getattr(utils, "guard_failures", {})
    found = [one for code, reasons in list(failures.items()) for one in of_function(code, map(str, list(reasons)))]
    return sorted(found, key=lambda one: -int(str(one["forms"])))[:MOST_GUARDS]


def of_function(code: Any, reasons: Iterable[str]) -> list[dict[str, object]]:
    """The guards of one function, each with how many of its compiled forms failed by it, as torch 2.13 says it.

    `0/3: self.calls == 3   # self.calls += 1  # train.py:5 in forward`, then the user's stack; of a tensor
    `0/0: tensor 'x' size mismatch at index 0. expected 2, actual 3`.
    """
    forms: dict[tuple[str, bool], dict[str, re.Match[str]]] = {}
    for reason in reasons:
        if parts := _REASON.match(reason):
            said = _COMMENT.sub("", parts["said"])
            tensor = _TENSOR.match(said)
            source = tensor["source"] if tensor else said.partition(" == ")[0]
            forms.setdefault((source, bool(_SIZE.search(said))), {})[parts["form"]] = parts
    return [_guard(code, source, is_size, parts) for (source, is_size), parts in forms.items()]


def _guard(code: Any, source: str, is_size: bool, parts: dict[str, re.Match[str]]) -> dict[str, object]:
    one = list(parts.values())[-1]
    lines = _LINE.findall(one["rest"])
    file, line, function = lines[-1] if lines else (code.co_filename, code.co_firstlineno, code.co_name)
    return {
        "source": source[:LONGEST_GUARD],
        "said": _COMMENT.sub("", one["said"])[:LONGEST_GUARD],
        "is_size": is_size,
        "forms": len(parts),
        "file": _short(file),
        "line": int(line),
        "function": function,
    }


def _short(file: str) -> str:
    folders = sorted((f"{one.rstrip(os.sep)}{os.sep}" for one in sys.path if one), key=len, reverse=True)
    return file.removeprefix(next((folder for folder in folders if file.startswith(folder)), ""))
