"""Risks of a run: what rules found that costs no time, of all ranks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from diagnose.contracts.finding import Risk, RuleName, ShownRisk


def shown(found: Iterable[tuple[RuleName, Risk]], rank: int) -> tuple[ShownRisk, ...]:
    """The risks that rules found on a rank."""
    return tuple(
        ShownRisk(
            rule=page.id,
            code=page.code,
            title=one.title or page.title,
            ranks=(rank,),
            evidence=one.evidence,
            confidence=one.confidence,
            fixes=one.fixes,
            site=one.site,
        )
        for page, one in found
    )


def of_all(ranks: Iterable[tuple[ShownRisk, ...]]) -> tuple[ShownRisk, ...]:
    """The risks of all ranks, in their order: what a rule says of several at the same place is one."""
    found: dict[tuple[object, ...], tuple[ShownRisk, set[int]]] = {}
    for one in (one for some in ranks for one in some):
        found.setdefault((one.rule, one.title, one.site), (one, set()))[1].update(one.ranks)
    return tuple(msgspec.structs.replace(first, ranks=tuple(sorted(on))) for first, on in found.values())
