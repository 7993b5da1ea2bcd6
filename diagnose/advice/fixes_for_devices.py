"""Fixes that fit the devices that were used: rules advise for any GPU."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from diagnose.contracts.finding import Fix, RankedFinding, Safety
from diagnose.trace.model import Device

COMPILED_FROM = (7, 0)
"""Compute capability from which on torch.compile makes code for a GPU (Triton asks for it; AMD's are 8 and more)."""

_COMPILES = "wrap:torch.compile"


def followable(devices: Iterable[Device], findings: Iterable[RankedFinding]) -> tuple[RankedFinding, ...]:
    """The findings without fixes that these devices cannot follow."""
    known = [one.compute_capability for one in devices if any(one.compute_capability)]
    if not any(one < COMPILED_FROM for one in known):
        return tuple(findings)
    return tuple(msgspec.structs.replace(one, fixes=_without_compiler(one.fixes)) for one in findings)


def _without_compiler(fixes: tuple[Fix, ...]) -> tuple[Fix, ...]:
    left = tuple(one for one in fixes if not (one.trial or "").startswith(_COMPILES))
    nothing = Fix(
        "Compiling would do it, but torch.compile makes no code for this GPU: write it with fewer ops.",
        safety=Safety.NEEDS_JUDGEMENT,
        effort=3,
    )
    return left or (nothing,)
