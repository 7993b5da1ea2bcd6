"""What a report of a comparison says, as sentences, titled tables and lists: shared by all its forms."""

from collections.abc import Iterable, Iterator

from diagnose.contracts.baseline import GroupTime, KnownFinding
from diagnose.contracts.comparison import Change, ChangeKind, Comparison, Part, PartKind, SettingChange
from diagnose.reports.sections import Row, Section, place
from diagnose.reports.words import CAUSES, WORK_NOT_RECORDED
from diagnose.trace import kinds
from diagnose.trace.units import about, clipped, clipped_left, duration, number, percent, two_digits

VERDICTS = {"faster": "faster", "slower": "slower", "same": "no difference", "cannot_tell": "cannot tell"}

CHANGES = {
    ChangeKind.NEW: "new",
    ChangeKind.GONE: "gone",
    ChangeKind.MORE_CALLS: "more calls",
    ChangeKind.FEWER_CALLS: "fewer calls",
    ChangeKind.SLOWER: "slower",
    ChangeKind.FASTER: "faster",
    ChangeKind.LONGER: "longer",
    ChangeKind.SHORTER: "shorter",
    ChangeKind.REST: "all else",
}
_UNDIVIDED = {
    PartKind.EXPOSED_COMMUNICATION: "exposed communication",
    PartKind.EXPOSED_COPY: "exposed copies and fills",
    PartKind.WORK_NOT_RECORDED: WORK_NOT_RECORDED,
    PartKind.PROFILER: "profiler-overhead correction",
    PartKind.NOT_KNOWN: "not broken down on one side",
}
_CAUSES = {cause.value: told for cause, told in CAUSES.items()}  # A baseline of another version may know others.

MOST_ROWS = 12  # Rows of a table for people; JSON has more.
LEAST_SHARE = 0.001  # Of the step, for a row of its own (our choice).
CHANGE_SHARE = 0.005  # Of the longer step, for a change that has a row (our choice).
CAUSE_SHARE = 0.1  # Of the difference, for what is named as its cause (our choice).
MOST_CAUSES = 3
NAME_WIDTH, PLACE_WIDTH = 48, 40
NEXT = "diagnose compare ... --details", "tables, savings and settings (or --html)"

DIFFERENCE = ("", "before", "after", "difference")  # Columns.

Item = tuple[str, str]  # First words, and the rest.


def part_words(kind: PartKind, of: str) -> str:
    """The label of a part of the step. `of`: its kind of kernels or its cause, by name."""
    if kind is PartKind.COMPUTE:
        return f"compute: {of.replace('_', ' ')} kernels"
    if kind is PartKind.IDLE:
        return f"GPU idle: {_CAUSES.get(of, of)}"
    if kind is PartKind.HOST:
        return f"CPU: {_CAUSES.get(of, of)}"
    return _UNDIVIDED[kind]


def headline(found: Comparison) -> str:
    """The verdict in a line."""
    share, steps = found.difference_share, f"{_before_after(found.before_ns, found.after_ns)}/step"
    if share.low is None or share.high is None:
        return f"Cannot tell: {100 * share.likely:+.1f} %, too few steps for an interval: {steps}"
    if found.verdict in ("faster", "slower"):
        low, high = sorted(map(abs, (share.low, share.high)))
        interval = f"95 % interval {two_digits(100 * low)} to {two_digits(100 * high)} %"
        return f"{two_digits(100 * abs(share.likely))} % {found.verdict} ({interval}): {steps}"
    interval = f"95 % interval {100 * share.low:+.1f} to {100 * share.high:+.1f} %"
    if found.verdict == "same":
        return f"No difference larger than {percent(max(-share.low, share.high))} ({interval}): {steps}"
    return f"Cannot tell: {100 * share.likely:+.1f} % ({interval}): {steps}"


def _before_after(before_ns: int, after_ns: int) -> str:
    """`102 -> 150 ms`; the unit once where it is the same."""
    before, after = duration(before_ns), duration(after_ns)
    number, _, unit = before.partition(" ")
    return f"{number if after.endswith(f' {unit}') else before} -> {after}"


def settings(found: Comparison) -> list[Item]:
    """One item with all settings that differ and are known of both sides; [] if there are none."""
    told = [f"{one.name} {_values(one)}" for one in found.settings if None not in (one.before, one.after)]
    return [(f"Settings ({len(told)}):", "; ".join(told))] if told else []


def causes(found: Comparison) -> Iterator[str]:
    """A sentence on each change of CAUSE_SHARE of the difference or more, largest first; none unless it is clear."""
    if found.verdict not in ("faster", "slower"):
        return
    whole = found.difference_ns.likely
    parts = [one for one in found.parts if one.kind is not PartKind.PROFILER]
    changes = [(change, part) for part in parts for change in _details(part)]
    causing = [both for both in changes if both[0].ns * whole >= CAUSE_SHARE * whole**2]
    for change, part in sorted(causing, key=lambda both: -abs(both[0].ns))[:MOST_CAUSES]:
        name, of = (_name(change), f" ({part.what})") if change.what else (part.what, "")
        yield f"{signed(change.ns)}: {name}{_at(change)}: {how(change)}{of}"


def _details(part: Part) -> list[Change]:
    return [one for one in part.detail if one.change is not ChangeKind.REST] or [_as_change(part)]


def _as_change(part: Part) -> Change:
    """A whole part of the step as one change, for a part without details."""
    change = ChangeKind.LONGER if part.ns > 0 else ChangeKind.SHORTER
    if bool(part.before_ns) != bool(part.after_ns):
        change = ChangeKind.GONE if part.before_ns else ChangeKind.NEW
    return Change(what="", change=change, before_ns=part.before_ns, after_ns=part.after_ns, ns=part.ns)


def _name(change: Change) -> str:
    """A framework op as it is called, a kernel in short."""
    is_kernel = change.what in (change.before_name, change.after_name)
    return kinds.short_name(change.what, NAME_WIDTH) if is_kernel else clipped(change.what, NAME_WIDTH)


def how(change: Change) -> str:
    """How something changed, as a clause: the kind of change, calls per step, kernel names, shapes; not the time."""
    before, after = number(change.before_calls), number(change.after_calls)
    told = CHANGES[change.change]
    if change.change is ChangeKind.NEW and change.after_calls:
        told += f", {after} calls per step"
    elif change.change is ChangeKind.GONE and change.before_calls:
        told += f", {before} calls per step before"
    elif change.change in (ChangeKind.MORE_CALLS, ChangeKind.FEWER_CALLS):
        told += f", {before} -> {after} per step"
    names = [kinds.short_name(one, NAME_WIDTH) for one in (change.before_name, change.after_name)]
    if all(names) and names[0] != names[1]:
        told += f"; {' -> '.join(names)}"
    return told + (f"; shapes {clipped(change.shapes, NAME_WIDTH)}" if change.shapes else "")


def _at(change: Change) -> str:
    return f" at {clipped_left(place(change.site), PLACE_WIDTH)}" if change.site else ""


def signed(ns: float) -> str:
    """A duration with its sign: +5.6 ms."""
    return ("+" if ns > 0 else "-" if ns < 0 else "") + duration(abs(ns))


def sections(found: Comparison) -> Iterator[Section]:
    """The tables; empty ones are left out."""
    return (made for made in (make(found) for make in (_parts, _changes, _per, _ranks, _groups)) if made.rows)


def _split(found: Comparison) -> tuple[list[Part], list[Part]]:
    """(parts to show, all others): the largest differences; the profiler's overhead is always among the others."""
    least = LEAST_SHARE * max(found.before_ns, found.after_ns)
    recorded = [part for part in found.parts if part.kind is not PartKind.PROFILER]
    shown = [part for part in recorded if abs(part.ns) >= least][:MOST_ROWS]
    return shown, [part for part in found.parts if part not in shown]


def shown_parts(found: Comparison) -> list[tuple[str, int]]:
    """(what, difference in ns per step) of parts that have a row of their own, and of all others together."""
    shown, rest = _split(found)
    others = sum(one.ns for one in rest)
    return [*((one.what, one.ns) for one in shown), *([("everything else", others)] if others else [])]


def _parts(found: Comparison) -> Section:
    shown, rest = _split(found)
    rows = [_row(one.what, one.before_ns, one.after_ns) for one in shown]
    if rest:
        rows.append(_row("everything else", sum(one.before_ns for one in rest), sum(one.after_ns for one in rest)))
    rows.append(_row("step", found.before_ns, found.after_ns))
    note = "Each moment of a step counts once, so the parts add up to the difference."
    return Section("Where the difference is", DIFFERENCE, rows, note)


def _row(label: str, before_ns: int, after_ns: int) -> Row:
    return Row(label, (duration(before_ns), duration(after_ns), signed(after_ns - before_ns)))


def _changes(found: Comparison) -> Section:
    """A row per change of CHANGE_SHARE of the longer step or more, largest first, MOST_ROWS at most."""
    least = CHANGE_SHARE * max(found.before_ns, found.after_ns)
    changes = [(one, part) for part in found.parts for one in part.detail if one.change is not ChangeKind.REST]
    rows = []
    for change, part in sorted(changes, key=lambda pair: -abs(pair[0].ns))[:MOST_ROWS]:
        if abs(change.ns) >= least:
            words = f"{part.what}: {how(change)}" if change.what else how(change)
            line = place(change.site) if change.site else ""
            rows.append(Row(_name(change) or part.what, (signed(change.ns), words), place=line))
    has_changed = found.verdict in ("faster", "slower")
    note = "" if has_changed else "The step time may not have changed, so these may be noise."
    return Section("What changed", ("", "difference", "how"), rows, note, words=True)


def _per(found: Comparison) -> Section:
    rows = [Row(f"time per {one.unit}", (duration(one.before_ns), duration(one.after_ns))) for one in found.per]
    return Section("Time for the same work", ("", "before", "after"), rows)


def _ranks(found: Comparison) -> Section:
    """A row per rank of both sides whose compute time changed by CHANGE_SHARE of the step or more, largest first."""
    least, changed = CHANGE_SHARE * max(found.before_ns, found.after_ns), list[tuple[str, int, int]]()
    for one in found.ranks:
        before_ns, after_ns = one.before.computing_ns, one.after.computing_ns
        if before_ns is not None and after_ns is not None and abs(after_ns - before_ns) >= least:
            changed.append((f"rank {one.after.rank}", before_ns, after_ns))
    changed.sort(key=lambda row: -abs(row[2] - row[1]))
    rows = [_row(*row) for row in changed[:MOST_ROWS]]
    return Section("Compute time by rank (largest changes)", DIFFERENCE, rows)


def _groups(found: Comparison) -> Section:
    """A row for waiting and for transfer of each group of ranks, if it changed by CHANGE_SHARE of the step."""
    least = CHANGE_SHARE * max(found.before_ns, found.after_ns)
    rows = [
        _row(f"{group.label}: {what}", before_ns, after_ns)
        for group in found.groups
        for what, before_ns, after_ns in zip(
            ("waiting", "transfer"), _held(group.before), _held(group.after), strict=True
        )
        if abs(after_ns - before_ns) >= least
    ]
    return Section("Groups of ranks", DIFFERENCE, rows[:MOST_ROWS])


def _held(side: GroupTime | None) -> tuple[int, int]:
    return (0, 0) if side is None else (side.wait_ns, side.transfer_ns)


def brief(found: Comparison) -> Iterator[Item]:
    """Findings that differ, a line each: a label with how many, and names."""
    told = found.findings
    grown, one_sided = [one.after for one in told.grown], (*told.not_looked_at, *told.not_looked_at_before)
    some = {"Fixed": told.fixed, "New": told.new, "Grown": grown, "Checked on one side only": one_sided}
    for label, findings in some.items():
        if findings:
            yield f"{label} ({len(findings)}):", "; ".join(f"{one.title} ({one.code})" for one in findings)


def lists(found: Comparison) -> Iterator[tuple[str, list[Item]]]:
    """Titled lists: findings and settings that differ; empty ones are left out."""
    told = found.findings
    made: dict[str, Iterable[Item]] = {
        "New findings": map(_finding, told.new),
        "Grown findings": (_finding(one.after, one.before) for one in told.grown),
        "Fixed findings": map(_finding, told.fixed),
        "Found before, not checked after": map(_finding, told.not_looked_at),
        "Found after, not checked before": map(_finding, told.not_looked_at_before),
        "Changed settings": map(_setting, found.settings[:MOST_ROWS]),
    }
    return ((title, items) for title, some in made.items() if (items := list(some)))


def _finding(one: KnownFinding, before: KnownFinding | None = None) -> Item:
    label = f"{one.title} ({one.code}):"
    if before is not None:
        return label, f"{_saving(before)} before, {_saving(one)} after"
    return label, _saving(one) + (f", at {place(one.site)}" if one.site else "")


def _saving(one: KnownFinding) -> str:
    return f"{about(one.likely_ns)} per step ({about(one.low_ns)} to {about(one.high_ns)})"


def _setting(one: SettingChange) -> Item:
    explains = f" May explain {signed(one.explains_ns)} in {one.acts_on}." if one.explains_ns is not None else ""
    return f"{one.name}:", f"{_values(one)}.{explains}"


def _values(one: SettingChange) -> str:
    values = (clipped(value, NAME_WIDTH) if value is not None else "not recorded" for value in (one.before, one.after))
    return " -> ".join(values)
