"""What a case is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from benchmarks.simulated.training import Training

Value = TypeVar("Value")

SIZES = ("small", "medium", "large")


@dataclass(frozen=True)
class Fault:
    """What is wrong with a training, and the rules whose advice mends it."""

    rules: tuple[str, ...]
    changes: Mapping[str, Any]
    """Fields of Training and their values; `loading.workers` is a field of a field."""


@dataclass(frozen=True)
class Case:
    """A training as it should be, at a size, and its faults; none if it is healthy."""

    name: str
    family: str
    build: Callable[[str], Training]
    faults: tuple[Fault, ...] = ()
    samples: int = 1
    """Batches of the faulty training that make one of the fixed one."""
    recorded: int = 5
    """Steps; a multiple of the period of what does not happen in every one."""

    def training(self, size: str, without: Fault | None = None) -> Training:
        """With its faults, but for one."""
        found = self.build(size)
        for fault in self.faults:
            if fault is not without:
                found = changed(found, fault.changes)
        return found


def changed(what: Value, changes: Mapping[str, Any]) -> Value:
    """A copy of a dataclass with other values; a dot leads to a field's field."""
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        new = changed(getattr(what, name), {rest: value}) if rest else value
        what = replace(what, **{name: new})  # type: ignore[type-var]
    return what
