"""Findings of steps that were recorded while a run was watched: scaled to its steps, among those of the log."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Evidence, RankedFinding
from diagnose.contracts.watched_run import RECORDED, RankRun, RunBasis, RunFinding, RunSaving, WatchedRun
from diagnose.replay.saving import Basis
from diagnose.trace.units import about, duration, number
from diagnose.watched.findings import is_worth, ranked


def with_recorded(run: WatchedRun, diagnoses: Mapping[str, Diagnosis]) -> WatchedRun:
    """The run with findings of its recordings, by their names. Of one that several show the largest is told."""
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
    kept = [one for one in found.values() if one.saving.high_ns <= length_ns and is_worth(one, length_ns)]
    return msgspec.structs.replace(run, findings=ranked((*run.findings, *kept)))


def _scaled(one: RankedFinding, step_ns: int, run: RankRun, name: str) -> RunFinding:
    """Of all steps of the run. Where recorded steps are longer than these, as outliers are, by its share of them."""
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
    return RunFinding(
        f"{one.title} ({one.code})",
        (*evidence, Evidence(seen)),
        RunSaving(
            low,
            likely,
            high,
            RunBasis.AT_MOST if saving.basis.is_bound else _BASES.get(saving.basis, RunBasis.REPLAYED),
        ),
        one.fixes[0].do if one.fixes else "No fix is known.",
        RECORDED,
        one.rule,
        one.where.ranks,
    )


_BASES = {Basis.RULE_OF_THUMB: RunBasis.RULE_OF_THUMB}
