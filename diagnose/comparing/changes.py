"""How the findings and settings of two sides differ, and what makes the sides different things."""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from diagnose.comparing.parts import function_of
from diagnose.comparing.runs import Area, area
from diagnose.contracts import comparison
from diagnose.contracts.baseline import GroupTime, KnownFinding, RankStep, Run
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.facts.core.steps import Measure
from diagnose.trace import units

MOSTLY = 0.5  # A setting explains a difference if the part that it acts on has this share of it (our choice).
SAME_WORK = 0.01  # FLOPs that differ by less are the same work: some of few steps may be missing (our choice).


def findings(before: Run, after: Run) -> comparison.FindingsChange:
    """What is fixed, new or grown, where it is not minor. Findings are the same if their rule and function are.

    Of a rule that found other functions on each side, all are one: it has moved, and is neither fixed nor new.
    """
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
        known[place] = _both(known[place], finding) if place in known else finding
    return known


def _both(first: KnownFinding, second: KnownFinding) -> KnownFinding:
    return msgspec.structs.replace(
        max(first, second, key=lambda finding: finding.likely_ns),
        low_ns=first.low_ns + second.low_ns,
        likely_ns=first.likely_ns + second.likely_ns,
        high_ns=first.high_ns + second.high_ns,
        minor=first.minor and second.minor,
    )


def settings(before: Run, after: Run, parts: Sequence[comparison.Part]) -> tuple[comparison.SettingChange, ...]:
    """Those that differ; what may explain most of the difference comes first."""
    names = dict.fromkeys((*before.settings, *after.settings))
    differing = [name for name in names if before.settings.get(name) != after.settings.get(name)]
    told = [_setting(name, before, after, parts) for name in differing]
    return tuple(sorted(told, key=lambda setting: (-abs(setting.explains_ns or 0), setting.acts_on != "")))


def _setting(name: str, before: Run, after: Run, parts: Sequence[comparison.Part]) -> comparison.SettingChange:
    acts_on = area(name)
    return comparison.SettingChange(
        name=name,
        before=before.settings.get(name),
        after=after.settings.get(name),
        acts_on=acts_on.words if acts_on else "",
        explains_ns=_explained_ns(acts_on, parts) if acts_on else None,
    )


def _explained_ns(acts_on: Area, parts: Sequence[comparison.Part]) -> int | None:
    whole = sum(part.ns for part in parts)
    own = sum(part.ns for part in parts if acts_on.holds(part.kind.value, part.of))
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
    """Steps divided by what they do, where that differs."""
    samples = before.samples_per_step, after.samples_per_step
    if samples[0] and samples[1] and samples[0] != samples[1]:
        yield comparison.Per("sample", before_ns / samples[0], after_ns / samples[1])
    if _work_ratio(before, after):
        flops = before.flops_per_step or 1, after.flops_per_step or 1
        yield comparison.Per("GFLOP", before_ns / flops[0] * 1e9, after_ns / flops[1] * 1e9)


def groups(before: Run, after: Run) -> tuple[comparison.GroupChange, ...]:
    """The groups of both jobs by operation, use and ranks; those that hold ranks up longest first."""
    then, now = ({group.label: group for group in side.groups} for side in (before, after))
    told = [
        comparison.GroupChange(label=label, before=then.get(label), after=now.get(label)) for label in {**now, **then}
    ]
    return tuple(sorted(told, key=lambda group: -max(_held_ns(group.before), _held_ns(group.after))))


def _held_ns(group: GroupTime | None) -> int:
    return 0 if group is None else group.wait_ns + group.transfer_ns


def ranks(before: Run, after: Run) -> tuple[comparison.RankChange, ...]:
    """The ranks that both jobs have, in order."""
    then: dict[int, RankStep] = {rank.rank: rank for rank in before.ranks}
    return tuple(comparison.RankChange(before=then[rank.rank], after=rank) for rank in after.ranks if rank.rank in then)
