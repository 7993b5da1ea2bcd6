"""The order of findings: by what each would save after those above it have been fixed.

Some save next to nothing before others are fixed: a faster host helps only once the GPU does not hold it up. They come
last, with what each saves then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from diagnose.advice.doubts import Doubt, Doubtful
from diagnose.advice.pricing import Priced, Step, likely_ns
from diagnose.contracts.finding import (
    Caution,
    Confidence,
    Evidence,
    Finding,
    Level,
    PricedSaving,
    RankedFinding,
    RuleName,
    Together,
    Where,
)
from diagnose.facts.core.steps import Steps
from diagnose.failures import attempt, note
from diagnose.replay.edits import Edit, Estimate
from diagnose.replay.saving import DOUBTFUL, Basis, Replay, Saving

WORTH_SHARE = 0.01
"""From this share of the step on a saving is worth a line of its own (our choice); below it is minor."""

NOTHING_SHARE = 0.002
"""A pattern whose fix saves less than this share of the step, even as a high estimate, is no finding."""

LEFT_SHARE = 0.5  # Of a saving, that must be left for a finding that names no cause (our choice).
MOST_PER_RULE = 5  # Findings; if there are more, the last one stands for all the smaller ones.

HOLDS = {Level.HIGH: 1.0, Level.MEDIUM: 0.8, Level.LOW: 0.5}
"""Share of a likely saving to count on, by confidence, where findings are put in order (our choice)."""

BOUND = 0.5  # The same of what is likely of a bound: a cause that is known comes before it (our choice).

CHANGES_TIMES = 10
"""As much a fix that changes the training, as a larger batch does, has to save to stand before one that does not: what
is broken comes first (our choice)."""

HIDDEN_TIMES = 2
"""A saving is hidden if it is worth a line once the findings above are fixed, and so many times what it is now."""

MOST_RANKED = 12  # Findings that are ordered by what they add; the few below keep the order of what they save alone.


@dataclass(frozen=True)
class Ranked:
    """Findings in order, and those that cost nothing."""

    findings: tuple[RankedFinding, ...]
    """Those worth a line, then minor ones, then hidden ones; without their places on the timeline."""
    edits: tuple[tuple[Edit, ...], ...]  # What each was replayed as.
    costless: tuple[tuple[str, Saving], ...]  # (rule, what it would save) of each finding that was left out.
    together: Together | None  # Of those worth a line that are not of low confidence; None without any.
    all_together: Together | None  # Of all that are worth a line; None without any.
    unpriced: tuple[str, ...] = ()  # Rules with findings that could not be priced, by a fault of ours.
    explained: tuple[str, ...] = ()  # Rules of the findings that were left out as others explain them.


NOTHING = Ranked((), (), (), None, None)


def ranked(
    found: Sequence[tuple[RuleName, Finding]],
    replay: Replay,
    used: Steps,
    rank: int,
    cautions: Sequence[Caution] = (),
    unprofiled_ns: int | None = None,
    busy: float = 0.0,
) -> Ranked:
    """Price and order the findings of one rank. `unprofiled_ns`: the step without the profiler, if known.

    Where that fails by a fault of ours, those are left out with which it fails.
    `busy`: share of the step in which the training is known to compute on the CPU.
    """
    recorded_ns = max(replay.quality.step_time_ns, 1)
    step = Step(unprofiled_ns or recorded_ns, recorded_ns, busy)
    doubtful = Doubtful(replay, cautions)
    order = partial(_ordered, replay=replay, step=step, where=Where((rank,), used.numbers), doubtful=doubtful)
    try:
        return order(found)
    except Exception as error:
        sound = [one for one in found if attempt(f"what a finding of {one[0].id} would save", None, order, [one])]
        if len(sound) == len(found):
            note("the order of findings", error)
            sound = []
        unpriced = tuple(page.id for page, finding in found if (page, finding) not in sound)
        return replace(attempt("the order of findings", NOTHING, order, sound), unpriced=unpriced)


def _ordered(
    found: Sequence[tuple[RuleName, Finding]], replay: Replay, step: Step, where: Where, doubtful: Doubtful
) -> Ranked:
    savings = replay.savings([finding.edits for _, finding in found]) if found else []
    savings = [doubtful.bounded(finding, saving) for (_, finding), saving in zip(found, savings, strict=True)]
    priced = [step.priced(page, finding, saving) for (page, finding), saving in zip(found, savings, strict=True)]
    nothing = [one for one in priced if _costless(one, step)]
    kept = _few_of_each_rule([one for one in priced if one not in nothing], replay, step)
    small = [one for one in kept if _minor(one, step)]
    worth = [one for one in kept if not _minor(one, step)]
    explained = _explained(worth, replay)
    worth = [one for one in worth if one not in explained]
    placed = _greedy([one for one in worth if not one.finding.per_sample], replay, step, doubtful)
    hidden = _hidden([*small, *_few_of_each_rule(nothing, replay, step)], placed, replay, step)
    shown = [one.finding for one in hidden]
    for one in worth:
        if one.finding.per_sample:
            placed.insert(_place_of(one, placed, step, doubtful), one)
    placed += [one for one in small if one.finding not in shown] + hidden
    finished = tuple(
        _finished(one, place, step, where, doubtful.doubts(one, step), replay)
        for place, one in enumerate(placed, start=1)
    )
    fixing = [
        (one, said)
        for one, said in zip(placed, finished, strict=True)
        if not said.per_sample and not one.finding.names_no_fix
    ]
    sure = [one for one, said in fixing if said.sure]
    every = [one for one, said in fixing if said.sure or not said.minor]
    together = _all_of(sure, replay, step) if sure else None
    return Ranked(
        finished,
        tuple(one.finding.edits for one in placed),
        tuple((one.page.id, one.alone) for one in nothing if one.finding not in shown),
        together,
        together if len(every) == len(sure) else _all_of(every, replay, step),
        explained=tuple(one.page.id for one in explained),
    )


def _explained(worth: Sequence[Priced], replay: Replay) -> list[Priced]:
    """Those that only say where time is lost, if once the others are fixed less than half of it is left to save.

    Those that name no fix come last: what any other finding touches, or leaves to save, is told there. What saves
    nothing of the step itself explains nothing.
    """
    named = [one for one in worth if not one.finding.per_sample]
    explained = _left_out([one for one in named if not one.finding.names_no_fix], replay)
    return explained + _left_out([one for one in named if one not in explained], replay, True)


def _left_out(worth: Sequence[Priced], replay: Replay, bounds: bool = False) -> list[Priced]:
    """Of those that only say where time is lost, or of all `bounds`, the ones that the rest explains."""
    asked = [one for one in worth if (one.finding.names_no_fix if bounds else one.finding.unless_above)]
    causes = [edit for one in worth if one not in asked for edit in one.finding.edits]
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


def _place_of(one: Priced, placed: list[Priced], step: Step, doubtful: Doubtful) -> int:
    """After the last finding from which as much is to be expected."""

    def expected(other: Priced, gain: int) -> float:
        return gain * HOLDS[_level(other, doubtful.doubts(other, step))]

    alone = one.finding.changes_training  # What is broken comes first, whatever it adds to the rest.
    mine = expected(one, one.alone.likely_ns) / _times(one.finding)
    gains = [
        expected(other, other.alone.likely_ns if alone else (other.added_ns or 0)) / _times(other.finding)
        for other in placed
    ]
    return max((at for at, gain in enumerate(gains, start=1) if gain >= mine), default=0)


def _times(finding: Finding) -> float:
    """How many times as much it has to save to stand before others."""
    return CHANGES_TIMES if finding.changes_training else 1.0


def _all_of(some: Sequence[Priced], replay: Replay, step: Step) -> Together:
    (saving,) = replay.savings([[edit for one in some for edit in one.finding.edits]])
    saving = step.saving(saving, all(one.finding.host_bound for one in some))
    return Together(saving.low_ns, saving.likely_ns, saving.high_ns)


def _costless(one: Priced, step: Step) -> bool:
    return one.alone.high_ns < NOTHING_SHARE * step.ns or not one.alone.likely_ns


def _minor(one: Priced, step: Step) -> bool:
    return one.alone.likely_ns < WORTH_SHARE * step.ns


def _few_of_each_rule(priced: list[Priced], replay: Replay, step: Step) -> list[Priced]:
    """At most MOST_PER_RULE findings of a rule, all in order of what they save alone."""
    of_rule: dict[str, list[Priced]] = {}
    for one in sorted(priced, key=lambda one: -one.alone.likely_ns):
        of_rule.setdefault(one.page.id, []).append(one)
    kept = [one for some in of_rule.values() for one in some[: MOST_PER_RULE - (len(some) > MOST_PER_RULE)]]
    for some in of_rule.values():
        if len(some) > MOST_PER_RULE:
            rest = _together([one.finding for one in some[MOST_PER_RULE - 1 :]])
            kept.append(step.priced(some[0].page, rest, replay.savings([rest.edits])[0]))
    return sorted(kept, key=lambda one: -one.alone.likely_ns)


def _together(rest: Sequence[Finding]) -> Finding:
    """Findings of a rule as one, which shows the first of them."""
    first = rest[0]
    return replace(
        first,
        evidence=(Evidence(f"{len(rest)} more of these, the largest being:", len(rest)), *first.evidence),
        edits=tuple(edit for one in rest for edit in one.edits),
        confidence=max((one.confidence for one in rest), key=lambda one: list(Level).index(one.level)),
        host_bound=any(one.host_bound for one in rest),
    )


def _greedy(priced: list[Priced], replay: Replay, step: Step, doubtful: Doubtful) -> list[Priced]:
    """The findings in order, with what each adds to those above: take the best, fix it, ask the rest again.

    The best is what likely adds most, given how sure it is, and whether it changes the training or needs another fix
    first. Once nothing adds WORTH_SHARE any more, the rest follow in the order of what they save alone. What names no
    fix fixes nothing.
    """
    rest, ordered = list(priced), list[Priced]()
    holds = {
        id(one.finding): HOLDS[_level(one, doubtful.doubts(one, step))] * BOUND**one.finding.names_no_fix
        for one in rest
    }
    fixed: list[Edit] = []
    base = step.left(replay.quality.step_time_ns)
    gains = [one.alone.likely_ns for one in rest]
    while rest and len(ordered) < MOST_RANKED:
        if fixed:
            cases = [([*fixed, *one.finding.edits], Estimate.LIKELY) for one in rest]
            times = replay.step_times_ns(cases)
            gains = [likely_ns(one.finding, base - step.left(int(time))) for one, time in zip(rest, times, strict=True)]
        expected = [gain * holds[id(one.finding)] for one, gain in zip(rest, gains, strict=True)]
        enough = [gain >= WORTH_SHARE * step.ns for gain in gains]
        turn = _in_turn([one.finding for one in rest], gains, enough)
        waited_for = {one.page.code for one, much in zip(rest, enough, strict=True) if much}
        kept = [mine and not one.finding.after & waited_for for mine, one in zip(turn, rest, strict=True)]
        best = max(range(len(rest)), key=lambda at: (enough[at], kept[at], expected[at], rest[at].alone.likely_ns))
        if not enough[best]:
            left_over = [replace(one, added_ns=max(gain, 0)) for one, gain in zip(rest, gains, strict=True)]
            return ordered + sorted(left_over, key=lambda one: -one.alone.likely_ns / _times(one.finding))
        one, gain = rest.pop(best), gains.pop(best)
        ordered.append(replace(one, added_ns=gain))
        if not one.finding.names_no_fix:
            base -= gain
            fixed += one.finding.edits
    return ordered + rest


def _in_turn(some: Sequence[Finding], gains: Sequence[float], enough: Sequence[bool]) -> list[bool]:
    """Which of them need not wait until fixes that leave the training as it is are named. A bound names no fix."""
    others = [
        gain
        for one, gain, much in zip(some, gains, enough, strict=True)
        if much and not one.changes_training and not one.names_no_fix
    ]
    least = CHANGES_TIMES * max(others, default=0.0)
    return [not one.changes_training or gain >= least for one, gain in zip(some, gains, strict=True)]


def _hidden(small: list[Priced], above: list[Priced], replay: Replay, step: Step) -> list[Priced]:
    """Those that are worth a line once the findings above are fixed, each alone; the largest first."""
    if not small or not above or replay.quality.doubt >= DOUBTFUL:
        return []
    fixed = [edit for one in above if one.added_ns and not one.finding.names_no_fix for edit in one.finding.edits]
    savings = replay.savings([one.finding.edits for one in small], after=fixed)
    with_cold_caches = replace(step, busy=0.0)  # CACHE_WARMTH is of a whole step, these are of what is left of it
    found = []
    for one, saving in zip(small, savings, strict=True):
        then = with_cold_caches.priced(one.page, one.finding, saving).alone
        if then.likely_ns >= max(WORTH_SHARE * step.ns, HIDDEN_TIMES * one.alone.likely_ns):
            found.append(replace(one, added_ns=then.likely_ns, hidden=then))
    return sorted(found, key=lambda one: -(one.hidden.likely_ns if one.hidden else 0))


def _level(one: Priced, doubts: Sequence[Doubt]) -> Level:
    """The rule's, one level lower for each doubt; low where one decides."""
    level = one.finding.confidence.level
    if any(doubt.decides for doubt in doubts):
        return Level.LOW
    for _ in doubts:
        level = level.lowered()
    return level


def _finished(one: Priced, place: int, step: Step, where: Where, doubts: list[Doubt], replay: Replay) -> RankedFinding:
    finding, alone = one.finding, one.alone
    level = _level(one, doubts)
    after_ns = one.added_ns
    if after_ns is not None and one.hidden is None:
        after_ns = min(after_ns, alone.high_ns)
    return RankedFinding(
        rule=one.page.id,
        code=one.page.code,
        title=finding.title or one.page.title,
        rank_order=place,
        where=where,
        evidence=finding.evidence,
        saving=PricedSaving(
            low_ns=alone.low_ns,
            likely_ns=alone.likely_ns,
            high_ns=alone.high_ns,
            basis=finding.basis if alone.basis is Basis.REPLAYED else alone.basis,
            others_ns=one.others_ns,
            after_above_ns=after_ns,
            replayed_ns=alone.replayed_ns,
        ),
        share_of_step=alone.likely_ns / step.ns,
        confidence=Confidence(level, "; ".join([finding.confidence.why, *(doubt.why for doubt in doubts)])),
        fixes=finding.fixes,
        site=finding.site,
        minor=_minor(one, step),
        per_sample=finding.per_sample,
        hidden=None if one.hidden is None else (one.hidden.low_ns, one.hidden.likely_ns, one.hidden.high_ns),
        changes=replay.changes(finding.edits),
        spots=(),
        spot_count=0,
    )
