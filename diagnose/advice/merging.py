"""One action is one finding: what one change gains, with its parts; two ways to the same time with both fixes."""

from collections.abc import Hashable, Iterable, Sequence

from msgspec.structs import replace

from diagnose.contracts.finding import Evidence, Finding, Fix, Level, RuleName
from diagnose.fixes.setting import Safety
from diagnose.replay.saving import Basis, Replay
from diagnose.trace.units import duration

Found = tuple[RuleName, Finding]

MOST = 0.5  # Of the time that a finding is about: what touches so much of it is another way to the same (our choice).


def merged(found: Sequence[Found]) -> list[Found]:
    """The findings, each with the others that its first fix is for, as far as these are priced alike.

    Of several rules it is that of the finding with the longest time. Where the fix is no change of the whole training,
    and has no line, only those of one rule are merged.
    """
    groups: dict[Hashable, list[Found]] = {}
    for place, one in enumerate(found):
        fix = _fix(*one)
        groups.setdefault(place if fix is None else fix, []).append(one)
    ordered = [sorted(some, key=lambda one: -_ns(one[1])) for some in groups.values()]
    return [(some[0][0], _one(some)) for some in ordered]


def one_of_each_choice(found: Sequence[Found], replay: Replay) -> list[Found]:
    """The findings; of those that would compute the same less precisely the one that saves most, with all their fixes.

    Both together would save no more: the numbers of the same work have one precision.
    """
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
        told = replace(first, fixes=(*first.fixes, *one[1].fixes), also=first.also | one[1].also | {one[0].id})
        best[best.index(same[0])] = left[place] = (page, told)
        left.remove(one)
    return left


def _ns(finding: Finding) -> float:
    """What it is about takes; 0 where that is no time."""
    first = finding.evidence[0]
    return first.value or 0.0 if first.unit == "ns" else 0.0


def _fix(page: RuleName, finding: Finding) -> Hashable:
    """What fixes it, and where; None of advice without a line."""
    if not finding.fixes or not (finding.site or finding.fixes[0].trial):
        return None
    first = finding.fixes[0]
    action = first.setting.action if first.setting else ""
    what = action or first.trial or (first.do, first.before, first.after)
    return what, action or finding.site or page.code, finding.per_sample, finding.unless_above


def _one(found: Sequence[Found]) -> Finding:
    """Of all the evidence, edits and fixes, each once; as sure as the least sure of them."""
    (page, first), some = found[0], [finding for _, finding in found]
    if len(some) == 1:
        return first
    return replace(
        first,
        evidence=tuple(dict.fromkeys((*(one for part in found for one in _evidence(page, *part)), *_whole(found)))),
        edits=tuple(edit for finding in some for edit in finding.edits),
        fixes=_each_once(fix for finding in some for fix in finding.fixes),
        confidence=max((one.confidence for one in some), key=lambda one: list(Level).index(one.level)),
        basis=max((one.basis for one in some), key=list(Basis).index),
        also=frozenset(other.id for other, _ in found) - {page.id},
    )


def _whole(found: Sequence[Found]) -> tuple[Evidence, ...]:
    ns = sum(_ns(finding) for _, finding in found)
    several = len({page.id for page, _ in found}) > 1 and ns
    return (Evidence(f"One fix for all parts: {duration(round(ns))}/step.", ns, "ns"),) if several else ()


def _evidence(page: RuleName, other: RuleName, part: Finding) -> tuple[Evidence, ...]:
    """Of a part of another rule what it is about, with that rule's code."""
    if other.id == page.id:
        return part.evidence
    first = part.evidence[0]
    return (Evidence(f"{first.text.removesuffix('.')} ({other.code}).", first.value, first.unit),)


def _each_once(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Each action once: with an argument, as a mode of compiling, it does what it does without."""
    kept: dict[Hashable, Fix] = {}
    for fix in fixes:
        action = (fix.setting.action if fix.setting else "") or fix
        known = kept.get(action)
        if known is None or (known.setting and fix.setting and not known.setting.argument and fix.setting.argument):
            kept[action] = fix
    return tuple(kept.values())
