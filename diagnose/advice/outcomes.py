"""How each rule ended, once its fixes were compared with what is in force and its findings were priced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diagnose.advice.ranking import Ranked
from diagnose.contracts.finding import Finding, Outcome, OutcomeKind, RuleName
from diagnose.facts.core.base import Failed, Missing


def unpriced(
    outcomes: Iterable[Outcome], before: Sequence[tuple[RuleName, Finding]], missing: Missing
) -> tuple[Outcome, ...]:
    """The outcomes where nothing can be replayed: a finding whose price is unknown is none."""
    priceless = {page.id for page, _ in before}
    kind = OutcomeKind.CRASHED if isinstance(missing, Failed) else OutcomeKind.CANNOT_TELL
    return tuple(
        Outcome(outcome.rule, outcome.code, kind, missing.what, missing.how_to_record_it)
        if outcome.outcome is OutcomeKind.FOUND and outcome.rule in priceless
        else outcome
        for outcome in outcomes
    )


def priced(
    outcomes: Iterable[Outcome],
    before: Sequence[tuple[RuleName, Finding]],
    after: Sequence[tuple[RuleName, Finding]],
    order: Ranked,
) -> tuple[Outcome, ...]:
    """The outcomes after findings were dropped, as all their fixes are in force, and the others were priced."""
    had, has = ({id_ for page, one in some for id_ in (page.id, *one.also)} for some in (before, after))
    return tuple(
        _in_force(outcome) if outcome.rule in had - has else _with_price(outcome, order) for outcome in outcomes
    )


def _in_force(outcome: Outcome) -> Outcome:
    return Outcome(outcome.rule, outcome.code, OutcomeKind.CLEAN, "all that could be set for it is set already")


def _with_price(outcome: Outcome, order: Ranked) -> Outcome:
    """A rule whose findings all cost nothing, or are explained by others, has found nothing; or no price is known."""
    if any(outcome.rule in finding.rules for finding in order.findings):
        return outcome
    if outcome.rule in order.unpriced:
        return Outcome(outcome.rule, outcome.code, OutcomeKind.CRASHED, "what its findings would save is not known")
    if outcome.rule in order.explained:
        return Outcome(outcome.rule, outcome.code, OutcomeKind.CLEAN, "the other findings explain what it found")
    costless = [saving for rule, saving in order.costless if rule == outcome.rule]
    if not costless:
        return outcome
    likely, most_ns = any(saving.likely_ns for saving in costless), max(saving.high_ns for saving in costless)
    most = f" at most {most_ns / 1e6:.3g} ms a step" if most_ns else " nothing"
    why = f"it is there, but fixing it would {'' if likely or not most_ns else 'likely save nothing, and '}save{most}"
    return Outcome(outcome.rule, outcome.code, OutcomeKind.CLEAN, why)
