"""OpenMetrics text: families of series, each made of one value.

There are no timestamps, as a figure counts from when it is collected. What is unknown is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from diagnose import failures
from diagnose.failures import attempt
from diagnose.trace.units import clipped

Of = TypeVar("Of")

PREFIX = "diagnose_"

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

MOST_LABEL = 200
"""Characters of a label's value."""

_UNITS = ("seconds", "bytes", "ratio", "hertz", "celsius", "watts")

Number: TypeAlias = int | float | None


@dataclass(frozen=True)
class Distribution:
    """How many values there are up to each limit, of a histogram."""

    upto: tuple[tuple[float, int], ...]
    """Limits, in order, and counts of what does not exceed them."""
    count: int
    sum: float


Sample: TypeAlias = tuple[dict[str, object], Number | Distribution]
"""Labels, in order, and a value; None is unknown."""


@dataclass(frozen=True)
class Family(Generic[Of]):
    """Series of one name."""

    name: str
    """Without PREFIX; ends in its unit, if it has one. The series of a counter add `_total`."""
    labels: tuple[str, ...]
    """That its series may have."""
    meaning: str
    samples: Callable[[Of], Iterable[Sample]]
    kind: Literal["gauge", "counter", "histogram"] = "gauge"

    @property
    def unit(self) -> str:
        """One of _UNITS, or ""."""
        last = self.name.rpartition("_")[2]
        return last if last in _UNITS else ""


def text(families: Sequence[Family[Of]], value: Of) -> str:
    """All that is known, ending in `# EOF`."""
    with failures.collected() as lost:
        lines = [line for family in families for line in attempt(family.name, [], _series, family, value)]
    left_out: Family[Of] = Family("left_out", ("part",), LEFT_OUT, lambda _: [({"part": one.part}, 1) for one in lost])
    lines += _series(left_out, value)
    return "\n".join([*lines, "# EOF", ""])


LEFT_OUT = "Parts that are not here, as diagnose itself failed. Please report that."


def _series(family: Family[Of], value: Of) -> list[str]:
    found = [line for labels, one in family.samples(value) if one is not None for line in _lines(family, labels, one)]
    return [*_head(family), *found] if found else []


def _head(family: Family[Of]) -> list[str]:
    name = PREFIX + family.name
    unit = [f"# UNIT {name} {family.unit}"] if family.unit else []
    return [f"# TYPE {name} {family.kind}", *unit, f"# HELP {name} {_escaped(family.meaning)}"]


def _lines(family: Family[Of], labels: dict[str, object], value: float | Distribution) -> Iterator[str]:
    if not isinstance(value, Distribution):
        yield _line(family.name + ("_total" if family.kind == "counter" else ""), labels, value)
        return
    for limit, count in value.upto:
        yield _line(f"{family.name}_bucket", {**labels, "le": limit}, count)
    yield _line(f"{family.name}_bucket", {**labels, "le": "+Inf"}, value.count)
    yield _line(f"{family.name}_count", labels, value.count)
    yield _line(f"{family.name}_sum", labels, value.sum)


def _line(name: str, labels: dict[str, object], value: int | float) -> str:
    known = {key: str(text) for key, text in labels.items() if text not in (None, "")}
    inside = ",".join(f'{key}="{_escaped(clipped(text, MOST_LABEL))}"' for key, text in known.items())
    return f"{PREFIX}{name}{f'{{{inside}}}' if inside else ''} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def seconds(ns: Number) -> Number:
    """Of a time that may be unknown."""
    return None if ns is None else ns / 1e9
