"""One rank: its facts in brief, what the rules find in them, and the findings priced by replay and in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.steps import steps
from diagnose.facts.digest import digest
from diagnose.facts.run.garbage import garbage_collections
from diagnose.facts.run.recording_cost import recording_cost
from diagnose.facts.run.slowdown import slowdown
from diagnose.findings import advice, own_calls, ranking
from diagnose.findings.diagnosis import RankDiagnosis
from diagnose.findings.finding import Finding, Outcome, OutcomeKind, ReplayQuality, RuleName
from diagnose.findings.ranking import Ranked
from diagnose.replay.edits import Edit, Shorten
from diagnose.replay.saving import Replay
from diagnose.rulekit import engine
from diagnose.rulekit.engine import LoadedRule


def diagnose(facts: Facts, rules: Sequence[LoadedRule]) -> RankDiagnosis:
    """What is known of a rank. Without a replay nothing has a price, so that nothing is found."""
    said = engine.examine(facts, rules)
    context = facts.rank.context
    open_to_advice = advice.not_in_force(facts, said.findings)
    found = own_calls.at_their_place(context, open_to_advice)
    brief, recorder = advice.of_recorder(digest(facts)), facts.rank.provenance.format
    brief = replace(brief, integrity=(*brief.integrity, *map(engine.note, said.cautions)))
    cost = optional(slowdown, facts)
    try:
        replay = Replay(facts, _uncounted(facts), optional(recording_cost, facts))
    except Missing as missing:
        unpriced = advice.for_recorder(recorder, (_unpriced(one, missing) for one in said.outcomes))
        return RankDiagnosis(brief, outcomes=unpriced, slowdown=cost)
    unprofiled_ns = None if cost is None else cost.unprofiled_ns
    own = facts.rank.index, said.cautions, unprofiled_ns, trains_on_cpu(facts)
    order = ranking.ranked(found, replay, steps(facts), *own)
    quality = ReplayQuality(**vars(replay.quality), together=order.together)
    outcomes = advice.for_recorder(
        recorder, (_priced(_still_found(one, said.findings, found), order) for one in said.outcomes)
    )
    findings = advice.for_devices(facts.rank.provenance.devices, order.findings)
    return RankDiagnosis(brief, findings, outcomes, quality, cost, facts.rank.company)


def _uncounted(facts: Facts) -> tuple[Edit, ...]:
    """Garbage that is collected in recorded steps, and for so long in no other."""
    found = optional(garbage_collections, facts)
    return () if found is None or not len(found.once_ids) else (Shorten(found.once_ids, 0.0),)


def _unpriced(outcome: Outcome, missing: Missing) -> Outcome:
    """A finding whose price is unknown is none."""
    if outcome.outcome is not OutcomeKind.FOUND:
        return outcome
    how = missing.how_to_record_it
    return Outcome(outcome.rule, outcome.code, OutcomeKind.CANNOT_TELL, missing.what, how)


def _still_found(
    outcome: Outcome, before: Sequence[tuple[RuleName, Finding]], after: Sequence[tuple[RuleName, Finding]]
) -> Outcome:
    """A rule all of whose fixes are in force has found nothing."""
    had, has = ({page.id for page, _ in some} for some in (before, after))
    if outcome.rule not in had - has:
        return outcome
    return Outcome(outcome.rule, outcome.code, OutcomeKind.CLEAN, "all that could be set for it is set already")


def _priced(outcome: Outcome, order: Ranked) -> Outcome:
    """A rule whose findings all cost nothing has found nothing."""
    costless = [saving for rule, saving in order.costless if rule == outcome.rule]
    if not costless or any(one.rule == outcome.rule for one in order.findings):
        return outcome
    likely, most_ns = any(saving.likely_ns for saving in costless), max(saving.high_ns for saving in costless)
    most = f" at most {most_ns / 1e6:.3g} ms a step" if most_ns else " nothing"
    why = f"it is there, but fixing it would {'' if likely or not most_ns else 'likely save nothing, and '}save{most}"
    return Outcome(outcome.rule, outcome.code, OutcomeKind.CLEAN, why)
