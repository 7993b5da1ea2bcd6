"""Fixes of the whole process: settings of torch and of Python."""

from __future__ import annotations

import functools
import gc
import sys
from types import ModuleType
from typing import Any

from .. import made
from ..imports import when_imported
from .fixes import Injection, no_gpu


def search_for_kernels(injection: Injection) -> None:
    """Have cuDNN or MIOpen measure its kernels."""

    def act(module: Any) -> None:
        cudnn = module.backends.cudnn
        cudnn.benchmark = True
        injection.note_everywhere("torch.backends.cudnn.benchmark is on from the start")
        injection.check = lambda: no_gpu(module) or ("" if cudnn.is_available() else "PyTorch has no cuDNN here")

    when_imported("torch", act)


def flush_subnormals(injection: Injection) -> None:
    """Before torch starts its threads: each takes over what the first has."""

    def act(module: Any) -> None:
        if module.set_flush_denormal(injection.trial.value):
            injection.note_everywhere("the CPU takes subnormal numbers for zero from the start")
        else:
            injection.refuse("this CPU cannot take subnormal numbers for zero")

    when_imported("torch", act)


def set_threads(injection: Injection) -> None:
    """At once, and wherever the script sets another number. What torch sets in its workers stays."""

    def act(module: ModuleType) -> None:
        original, wanted, before = module.set_num_threads, injection.trial.value, module.get_num_threads()

        @functools.wraps(original)
        def set_num_threads(threads: int) -> None:
            own = made.is_users(sys._getframe(1).f_code.co_filename)
            if own and threads != wanted:
                injection.note("torch.set_num_threads", f"{threads} -> {wanted}")
            original(wanted if own else threads)

        module.set_num_threads = set_num_threads  # type: ignore[attr-defined]
        if before != wanted:
            original(wanted)
            injection.note_everywhere(f"torch computes with {wanted} threads from the start, not with {before}")
        else:
            injection.refuse(f"torch computes with {wanted} threads already")

    when_imported("torch", act)


def collect_by_hand(injection: Injection) -> None:
    """After the first step of an optimizer: leave out of collections what is there, and collect in few steps only."""
    every, steps = injection.trial.value, 0

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal steps
        if steps == 0:
            gc.collect()
            gc.freeze()
            gc.disable()
            injection.note_everywhere(f"gc.freeze() after the first step, then gc.collect(1) every {every} steps")
            injection.check = lambda: "the script switches automatic collection on" if gc.isenabled() else ""
        elif steps % every == 0:
            gc.collect(1)
        steps += 1

    def act(module: Any) -> None:
        module.register_optimizer_step_post_hook(stepped)

    injection.refuse("no optimizer of torch.optim stepped")
    when_imported("torch.optim.optimizer", act)
