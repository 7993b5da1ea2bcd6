"""What rules find in a run, on any rank or in all together, by what it would save."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from diagnose.contracts.finding import Outcome, OutcomeKind
from diagnose.contracts.watched_run import NotFound, RunBasis, RunFinding
from diagnose.facts.watched.base import OF_ALL_RANKS, RunFacts
from diagnose.rulekit import engine
from diagnose.rulekit.engine import LoadedRule, RuleSet
from diagnose.rulekit.testing import Said
from diagnose.trace.run_log import RunLog

WORTH_SHARE, WORTH_NS = 0.01, 1_000_000_000
"""Of the run, and in all: what costs less is no finding. A fix has to be worth the work, as those of recorded steps,
and what is shorter than a window of the log cannot be told from noise (our choice)."""

EXPLAINED = 0.7  # Of what a finding costs, the share that the finding costs which is why (our choice).
WHY = {"outlier_steps": "growing_pauses", "outside": "growing_pauses", "slower_steps": "straggler"}
"""Kinds of findings, and those that may tell them: outliers or pauses get longer, a rank holds up the others."""

Findings = tuple[tuple[RunFinding, ...], tuple[NotFound, ...]]
"""What is found, those first that would save most, and the rules by which nothing is."""


def findings(logs: Sequence[RunLog], earlier: Sequence[RunLog] = (), rules: RuleSet | None = None) -> Findings:
    """On all ranks. `earlier`: attempts of the first one, in order. Raises RuleError."""
    return by_rules(RunFacts(logs, earlier), engine.load(rules or RuleSet(), of_run=True))


def of_rank(log: RunLog) -> Findings:
    """On one rank by itself, by the rules that look at each."""
    loaded = engine.load(RuleSet(), of_run=True)
    return by_rules(RunFacts([log]), [one for one in loaded if not OF_ALL_RANKS.intersection(one.check.needs)])


def by_rules(run: RunFacts, loaded: Sequence[LoadedRule]) -> Findings:
    """What these rules find. One that cannot tell of the first rank says why."""
    each = [(log.rank, RunFacts([log])) for log in run.logs]
    found, others = list[RunFinding](), list[NotFound]()
    for rule in loaded:
        if OF_ALL_RANKS.intersection(rule.check.needs):
            some, why = _asked(run, rule)
        else:
            asked = [(rank, *_asked(facts, rule)) for rank, facts in each]
            some, why = _together([(rank, one) for rank, seen, _ in asked for one in seen]), asked[0][2]
        found += some
        others += [NotFound(rule.page.id, why)] if not some and why is not None else []
    return ranked([one for one in found if not _is_told(one, found)]), tuple(others)


def of_run(run: RunFacts, rule: LoadedRule) -> Said:
    """What a rule says of a drawn run."""
    found, others = by_rules(run, [rule])
    kind = OutcomeKind.FOUND if found else OutcomeKind.CANNOT_TELL if others and others[0].why else OutcomeKind.CLEAN
    outcome = Outcome(rule.page.id, rule.page.code, kind, "".join(one.why for one in others))
    return Said(outcome, (found[0].saving.low_ns / 1e6, found[0].saving.high_ns / 1e6) if found else None)


def ranked(found: Sequence[RunFinding]) -> tuple[RunFinding, ...]:
    """Those first that would save most."""
    return tuple(sorted(found, key=lambda one: -one.saving.likely_ns))


def _asked(run: RunFacts, rule: LoadedRule) -> tuple[list[RunFinding], str | None]:
    """What of it is worth telling: by its likely saving; what costs no time always is. And why nothing can be told of
    the rest, "" if nothing is wrong; None if the rule is about other runs."""
    outcome, said = engine.ask(run, rule)
    seen = [
        replace(one, kind=one.kind or rule.page.id, rule=rule.page.id) for one in said if isinstance(one, RunFinding)
    ]
    sound = [one for one in seen if one.saving.high_ns <= run.length_ns]
    found = [one for one in sound if is_worth(one, run.length_ns)]
    if outcome.outcome is OutcomeKind.CRASHED:
        return [], f"diagnose itself failed ({outcome.why.rpartition('(')[2].rstrip(')')})"
    if outcome.outcome is OutcomeKind.NOT_APPLICABLE:
        return [], None
    cannot = outcome.why if outcome.outcome is OutcomeKind.CANNOT_TELL else ""
    return found, "the log contradicts itself" if len(sound) < len(seen) else cannot


def is_worth(one: RunFinding, length_ns: int) -> bool:
    """Whether it is told, by its likely saving. What costs no time always is."""
    return one.saving.basis is RunBasis.NONE or one.saving.likely_ns >= max(WORTH_SHARE * length_ns, WORTH_NS)


def _is_told(one: RunFinding, found: Sequence[RunFinding]) -> bool:
    """Whether another finding tells why it is there."""
    why = max((other.saving.high_ns for other in found if other.kind == WHY.get(one.kind)), default=0)
    return why >= EXPLAINED * one.saving.likely_ns > 0


def _together(found: Sequence[tuple[int, RunFinding]]) -> list[RunFinding]:
    """One finding of each kind, of the rank that it costs most, with all ranks that have it."""
    by_kind = dict[tuple[str, str], list[tuple[int, RunFinding]]]()
    for rank, one in found:
        title = one.title if one.saving.basis is RunBasis.NONE else ""  # There may be several, as of several memories.
        by_kind.setdefault((one.kind, title), []).append((rank, one))
    worst = [max(some, key=lambda pair: pair[1].saving.likely_ns)[1] for some in by_kind.values()]
    on = [tuple(sorted(rank for rank, _ in some)) for some in by_kind.values()]
    return [replace(one, ranks=ranks) for one, ranks in zip(worst, on, strict=True)]
