"""How two sides differ: parts that add up to the difference of their steps exactly, and what in each part has changed;
findings, settings, amounts of work, and what makes the sides different things.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from diagnose.comparing.runs import Area, area
from diagnose.contracts import comparison
from diagnose.contracts.baseline import GroupTime, KnownFinding, RankStep, Run
from diagnose.contracts.comparison import Change, ChangeKind, Part, PartKind
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.facts.core.breakdown import shared_out
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import AttributedTime
from diagnose.facts.run.time_attribution import Part as Where
from diagnose.reports.comparison import part_words
from diagnose.trace import units
from diagnose.trace.frames import Site

SMALL_SHARE = 1e-3  # Of the longer step: changes of less have no row of their own (our choice).
MOST_ROWS = 50  # Changes of a part that have a row of their own.
MOSTLY = 0.5  # What has this share of a change is named with it; what acts on so much of a difference explains it.
SAME_CALLS = 0.02  # Calls differ by more than this share: where steps are cut, some may be missing (our choice).
SAME_WORK = 0.01  # FLOPs that differ by less are the same work: some of few steps may be missing (our choice).

T = TypeVar("T")


class _Sums(Struct):
    """What one side spends on one thing, per step."""

    ns: int = 0
    calls: float = 0.0
    names: Counter[str] = field(default_factory=Counter)  # ns by kernel.


class _Pair(Struct):
    """What both sides spend on the same thing."""

    before: _Sums = field(default_factory=_Sums)
    after: _Sums = field(default_factory=_Sums)
    shapes: Counter[str] = field(default_factory=Counter)  # Difference in ns, after less before, by shapes,
    sites: Counter[Site] = field(default_factory=Counter)  # and by source line.

    @property
    def ns(self) -> int:
        return self.after.ns - self.before.ns

    def add(self, spent: AttributedTime, ns: int, calls: float, sign: int) -> None:
        """Add a row of the side before (`sign` -1) or after (1)."""
        side = self.before if sign < 0 else self.after
        side.ns += ns
        side.calls += calls
        side.names[spent.name] += ns
        if spent.shapes:
            self.shapes[spent.shapes] += sign * ns
        if spent.site is not None:
            self.sites[spent.site] += sign * ns


Row = tuple[AttributedTime, int, float]  # What it is, ns per step, calls per step.


def mean_rows(runs: Sequence[Run]) -> list[Row]:
    """The spending of a side, mean of its runs; adds up to its mean recorded step. Empty if a run does not tell it."""
    if not all(run.spending for run in runs):
        return []
    rows = [(spent, len(run.times_ns)) for run in runs for spent in run.spending]
    ns = shared_out([spent.ns for spent, _ in rows], len(runs))
    return [(spent, own, spent.calls / steps / len(runs)) for (spent, steps), own in zip(rows, ns, strict=True)]


def parts(before: Sequence[Run], after: Sequence[Run], before_ns: int, after_ns: int) -> tuple[Part, ...]:
    """The parts of `after_ns - before_ns`, largest first. What these steps differ from recorded ones by is a part, too,
    the profiler's. One part that is not known, if a side does not tell where its step goes."""
    rows = mean_rows(before), mean_rows(after)
    if not all(rows):
        return (_part(PartKind.NOT_KNOWN, "", before_ns, after_ns),)
    least = SMALL_SHARE * max(before_ns, after_ns)
    found: dict[tuple[Where, str], tuple[list[Row], list[Row]]] = {}
    for side, own in enumerate(rows):
        for row in own:
            found.setdefault((row[0].part, row[0].kind), ([], []))[side].append(row)
    shown = [
        _part(PartKind(where.value), of, _ns(sides[0]), _ns(sides[1]), _detail(sides, least))
        for (where, of), sides in found.items()
    ]
    profiler = _part(PartKind.PROFILER, "", before_ns - _ns(rows[0]), after_ns - _ns(rows[1]))
    shown += [profiler] * bool(profiler.before_ns or profiler.after_ns)
    return tuple(sorted(shown, key=lambda part: -abs(part.ns)))


def _part(kind: PartKind, of: str, before_ns: int, after_ns: int, detail: tuple[Change, ...] = ()) -> Part:
    what, ns = part_words(kind, of), after_ns - before_ns
    return Part(what=what, kind=kind, of=of, before_ns=before_ns, after_ns=after_ns, ns=ns, detail=detail)


def _ns(rows: Sequence[Row]) -> int:
    return sum(ns for _, ns, _ in rows)


def _detail(sides: tuple[list[Row], list[Row]], least_ns: float) -> tuple[Change, ...]:
    """The largest changes of one part, by op, kernel or line, and the rest as one; they add up to the part."""
    key = _key_of(sides)
    pairs: dict[tuple[str, ...], _Pair] = {}
    for sign, own in zip((-1, 1), sides, strict=True):
        for spent, ns, calls in own:
            pairs.setdefault(key(spent), _Pair()).add(spent, ns, calls, sign)
    ranked = sorted(pairs.items(), key=lambda item: -abs(item[1].ns))
    shown = [place for place, pair in ranked if place and abs(pair.ns) >= least_ns][:MOST_ROWS]
    changes = [_change(place, pairs.pop(place)) for place in shown]
    return (*changes, *_remainder(list(pairs.values())))


def _key_of(sides: tuple[list[Row], list[Row]]) -> Callable[[AttributedTime], tuple[str, ...]]:
    """A function to a key that is equal for the same thing on both sides: its op, where both sides know ops, else its
    kernel, else its source function (lines move when a file is edited). () for what has none of these."""
    ops_known = all(any(spent.op for spent, _, _ in own) for own in sides if own)

    def key(spent: AttributedTime) -> tuple[str, ...]:
        if spent.op and ops_known:
            return ("op", spent.op)
        if spent.name:
            return ("kernel", spent.name)
        return ("line", *function_of(spent.site)) if spent.site else ()

    return key


def function_of(site: Site) -> tuple[str, str]:
    """The last two parts of the file's path, as recordings may be of different folders, and the function's name."""
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
    """The key with most of the difference `whole_ns`; None if no key has MOSTLY of it."""
    if not differences:
        return None
    largest = max(differences, key=lambda key: differences[key] * whole_ns)
    return largest if differences[largest] * whole_ns >= MOSTLY * whole_ns**2 else None


def _kind(pair: _Pair, called: bool) -> ChangeKind:
    """New or gone; more or fewer calls if they make most of the difference; else slower or faster (longer or shorter of
    what is not called)."""
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


def _remainder(rest: Sequence[_Pair]) -> Iterator[Change]:
    """All pairs that have no row of their own as one change; nothing if they do not differ in sum."""
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


def findings(before: Run, after: Run) -> comparison.FindingsChange:
    """Findings that are fixed, new or grown, and not minor. Two are the same if their rule and function are.
    Of a rule that found other functions on each side, all are one: it has moved, and is neither fixed nor new."""
    then, now = (_by_place(run.findings) for run in (before, after))
    moved = {place[0] for place in then.keys() - now.keys()} & {place[0] for place in now.keys() - then.keys()}
    then, now = (_by_place(run.findings, moved) for run in (before, after))
    gone = [finding for place, finding in then.items() if place not in now and not finding.minor]
    came = [finding for place, finding in now.items() if place not in then and not finding.minor]
    both = [(then[place], finding) for place, finding in now.items() if place in then and not finding.minor]
    return comparison.FindingsChange(
        fixed=tuple(finding for finding in gone if finding.rule in after.looked),
        new=tuple(finding for finding in came if finding.rule in before.looked),
        grown=tuple(comparison.GrownFinding(before=a, after=b) for a, b in both if b.likely_ns > a.high_ns),
        not_looked_at=tuple(finding for finding in gone if finding.rule not in after.looked),
        not_looked_at_before=tuple(finding for finding in came if finding.rule not in before.looked),
    )


def ranked(after: Diagnosis, change: comparison.FindingsChange) -> list[RankedFinding]:
    """The findings afterwards that are new, have grown, or could not be looked at before, in order."""
    told = [*change.new, *(grown.after for grown in change.grown), *change.not_looked_at_before]
    places = {_place(finding) for finding in told}
    return [finding for finding in after.findings if _place(finding) in places]


def _place(finding: KnownFinding | RankedFinding) -> tuple[str, ...]:
    return (finding.rule, *(function_of(finding.site) if finding.site else ()))


def _by_place(found: Sequence[KnownFinding], moved: Collection[str] = ()) -> dict[tuple[str, ...], KnownFinding]:
    """Findings by rule and function; several of one rule in one function are one, that saves what they add up to."""
    known: dict[tuple[str, ...], KnownFinding] = {}
    for finding in found:
        place = (finding.rule,) if finding.rule in moved else _place(finding)
        known[place] = _merged(known[place], finding) if place in known else finding
    return known


def _merged(first: KnownFinding, second: KnownFinding) -> KnownFinding:
    """Two findings of one place as one; savings add up."""
    return replace(
        max(first, second, key=lambda finding: finding.likely_ns),
        low_ns=first.low_ns + second.low_ns,
        likely_ns=first.likely_ns + second.likely_ns,
        high_ns=first.high_ns + second.high_ns,
        minor=first.minor and second.minor,
    )


def settings(before: Run, after: Run, found: Sequence[Part]) -> tuple[comparison.SettingChange, ...]:
    """Settings that differ; first those that act on the part with most of the difference, last those that act on a part
    with little of it."""
    differing = []
    for name in dict.fromkeys((*before.settings, *after.settings)):
        then, now, acts_on = before.settings.get(name), after.settings.get(name), area(name)
        words, ns = (acts_on.words, _explained_ns(acts_on, found)) if acts_on else ("", None)
        if then != now:
            change = comparison.SettingChange(name=name, before=then, after=now, acts_on=words, explains_ns=ns)
            differing.append(change)
    return tuple(sorted(differing, key=lambda setting: (-abs(setting.explains_ns or 0), setting.acts_on != "")))


def _explained_ns(acts_on: Area, found: Sequence[Part]) -> int | None:
    whole = sum(part.ns for part in found)
    own = sum(part.ns for part in found if acts_on.holds(part.kind.value, part.of))
    return own if whole and own * whole >= MOSTLY * whole**2 else None


def incomparable(before: Run, after: Run) -> Iterator[str]:
    """Sentences on what makes the sides different things; the difference is of all of it together."""
    gpus = [sorted(set(run.devices)) for run in (before, after)]
    if gpus[0] != gpus[1]:
        yield f"The devices differ: {_listed(gpus[0])} before, {_listed(gpus[1])} after."
    if before.world_size != after.world_size:
        worlds = [run.world_size or 1 for run in (before, after)]
        yield f"The numbers of ranks differ: {worlds[0]:,} before, {worlds[1]:,} after."
    samples = before.samples_per_step, after.samples_per_step
    if None not in samples and samples[0] != samples[1]:
        yield f"Samples per step and rank differ: {samples[0]:,} before, {samples[1]:,} after."
    elif ratio := _work_ratio(before, after):
        yield f"Matrix FLOPs per step differ: {units.three_digits(ratio)} times as many after as before."
    if before.format != after.format:
        yield f"The recording tools differ: {before.format} before, {after.format} after."
    for run, side in ((before, "before"), (after, "after")):
        if run.measure is Measure.WINDOW:
            yield f"The recording {side} marks no steps, so all of it counts as one step."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none was recorded"


def _work_ratio(before: Run, after: Run) -> float | None:
    """How many times as many FLOPs a step has after; None if as many, or if that is not known."""
    if not before.flops_per_step or not after.flops_per_step:
        return None
    ratio = after.flops_per_step / before.flops_per_step
    return ratio if abs(ratio - 1) > SAME_WORK else None


def per(before: Run, after: Run, before_ns: int, after_ns: int) -> Iterator[comparison.Per]:
    """Step times per sample and per GFLOP, each only where both sides tell it and it differs."""
    samples = before.samples_per_step, after.samples_per_step
    if samples[0] and samples[1] and samples[0] != samples[1]:
        yield comparison.Per("sample", before_ns / samples[0], after_ns / samples[1])
    if _work_ratio(before, after):
        flops = before.flops_per_step or 1, after.flops_per_step or 1
        yield comparison.Per("GFLOP", before_ns / flops[0] * 1e9, after_ns / flops[1] * 1e9)


def groups(before: Run, after: Run) -> tuple[comparison.GroupChange, ...]:
    """The groups of both jobs by operation, use and ranks; those that hold ranks up longest first."""
    then, now = ({group.label: group for group in side.groups} for side in (before, after))
    both = {label: (then.get(label), now.get(label)) for label in {**now, **then}}
    told = [comparison.GroupChange(label=label, before=one, after=other) for label, (one, other) in both.items()]
    return tuple(sorted(told, key=lambda group: -max(_held_ns(group.before), _held_ns(group.after))))


def _held_ns(group: GroupTime | None) -> int:
    return 0 if group is None else group.wait_ns + group.transfer_ns


def ranks(before: Run, after: Run) -> tuple[comparison.RankChange, ...]:
    """The ranks that both jobs have, in order."""
    then: dict[int, RankStep] = {rank.rank: rank for rank in before.ranks}
    return tuple(comparison.RankChange(before=then[rank.rank], after=rank) for rank in after.ranks if rank.rank in then)
