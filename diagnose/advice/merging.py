"""One action is one finding: what one change gains, with its parts; two ways to the same time with both fixes.

A finding that others explain is dropped.
"""

from collections.abc import Hashable, Iterable, Sequence

from msgspec.structs import replace

from diagnose.advice.pricing import Priced
from diagnose.contracts.finding import Confidence, Evidence, Finding, Fix, Level, RuleName
from diagnose.fixes.setting import Safety
from diagnose.replay.saving import Basis, Replay
from diagnose.trace.units import duration

Found = tuple[RuleName, Finding]

LEFT_SHARE = 0.5  # Of a saving, that must be left for a finding that names no cause (our choice).
MOST = 0.5  # Of the time that a finding is about: what touches so much of it is another way to the same (our choice).


def merged(found: Sequence[Found]) -> list[Found]:
    """One finding per first fix: of the rule with the longest time, with the evidence, edits and fixes of all that have
    this fix. A fix at no line, which is no change of the whole training, merges findings of one rule only. Those whose
    savings are of another kind (`per_sample`, `unless_above`) stay apart."""
    groups: dict[Hashable, list[Found]] = {}
    for place, one in enumerate(found):
        key = _fix_key(*one)
        groups.setdefault(place if key is None else key, []).append(one)
    ordered = [sorted(some, key=lambda one: -_ns(one[1])) for some in groups.values()]
    return [(some[0][0], _one(some)) for some in ordered]


def one_of_each_choice(found: Sequence[Found], replay: Replay) -> list[Found]:
    """The findings; of those whose first fix lowers the precision of the same work only the one that saves most, with
    the fixes of all: work has one precision, so that two such fixes save no more than one."""
    asked = [one for one in found if one[1].fixes and one[1].fixes[0].safety is Safety.PRECISION]
    if len(asked) < 2:
        return list(found)
    left, best, savings = list(found), list[Found](), replay.savings([finding.edits for _, finding in asked])
    for _, one in sorted(zip(savings, asked, strict=True), key=lambda pair: -pair[0].likely_ns):
        same = [over for over in best if replay.touched_share(one[1].edits, over[1].edits) > MOST]
        if not same:
            best.append(one)
            continue
        place, (page, first) = left.index(same[0]), same[0]
        joined = replace(first, fixes=(*first.fixes, *one[1].fixes), also=first.also | one[1].also | {one[0].id})
        best[best.index(same[0])] = left[place] = (page, joined)
        left.remove(one)
    return left


def _ns(finding: Finding) -> float:
    """The ns per step of its first evidence; 0 if that has another unit."""
    first = finding.evidence[0]
    return first.value or 0.0 if first.unit == "ns" else 0.0


def _fix_key(page: RuleName, finding: Finding) -> Hashable:
    """A key of the first fix and its line, equal for findings with the same fix; None of advice without a line."""
    if not finding.fixes or not (finding.site or finding.fixes[0].trial):
        return None
    first = finding.fixes[0]
    action = first.setting.action if first.setting else ""
    what = action or first.trial or (first.do, first.before, first.after)
    return what, action or finding.site or page.code, finding.per_sample, finding.unless_above


def _one(found: Sequence[Found]) -> Finding:
    """One finding with all evidence, edits and fixes of these, each once; as sure as the least sure of them."""
    (page, first), findings = found[0], [finding for _, finding in found]
    if len(findings) == 1:
        return first
    ns = sum(map(_ns, findings))
    several = len({page.id for page, _ in found}) > 1 and ns
    whole = (Evidence(f"One fix for all parts: {duration(round(ns))}/step.", ns, "ns"),) if several else ()
    return replace(
        first,
        evidence=tuple(dict.fromkeys((*(one for part in found for one in _evidence(page, *part)), *whole))),
        edits=tuple(edit for finding in findings for edit in finding.edits),
        fixes=_each_once(fix for finding in findings for fix in finding.fixes),
        confidence=least_sure(findings),
        basis=max((one.basis for one in findings), key=list(Basis).index),
        also=frozenset(other.id for other, _ in found) - {page.id},
    )


def least_sure(found: Iterable[Finding]) -> Confidence:
    """The confidence of the finding that is least sure."""
    return max((one.confidence for one in found), key=lambda one: list(Level).index(one.level))


def _evidence(page: RuleName, other: RuleName, part: Finding) -> tuple[Evidence, ...]:
    """Evidence of `part`: all of it if it is of the same rule, else its first sentence with the other rule's code."""
    if other.id == page.id:
        return part.evidence
    first = part.evidence[0]
    return (Evidence(f"{first.text.removesuffix('.')} ({other.code}).", first.value, first.unit),)


def _each_once(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Fixes without repeated actions; of two with the same action the one with an argument stays."""
    kept: dict[Hashable, Fix] = {}
    for fix in fixes:
        action = (fix.setting.action if fix.setting else "") or fix
        known = kept.get(action)
        if known is None or (known.setting and fix.setting and not known.setting.argument and fix.setting.argument):
            kept[action] = fix
    return tuple(kept.values())


def explained(worth: Sequence[Priced], replay: Replay) -> list[Priced]:
    """The findings to drop: first those that only say where time goes (`unless_above`) and that save less than half as
    much once the others are fixed; then those that name no fix, if others explain them or edit most of their time.
    Findings per sample save nothing of the step: they are neither dropped nor explain others."""
    named = [one for one in worth if not one.finding.per_sample]
    explained = _left_out([one for one in named if not one.finding.names_no_fix], replay)
    return explained + _left_out([one for one in named if one not in explained], replay, True)


def _left_out(worth: Sequence[Priced], replay: Replay, bounds: bool = False) -> list[Priced]:
    """Of findings with `unless_above` (`bounds`: of those that name no fix) the ones that the others explain. One at a
    line, whose time was recorded, is not explained by one of low confidence; none by those that come `after` it."""
    asked = [one for one in worth if (one.finding.names_no_fix if bounds else one.finding.unless_above)]
    codes = {one.page.code for one in asked}
    others = [one for one in worth if one not in asked and not one.finding.after & codes]
    sure = [one for one in others if one.finding.confidence.level is not Level.LOW]
    placed = [one for one in asked if one.finding.site is not None and not bounds]
    unplaced = [one for one in asked if one not in placed]
    return [*_explained_by(sure, placed, replay, bounds), *_explained_by(others, unplaced, replay, bounds)]


def _explained_by(others: Sequence[Priced], asked: Sequence[Priced], replay: Replay, bounds: bool) -> list[Priced]:
    """Those of `asked` that save much less once `others` are fixed, or that edit much of the same time."""
    causes = [edit for one in others for edit in one.finding.edits]
    if not causes or not asked:
        return []
    edits = [one.finding.edits for one in asked]
    alone, after = replay.savings(edits), replay.savings(edits, after=causes)
    touched = [replay.touched_share(some, causes) if bounds else 0.0 for some in edits]
    return [
        one
        for one, before, left, share in zip(asked, alone, after, touched, strict=True)
        if left.likely_ns < LEFT_SHARE * before.likely_ns or share > LEFT_SHARE
    ]
