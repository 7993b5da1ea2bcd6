"""Limits as people write them: 50ms, 10%, step=50ms,idle=10%."""

from __future__ import annotations

import re

from diagnose.contracts.budget import Limits
from diagnose.trace.units import share_of

NAMES = ("step", "idle")
"""What can be limited."""

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def limits(step: str | None, idle: float | str | None) -> Limits:
    """Raises ValueError if none is set, or one cannot be read."""
    if step is None and idle is None:
        raise ValueError('Set a limit, for instance step="50ms" or idle=0.1.')
    return Limits(None if step is None else _duration_ns(step), None if idle is None else share_of(idle))


def named(text: str) -> dict[str, str]:
    """Limits by name, from `step=50ms,idle=10%`. Raises ValueError."""
    found = dict[str, str]()
    for part in text.split(","):
        name, is_set, value = (word.strip() for word in part.partition("="))
        if name not in NAMES or not is_set or name in found:
            raise ValueError(f"{text!r} is no budget such as step=50ms,idle=10%.")
        found[name] = value
    limits(found.get("step"), found.get("idle"))
    return found


def _duration_ns(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(ns|us|ms|s)", str(text).strip())
    if found is None:
        raise ValueError(f"{text!r} is no time such as 50ms, 800us or 1.2s.")
    return round(float(found[1]) * _UNITS_NS[found[2]])
