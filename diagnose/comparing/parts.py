"""The difference of two steps as parts that add up to it exactly, and what in each part has changed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TypeVar

from msgspec import Struct, field

from diagnose.contracts.baseline import Run
from diagnose.contracts.comparison import Change, ChangeKind, Part, PartKind
from diagnose.facts.core.breakdown import shared_out
from diagnose.facts.run.time_attribution import AttributedTime
from diagnose.facts.run.time_attribution import Part as Where
from diagnose.reports.comparison import part_words
from diagnose.trace.frames import Site

SMALL_SHARE = 1e-3  # Of the longer step: changes of less have no row of their own (our choice).
MOST_ROWS = 50  # Changes of a part that have a row of their own.
MOSTLY = 0.5  # What has this share of a change is named with it (our choice).

SAME_CALLS = 0.02
"""Calls differ if they do by more than this share: where steps are cut, some may be missing (our choice)."""

T = TypeVar("T")


class _Sums(Struct):
    ns: int = 0
    calls: float = 0.0
    names: dict[str, int] = field(default_factory=dict)


class _Pair(Struct):
    before: _Sums = field(default_factory=_Sums)
    after: _Sums = field(default_factory=_Sums)
    shapes: dict[str, int] = field(default_factory=dict)  # Difference by shapes.
    sites: dict[Site, int] = field(default_factory=dict)

    @property
    def ns(self) -> int:
        return self.after.ns - self.before.ns

    def add(self, spent: AttributedTime, ns: int, calls: float, sign: int) -> None:
        """A row of the side before (-1) or after (1)."""
        side = self.before if sign < 0 else self.after
        side.ns += ns
        side.calls += calls
        side.names[spent.name] = side.names.get(spent.name, 0) + ns
        if spent.shapes:
            self.shapes[spent.shapes] = self.shapes.get(spent.shapes, 0) + sign * ns
        if spent.site is not None:
            self.sites[spent.site] = self.sites.get(spent.site, 0) + sign * ns


Row = tuple[AttributedTime, int, float]  # What it is, ns per step, calls per step.


def mean_rows(runs: Sequence[Run]) -> list[Row]:
    """The spending of a side, mean of its runs; adds up to its mean recorded step. Empty if a run does not tell it."""
    if not all(run.spending for run in runs):
        return []
    rows = [(spent, len(run.times_ns)) for run in runs for spent in run.spending]
    ns = shared_out([spent.ns for spent, _ in rows], len(runs))
    return [(spent, own, spent.calls / steps / len(runs)) for (spent, steps), own in zip(rows, ns, strict=True)]


def parts(before: Sequence[Run], after: Sequence[Run], before_ns: int, after_ns: int) -> tuple[Part, ...]:
    """The parts of `after_ns - before_ns`, largest first. What recorded steps have more or less is the profiler's."""
    rows = mean_rows(before), mean_rows(after)
    if not all(rows):
        return (_undivided(PartKind.NOT_KNOWN, before_ns, after_ns),)
    least = SMALL_SHARE * max(before_ns, after_ns)
    found: dict[tuple[Where, str], tuple[list[Row], list[Row]]] = {}
    for side, own in enumerate(rows):
        for row in own:
            found.setdefault((row[0].part, row[0].kind), ([], []))[side].append(row)
    told = [_part(where, of, sides, least) for (where, of), sides in found.items()]
    recorded = [sum(ns for _, ns, _ in own) for own in rows]
    profiler = _undivided(PartKind.PROFILER, before_ns - recorded[0], after_ns - recorded[1])
    if profiler.before_ns or profiler.after_ns:
        told.append(profiler)
    return tuple(sorted(told, key=lambda part: -abs(part.ns)))


def _undivided(kind: PartKind, before_ns: int, after_ns: int) -> Part:
    what = part_words(kind, "")
    return Part(what=what, kind=kind, of="", before_ns=before_ns, after_ns=after_ns, ns=after_ns - before_ns, detail=())


def _part(where: Where, of: str, sides: tuple[list[Row], list[Row]], least_ns: float) -> Part:
    kind = PartKind(where.value)
    before_ns, after_ns = (sum(ns for _, ns, _ in own) for own in sides)
    return Part(
        what=part_words(kind, of),
        kind=kind,
        of=of,
        before_ns=before_ns,
        after_ns=after_ns,
        ns=after_ns - before_ns,
        detail=_detail(sides, least_ns),
    )


def _detail(sides: tuple[list[Row], list[Row]], least_ns: float) -> tuple[Change, ...]:
    key = _key_of(sides)
    pairs: dict[tuple[str, ...], _Pair] = {}
    for sign, own in zip((-1, 1), sides, strict=True):
        for spent, ns, calls in own:
            pairs.setdefault(key(spent), _Pair()).add(spent, ns, calls, sign)
    ranked = sorted(pairs.items(), key=lambda item: -abs(item[1].ns))
    shown = [place for place, pair in ranked if place and abs(pair.ns) >= least_ns][:MOST_ROWS]
    told = [_change(place, pairs.pop(place)) for place in shown]
    return (*told, *_left(list(pairs.values())))


def _key_of(sides: tuple[list[Row], list[Row]]) -> Callable[[AttributedTime], tuple[str, ...]]:
    """What makes things of both sides the same: their op, where both sides know ops, else their kernel, and last the
    function that runs. Lines move when a file is edited, and kernels of one op change their names with a library."""
    ops_known = all(any(spent.op for spent, _, _ in own) for own in sides if own)

    def key(spent: AttributedTime) -> tuple[str, ...]:
        if spent.op and ops_known:
            return ("op", spent.op)
        if spent.name:
            return ("kernel", spent.name)
        return ("line", *function_of(spent.site)) if spent.site else ()

    return key


def function_of(site: Site) -> tuple[str, str]:
    """The last two parts of the path, as recordings may be of different folders, and the function."""
    return "/".join(PurePath(site.file).parts[-2:]), site.function


def _change(key: tuple[str, ...], pair: _Pair) -> Change:
    before, after = pair.before, pair.after
    names = [max(side.names, key=side.names.__getitem__, default="") for side in (before, after)]
    return Change(
        what="" if key[0] == "line" else key[1],
        change=_kind(pair, called=key[0] != "line"),
        before_ns=before.ns,
        after_ns=after.ns,
        ns=pair.ns,
        before_calls=before.calls,
        after_calls=after.calls,
        before_name=names[0],
        after_name=names[1],
        shapes=_most(pair.shapes, pair.ns) or "",
        site=max(pair.sites, key=lambda at: abs(pair.sites[at])) if key[0] == "line" else _most(pair.sites, pair.ns),
    )


def _most(differences: Mapping[T, int], whole_ns: int) -> T | None:
    if not differences:
        return None
    largest = max(differences, key=lambda key: differences[key] * whole_ns)
    return largest if differences[largest] * whole_ns >= MOSTLY * whole_ns**2 else None


def _kind(pair: _Pair, called: bool) -> ChangeKind:
    """New, gone; else calls or their speed, whichever has the larger part of the difference."""
    before, after = pair.before, pair.after
    if not before.ns and not before.calls:
        return ChangeKind.NEW
    if not after.ns and not after.calls:
        return ChangeKind.GONE
    if called and before.calls and after.calls and abs(after.calls / before.calls - 1) > SAME_CALLS:
        by_calls = (after.calls - before.calls) * (before.ns / before.calls + after.ns / after.calls) / 2
        if by_calls * pair.ns >= MOSTLY * pair.ns**2:
            return ChangeKind.MORE_CALLS if by_calls > 0 else ChangeKind.FEWER_CALLS
    if called:
        return ChangeKind.SLOWER if pair.ns > 0 else ChangeKind.FASTER
    return ChangeKind.LONGER if pair.ns > 0 else ChangeKind.SHORTER


def _left(rest: Sequence[_Pair]) -> Iterator[Change]:
    before_ns, after_ns = sum(pair.before.ns for pair in rest), sum(pair.after.ns for pair in rest)
    if before_ns != after_ns:
        yield Change(
            what="",
            change=ChangeKind.REST,
            before_ns=before_ns,
            after_ns=after_ns,
            ns=after_ns - before_ns,
            before_calls=sum(pair.before.calls for pair in rest),
            after_calls=sum(pair.after.calls for pair in rest),
        )
