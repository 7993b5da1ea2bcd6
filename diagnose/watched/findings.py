"""What rules find in a run, and in steps that were recorded meanwhile, by what it would save."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from msgspec.structs import replace

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Evidence, Outcome, OutcomeKind, RankedFinding
from diagnose.contracts.watched_run import (
    LEFT_OUT,
    RECORDED,
    NotFound,
    RankRun,
    RunBasis,
    RunFinding,
    RunSaving,
    WatchedRun,
)
from diagnose.facts.watched.log import OF_ALL_RANKS, RunFacts
from diagnose.replay.saving import Basis
from diagnose.rulekit import engine
from diagnose.rulekit.engine import LoadedRule, RuleSet
from diagnose.rulekit.testing import Said
from diagnose.trace.units import about, duration, number

WORTH_SHARE, WORTH_NS = 0.01, 1_000_000_000
"""Of the run, and in all: what costs less is no finding. A fix has to be worth the work, as those of recorded steps,
and what is shorter than a window of the log cannot be told from noise (our choice)."""

EXPLAINED = 0.7  # Share of a finding's cost from which on another finding explains it (our choice).
WHY = {"outlier_steps": "growing_pauses", "outside": "growing_pauses", "slower_steps": "straggler"}
"""Kinds of findings, and those that may explain them: growing pauses, or a rank that holds up the others."""

WAITS, LOADING = "data_wait", "DL"  # A finding of a run, and how the codes of rules on data loading begin.

Findings = tuple[tuple[RunFinding, ...], tuple[NotFound, ...]]
"""The findings, those first that would save most, and the rules by which nothing was found, with why."""


_load = lru_cache(maxsize=4)(partial(engine.load, of_run=True))  # While a run goes on, its rules are asked often.


def findings(run: RunFacts, rules: RuleSet | None = None, alone: bool = False) -> Findings:
    """Findings by the chosen rules, and why not by others. `alone`: without rules on all ranks. Raises RuleError."""
    chosen = _load(rules or RuleSet())
    known = _load(replace(rules, select=(), ignore=())) if rules else chosen
    names, of_all = {one.page.id for one in chosen}, OF_ALL_RANKS if alone else frozenset[str]()
    asked = [one for one in known if not of_all.intersection(one.check.needs)]
    found, others = by_rules(run, [one for one in asked if one.page.id in names])
    return found, (*others, *(NotFound(one.page.id, LEFT_OUT) for one in asked if one.page.id not in names))


def by_rules(run: RunFacts, loaded: Sequence[LoadedRule]) -> Findings:
    """Findings by these rules, without those that others explain; of rules without any, why, as of the first rank."""
    each = [RunFacts([log]) for log in run.logs]
    found, others = list[RunFinding](), list[NotFound]()
    for rule in loaded:
        of_all = OF_ALL_RANKS.intersection(rule.check.needs)
        asked = [_asked(one, rule, () if of_all else (one.logs[0].rank,)) for one in ([run] if of_all else each)]
        some, why = _together([one for seen, _ in asked for one in seen]), asked[0][1]
        found += some
        others += [NotFound(rule.page.id, why)] if not some and why is not None else []
    return ranked([one for one in found if not _is_explained(one, found)]), tuple(others)


def of_run(run: RunFacts, rule: LoadedRule) -> Said:
    """A rule's outcome on a drawn run, and its largest saving as (low, high) in ms; None if it finds nothing."""
    found, others = by_rules(run, [rule])
    why = "".join(one.why for one in others)
    kind = OutcomeKind.FOUND if found else OutcomeKind.CANNOT_TELL if why else OutcomeKind.CLEAN
    saved = (found[0].saving.low_ns / 1e6, found[0].saving.high_ns / 1e6) if found else None
    return Outcome(rule.page.id, rule.page.code, kind, why), saved


def ranked(found: Sequence[RunFinding]) -> tuple[RunFinding, ...]:
    """The findings, those first that would save most."""
    return tuple(sorted(found, key=lambda one: -one.saving.likely_ns))


def _asked(run: RunFacts, rule: LoadedRule, ranks: tuple[int, ...]) -> tuple[list[RunFinding], str | None]:
    """A rule's findings that are worth reporting, as of these ranks, and why there are no others: "" if all was
    looked at, None if the rule is not about such a run."""
    (outcome, said), name = engine.ask(run, rule), rule.page.id
    seen = [one for one in said if isinstance(one, RunFinding)]
    sound = [one for one in seen if one.saving.high_ns <= run.length_ns]
    found = [one for one in sound if is_worth(one, run.length_ns)]
    why: str | None = "the log contradicts itself" if len(sound) < len(seen) else ""
    if outcome.outcome is OutcomeKind.CRASHED:
        why = f"diagnose itself failed ({outcome.why.rpartition('(')[2].rstrip(')')})"
    elif outcome.outcome is OutcomeKind.CANNOT_TELL:
        why = outcome.why
    elif outcome.outcome is OutcomeKind.NOT_APPLICABLE:
        why = None
    return [replace(one, kind=one.kind or name, rule=name, ranks=ranks) for one in found], why


def is_worth(one: RunFinding, length_ns: int) -> bool:
    """Whether a finding is reported, by its likely saving; one that costs no time always is."""
    return one.saving.basis is RunBasis.NONE or one.saving.likely_ns >= max(WORTH_SHARE * length_ns, WORTH_NS)


def _is_explained(one: RunFinding, found: Sequence[RunFinding]) -> bool:
    cause_ns = max((other.saving.high_ns for other in found if other.kind == WHY.get(one.kind)), default=0)
    return cause_ns >= EXPLAINED * one.saving.likely_ns > 0


def _together(found: Sequence[RunFinding]) -> list[RunFinding]:
    """One finding of each kind, of the rank that it costs most, with all ranks that have it."""
    by_kind = dict[tuple[str, str], RunFinding]()
    for one in found:
        key = one.kind, one.title if one.saving.basis is RunBasis.NONE else ""  # There may be several, as of memories.
        other = by_kind.setdefault(key, one)
        if other is not one:
            worse = max(other, one, key=lambda each: each.saving.likely_ns)
            by_kind[key] = replace(worse, ranks=tuple(sorted((*other.ranks, *one.ranks))))
    return list(by_kind.values())


def with_recorded(run: WatchedRun, diagnoses: Mapping[str, Diagnosis]) -> WatchedRun:
    """The run with the findings of its recordings, which are by name; of one that several have, the largest. Waiting
    for data is left out where a recorded finding explains it."""
    found = dict[tuple[str, str], RunFinding]()
    for name, diagnosis in diagnoses.items():
        for one in diagnosis.findings:
            if one.minor or one.per_sample or not diagnosis.step_ns:
                continue
            scaled = _scaled(one, diagnosis.step_ns, run.ranks[0], name)
            key = one.code, "" if one.site is None else one.site.place
            if key not in found or scaled.saving.likely_ns > found[key].saving.likely_ns:
                found[key] = scaled
    length_ns = max(one.length_ns for one in run.ranks)
    sound = {key: one for key, one in found.items() if one.saving.high_ns <= length_ns and is_worth(one, length_ns)}
    explained_ns = max((one.saving.high_ns for (code, _), one in sound.items() if code.startswith(LOADING)), default=0)
    of_run = [one for one in run.findings if one.kind != WAITS or explained_ns < EXPLAINED * one.saving.likely_ns]
    return replace(run, findings=ranked((*of_run, *sound.values())))


def _scaled(one: RankedFinding, step_ns: int, run: RankRun, name: str) -> RunFinding:
    """A recorded finding for all steps of the run; where recorded steps are longer, its share of the usual step."""
    steps = sum(part.steps for part in run.over_time)
    usual_ns = sum(part.steps * part.step_ns for part in run.over_time) / max(steps, 1)
    times = steps * min(usual_ns / step_ns, 1.0)
    saving = one.saving
    low, likely, high = (int(max(ns, 0) * times) for ns in (saving.low_ns, saving.likely_ns, saving.high_ns))
    evidence = sorted(one.evidence, key=lambda evidence: not evidence.primary)[:1]
    seen = (
        f"In {name}, a fix would save {about(saving.likely_ns)} of a step of {duration(step_ns)}."
        f" The run has {number(steps)} steps of {duration(usual_ns)}."
    )
    thumb = RunBasis.RULE_OF_THUMB if saving.basis is Basis.RULE_OF_THUMB else RunBasis.REPLAYED
    priced = RunSaving(low, likely, high, RunBasis.AT_MOST if saving.basis.is_bound else thumb)
    change = one.fixes[0].do if one.fixes else "No fix is known."
    title, said = f"{one.title} ({one.code})", (*evidence, Evidence(seen))
    return RunFinding(title, said, priced, change, RECORDED, one.rule, one.where.ranks)
