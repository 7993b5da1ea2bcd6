"""Not to run within what torch.compile makes of the script."""

from __future__ import annotations

from collections.abc import Callable
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
