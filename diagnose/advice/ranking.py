"""The order of findings: by what each would save after those above it have been fixed.

Some save next to nothing before others are fixed: a faster host helps only once the GPU does not hold it up. They come
last, with what each saves then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from diagnose.advice.merging import LEFT_SHARE, explained, least_sure
from diagnose.advice.pricing import Doubt, Doubtful, Priced, Step, confidence, likely_ns
from diagnose.contracts.finding import (
    Caution,
    Confidence,
    Evidence,
    Finding,
    Kind,
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
from diagnose.replay.saving import DOUBTFUL, Replay, Saving
from diagnose.trace.units import duration, durations_ns

WORTH_SHARE = 0.01  # Of the step: from here on a saving is worth a line of its own, below it is minor (our choice).
NOTHING_SHARE = 0.002  # A pattern whose fix saves less than this share of the step is no finding (our choice).
MOST_PER_RULE = 5  # Findings; if there are more, the last one stands for all the smaller ones.
HOLDS = {Level.HIGH: 1.0, Level.MEDIUM: 0.8, Level.LOW: 0.5}  # Of a saving, to order by (our choice).
BOUND = 0.5  # The same of what is likely of a bound: a cause that is known comes before it (our choice).
HIDDEN_TIMES = 2  # Hidden: worth a line once the findings above are fixed, and so many times what it is now.
NAMED_TIMES = 1.05  # The longest time that a finding names: more is saved only where it says why (our choice).
MOST_RANKED = 12  # Findings that are ordered by what they add; the few below keep the order of what they save alone.


class Ranked(Struct, frozen=True):
    """Findings in order, and those that cost nothing."""

    findings: tuple[RankedFinding, ...]  # Worth a line, then minor, then hidden ones; without places on the timeline.
    edits: tuple[tuple[Edit, ...], ...]  # What each was replayed as.
    costless: tuple[tuple[str, Saving], ...]  # (rule, what it would save) of each finding that was left out.
    together: Together | None  # Of the faults worth a line that are not of low confidence; None without any.
    faults_together: Together | None  # Of all faults that are worth a line; None without any.
    all_together: Together | None = None  # The same with all options, and with what pays only after them; None without.
    unpriced: tuple[str, ...] = ()  # Rules with findings that could not be priced, by a fault of ours.
    explained: tuple[str, ...] = ()  # Rules of the findings that were left out as others explain them.


NOTHING = Ranked((), (), (), None, None)


def ranked(
    found: Sequence[tuple[RuleName, Finding]],
    replay: Replay,
    used: Steps,
    rank: int,
    cautions: Sequence[Caution] = (),
    step: Step | None = None,
) -> Ranked:
    """Price and order the findings of one rank. `step`: the one that savings are of; None: the replayed one.
    Where that fails by a fault of ours, those are left out with which it fails."""
    recorded_ns = max(replay.quality.step_time_ns, 1)
    doubtful, where = Doubtful(replay, cautions), Where((rank,), used.numbers)
    step = step or Step(recorded_ns, recorded_ns, recorded_ns, doubt=replay.doubt)
    order = partial(_ordered, replay=replay, step=step, where=where, doubtful=doubtful)
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
    """All findings in their order, with savings: faults, options, those per sample, where to look, small, hidden."""
    savings = replay.savings([finding.edits for _, finding in found]) if found else []
    savings = [doubtful.bounded(finding, saving) for (_, finding), saving in zip(found, savings, strict=True)]
    both = zip(found, savings, strict=True)
    priced = [step.priced(page, one, saving, replay.changes(one.edits)) for (page, one), saving in both]
    nothing = [one for one in priced if one.alone.likely_ns < NOTHING_SHARE * step.ns]
    kept = _few_of_each_rule([one for one in priced if one not in nothing], replay, step)
    small = [one for one in kept if _minor(one, step)]
    worth = [one for one in kept if not _minor(one, step)]
    dropped = explained(worth, replay)
    worth = [one for one in worth if one not in dropped]
    alone = [one for one in worth if not one.finding.per_sample]
    placed = list[Priced]()
    for kind in Kind:
        some = [one for one in alone if one.finding.kind is kind]
        placed += chain(*_greedy(some, replay, step, doubtful, above=placed))
    hidden = _hidden([*small, *_few_of_each_rule(nothing, replay, step)], placed, replay, step, doubtful)
    hidden_findings = [one.finding for one in hidden]
    added = _added([*placed, *hidden], replay, step)
    placed, hidden = added[: len(placed)], added[len(placed) :]
    small += [one for one in placed if _minor(one, step)]
    placed = [one for one in placed if not _minor(one, step)]
    every = tuple(placed)
    last = sum(one.finding.kind is not Kind.WHERE_TO_LOOK for one in placed)
    placed[last:last] = [one for one in worth if one.finding.per_sample]  # Of another unit: after what saves time.
    placed += [one for one in small if one.finding not in hidden_findings] + hidden
    finished = tuple(_finished(one, place, step, where, doubtful, replay) for place, one in enumerate(placed, start=1))
    faulty = [
        (one, said)
        for one, said in zip(placed, finished, strict=True)
        if one.fixes and one.finding.kind is not Kind.OPTION and one.added and not said.minor
    ]
    sure = [one for one, said in faulty if said.sure]
    together = _together([one for one, _ in faulty], step)
    return Ranked(
        finished,
        tuple(one.finding.edits for one in placed),
        tuple((one.page.id, one.alone) for one in nothing if one.finding not in hidden_findings),
        together if len(sure) == len(faulty) else _together(_added(sure, replay, step), step),
        together,
        _together([*every, *hidden], step),
        explained=tuple(one.page.id for one in dropped),
    )


def _added(placed: Sequence[Priced], replay: Replay, step: Step) -> list[Priced]:
    """Each finding with what it saves after those above it, which count as fixed if they have a fix."""
    fixed, fixed_so_far = Fixed(), list[Fixed]()
    for one in placed:
        fixed_so_far.append(fixed.with_one(one))
        fixed = fixed_so_far[-1] if one.fixes else fixed
    before, with_added = step.ns, list[Priced]()
    for one, left_ns in zip(placed, _left(fixed_so_far, replay, step), strict=True):
        after = min(left_ns, before)
        gain_ns = likely_ns(one.finding, before - after)
        added = step.ranged(gain_ns, one.alone.high_ns, one.alone.basis, most_ns=one.most_ns)
        with_added.append(replace(one, added=added))
        before = after if one.fixes else before
    return with_added


def _together(placed: Sequence[Priced], step: Step) -> Together | None:
    """What those with a fix save together: the sum of what each adds, with the range of the basis of the largest."""
    some = [one.added for one in placed if one.fixes and one.added]
    if not some:
        return None
    likely_ns, high_ns = (sum(each) for each in zip(*((one.likely_ns, one.high_ns) for one in some), strict=True))
    found = step.ranged(likely_ns, high_ns, max(some, key=lambda one: one.likely_ns).basis)
    return Together(found.low_ns, found.likely_ns, found.high_ns)


class Fixed(Struct, frozen=True):
    """A set of fixes, as edits of the replay."""

    edits: tuple[Edit, ...] = ()
    phases: frozenset[str] = frozenset()  # In which no step is longer than the recorded ones any more.

    def with_one(self, one: Priced) -> Fixed:
        """What is fixed with the edits of this one as well, whether it names a fix or not."""
        return Fixed((*self.edits, *one.finding.edits), self.phases | {one.finding.phase})


def _minor(one: Priced, step: Step) -> bool:
    nothing = one.added is not None and one.added.likely_ns < NOTHING_SHARE * step.ns
    return nothing or one.alone.likely_ns < WORTH_SHARE * step.ns


def _few_of_each_rule(priced: list[Priced], replay: Replay, step: Step) -> list[Priced]:
    """At most MOST_PER_RULE findings of a rule, the last of them for all its smaller ones; by what they save alone."""
    of_rule: dict[str, list[Priced]] = {}
    for one in sorted(priced, key=lambda one: -one.alone.likely_ns):
        of_rule.setdefault(one.page.id, []).append(one)
    kept = [one for some in of_rule.values() for one in some[: MOST_PER_RULE - (len(some) > MOST_PER_RULE)]]
    for some in of_rule.values():
        if len(some) > MOST_PER_RULE:
            rest = _as_one([one.finding for one in some[MOST_PER_RULE - 1 :]])
            saving = replay.savings([rest.edits])[0]
            kept.append(step.priced(some[0].page, rest, saving, replay.changes(rest.edits)))
    return sorted(kept, key=lambda one: -one.alone.likely_ns)


def _as_one(rest: Sequence[Finding]) -> Finding:
    """Findings of one rule beyond the shown ones, merged to one."""
    first = rest[0]
    return replace(
        first,
        evidence=(Evidence(f"{len(rest)} more of these, the largest being:", len(rest)), *first.evidence),
        edits=tuple(edit for one in rest for edit in one.edits),
        confidence=least_sure(rest),
        host_bound=any(one.host_bound for one in rest),
    )


def _greedy(
    priced: list[Priced], replay: Replay, step: Step, doubtful: Doubtful, above: Sequence[Priced] = ()
) -> tuple[list[Priced], list[Priced]]:
    """The findings in order once those `above` are fixed, and those that add little: take the best, price the others.
    The best is what likely adds most, given how sure it is, and whether it needs another fix first. Once nothing adds
    WORTH_SHARE any more, the rest are in the order of what they save alone."""
    rest, ordered = list(priced), list[Priced]()
    weight = {id(one.finding): HOLDS[_level(one, doubtful.doubts(one, step))] for one in rest}
    recorded = {id(one.finding): _recorded(one, priced, replay) for one in rest}
    while rest and len(ordered) < MOST_RANKED:
        gains = _gains(rest, [*above, *ordered], replay, step)
        holds = [weight[id(one.finding)] * BOUND**one.finding.names_no_fix for one in rest]
        expected = [gain * share for gain, share in zip(gains, holds, strict=True)]
        enough = [gain >= WORTH_SHARE * step.ns for gain in gains]
        saving = [one for one, much in zip(rest, enough, strict=True) if much]
        waited_for, first = {one.page.code for one in saving}, {id(one.finding) for one in saving}
        ready = [not one.finding.after & waited_for and not recorded[id(one.finding)] & first for one in rest]
        best = max(range(len(rest)), key=lambda at: (enough[at], ready[at], expected[at], rest[at].alone.likely_ns))
        if not enough[best]:
            break
        ordered.append(rest.pop(best))
    return ordered, sorted(rest, key=lambda one: -one.alone.likely_ns)


def _recorded(one: Priced, others: Sequence[Priced], replay: Replay) -> set[int]:
    """For a finding of low confidence without a line: ids of findings with a line that edit most of its time. They go
    before it, as their time was recorded. Empty for others."""
    if one.finding.confidence.level is not Level.LOW or one.finding.site is not None:
        return set()
    placed = [other for other in others if other.finding.site is not None]
    shares = (replay.touched_share(one.finding.edits, other.finding.edits) for other in placed)
    return {id(other.finding) for other, share in zip(placed, shares, strict=True) if share > LEFT_SHARE}


def _gains(some: Sequence[Priced], above: Sequence[Priced], replay: Replay, step: Step) -> list[int]:
    """What each of `some` likely saves, in ns per step, if it is fixed after all `above`, and none other of them."""
    fixed = reduce(Fixed.with_one, (one for one in above if one.fixes), Fixed())
    base, *left = _left([fixed, *(fixed.with_one(one) for one in some)], replay, step)
    return [likely_ns(one.finding, base - ns) for one, ns in zip(some, left, strict=True)]


def _left(every: Sequence[Fixed], replay: Replay, step: Step) -> list[int]:
    """What the step takes after each of these sets of fixes, in ns."""
    after = replay.after([(one.edits, Estimate.LIKELY) for one in every])
    return [step.left(ns, share, one.phases) for (ns, share), one in zip(after, every, strict=True)]


def _hidden(small: list[Priced], above: list[Priced], replay: Replay, step: Step, doubtful: Doubtful) -> list[Priced]:
    """Findings that save little now, but much once those in `above` are fixed."""
    if not small or not above or replay.quality.doubt >= DOUBTFUL:
        return []
    gains = _gains(small, above, replay, step)
    least = [max(WORTH_SHARE * step.ns, HIDDEN_TIMES * one.alone.likely_ns) for one in small]
    worth = [one for one, gain, ns in zip(small, gains, least, strict=True) if gain >= ns]
    return [replace(one, hidden=True) for one in _greedy(worth, replay, step, doubtful, above)[0]]


def _level(one: Priced, doubts: Sequence[Doubt]) -> Level:
    """The rule's level, one lower for each doubt, low if one decides; that of the saving's range if that is lower."""
    if any(doubt.decides for doubt in doubts):
        return Level.LOW
    level, saving = one.finding.confidence.level, one.added or one.alone
    for _ in doubts:
        level = level.lowered()
    by_range = confidence(saving.low_ns, saving.likely_ns, saving.high_ns, saving.basis)
    return max(level, by_range, key=list(Level).index)


def _evidence(one: Priced, step: Step) -> tuple[Evidence, ...]:
    """What the rule says; where more is saved than the longest time that it names, with a sentence on why."""
    evidence, stalled_ns = one.finding.evidence, step.longer_ns.get(one.finding.phase, 0)
    saved_ns = max(each.likely_ns for each in (one.alone, one.added or one.alone))
    named = [ns for each in evidence[: 1 if stalled_ns else None] for ns in durations_ns(each.text)]
    if not named or saved_ns - one.others_ns <= NAMED_TIMES * max(named):
        return evidence
    if not stalled_ns:
        shorter = f"The simulated step gets {duration(saved_ns)} shorter, as other work shortens too."
        return (*evidence, Evidence(shorter))
    stalls = f"stalls outside the recording bring it to {duration(saved_ns)}."
    return (replace(evidence[0], text=f"{evidence[0].text.removesuffix('.')}; {stalls}"), *evidence[1:])


def _finished(one: Priced, place: int, step: Step, where: Where, doubtful: Doubtful, replay: Replay) -> RankedFinding:
    """The finding as reports see it, at this place in the order (from 1); its spots on the timeline are still empty."""
    finding, alone, added, doubts = one.finding, one.alone, one.added, doubtful.doubts(one, step)
    why = "; ".join([finding.confidence.why, *(doubt.why for doubt in doubts)])
    return RankedFinding(
        rule=one.page.id,
        code=one.page.code,
        title=finding.title or one.page.title,
        kind=finding.kind,
        rank_order=place,
        where=where,
        evidence=_evidence(one, step),
        saving=PricedSaving(
            low_ns=alone.low_ns,
            likely_ns=alone.likely_ns,
            high_ns=alone.high_ns,
            basis=alone.basis,
            others_ns=one.others_ns,
            after_above_ns=None if added is None else added.likely_ns,
            after_above_range_ns=None if added is None else (added.low_ns, added.high_ns),
            replayed_ns=alone.replayed_ns,
        ),
        share_of_step=(added or alone).likely_ns / step.ns,
        confidence=Confidence(_level(one, doubts), why),
        fixes=finding.fixes,
        site=finding.site,
        also=tuple(sorted(finding.also)),
        minor=_minor(one, step),
        per_sample=finding.per_sample,
        hidden=(added.low_ns, added.likely_ns, added.high_ns) if added and one.hidden else None,
        changes=replay.changes(finding.edits),
        spots=(),
        spot_count=0,
    )
