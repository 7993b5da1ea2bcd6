"""Rules that are entries of the ledger of wasted work: a cause, what to say of it, and what a fix leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, TypeVar

import numpy as np

from diagnose.contracts.finding import Clean, Confidence, Evidence, Finding, Fix
from diagnose.facts.core.steps import Steps
from diagnose.facts.values.wasted_work import Cause, Ledger, Wasted
from diagnose.replay.edits import Between, Edit, Shorten, Times
from diagnose.replay.saving import Basis
from diagnose.rulekit.check import Check, Verdicts, rule
from diagnose.trace.units import duration, percent

T = TypeVar("T")
OfKind: TypeAlias = "T | Mapping[str, T]"
"""For all entries of a cause, or by their kind; that of other kinds has the key ""."""

WORTH_SHARE = 0.01  # Of the step, from which on waste is worth saying (our choice).
MOST_NAMED = 4  # Ops that are named (our choice).

NOTHING = Between(0.0, 0.0, 0.0)

GOES_WITH_IT = Between(1.0, 0.0, 0.0)
"""What is left of the time between ops, which goes if they are in a function that is not called any more, and of their
backward pass, which goes if it leads nowhere else (our choice)."""


def wasted(
    code: str,
    cause: Cause,
    *,
    says: OfKind[str],
    fixes: OfKind[tuple[Fix, ...]],
    confidence: OfKind[Confidence],
    left: OfKind[Between] = NOTHING,
    slower: OfKind[tuple[float, float, float]] | None = None,
    basis: Basis = Basis.REPLAYED,
    often: float = 0.0,
    host_only: bool = False,
) -> Check:
    """A rule of what is wasted for one cause. It finds entries with WORTH_SHARE of the step, in `often` of the steps.
    `says` has names in braces: {ops}, {times} (once, twice), {count}, {share} (of the work), {detail}, and {there}, the
    other line if it is another one. `left` is what stays of the wasted time. In its place `slower` tells how many times
    as long the rest takes then: low, likely, high. `host_only`: the device does the same without it."""

    def run(wasted_work: Ledger, steps: Steps) -> Verdicts:
        found = [one for one in wasted_work.of(cause) if one.steps_seen >= often * steps.count]
        ns = [one.work.host_ns if host_only else one.wasted_ns for one in found]
        large = [(one, lost) for one, lost in zip(found, ns, strict=True) if lost >= WORTH_SHARE * steps.mean_ns]
        if not large:
            yield Clean(
                f"{cause.value} takes at most {percent(max(ns, default=0) / max(steps.mean_ns, 1))} of the step"
            )
        doubts = [one.doubt for one, _ in large if one.doubt]
        if large and len(doubts) == len(large):
            raise doubts[0]
        for one, lost in large:
            if not one.doubt:
                yield Finding(
                    evidence=(Evidence(_sentence(one, lost, _of(says, one)), lost, "ns"),),
                    edits=_edits(one, _of(left, one), _of(slower, one) if slower else None, host_only),
                    fixes=_of(fixes, one),
                    confidence=_of(confidence, one),
                    basis=basis,
                    site=one.site,
                    host_bound=host_only,
                )

    return rule(code)(run)


def _of(by_kind: OfKind[T], one: Wasted) -> T:
    return by_kind.get(one.kind, by_kind[""]) if isinstance(by_kind, Mapping) else by_kind


def _sentence(one: Wasted, lost_ns: int, says: str) -> str:
    """The evidence: what of it is wasted, how much of how long, and whether the backward pass is in it."""
    names = [name.rpartition("evaluate_function: ")[2].removeprefix("aten::") for name in one.ops]
    more = len(names) - MOST_NAMED
    other = one.other_site if one.other_site != one.site else None
    said = says.format(
        ops=", ".join(names[:MOST_NAMED]) + f" and {more} more" * (more > 0),
        times={1: "once", 2: "twice"}.get(one.times, f"{one.times} times"),
        count=one.times,
        share=percent(one.share),
        detail=one.detail,
        there=f" at line {other.line} ({other.function})" if other and other.line else "",
    )
    of_all = f" of {duration(one.longest_ns)}" * (round(one.share, 2) < 1)
    back = " with the backward pass" * (one.back.host_ns > 0)
    return f"{said}: {duration(lost_ns)}{of_all} per step{back}."


def _edits(one: Wasted, left: Between, slower: tuple[float, float, float] | None, host_only: bool) -> tuple[Edit, ...]:
    """The recording without what is wasted. Where a part of the work stays, so do the calls that launch it."""
    if host_only:
        return (Shorten(one.work.ids, left),)
    if one.share < 1:
        rest = 1 - one.share
        keep = Between(*(min(rest * each, 1.0) for each in slower)) if slower else left.of_share(one.share)
        return (Shorten(np.concatenate((one.work.data_ids, one.back.data_ids)), keep),)
    return (
        Shorten(np.concatenate((one.work.ids, one.work.work_ids)), left),
        Shorten(np.concatenate((one.back.ids, one.back.work_ids)), GOES_WITH_IT),
        Shorten(Times(one.track, one.between), GOES_WITH_IT),
    )
