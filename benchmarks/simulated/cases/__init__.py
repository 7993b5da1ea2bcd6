"""All cases."""

from __future__ import annotations

from benchmarks.simulated.cases.case import SIZES, Case
from benchmarks.simulated.cases.device import fusion, optimizers, precision
from benchmarks.simulated.cases.healthy import healthy
from benchmarks.simulated.cases.host import copies, data_loading, launches, memory, pauses, synchronisation
from benchmarks.simulated.cases.mixed import mixed
from benchmarks.simulated.cases.ranks import communication, ranks

FAMILIES = (
    data_loading,
    copies,
    synchronisation,
    launches,
    fusion,
    precision,
    optimizers,
    memory,
    communication,
    ranks,
    pauses,
    mixed,
    healthy,
)


def cases() -> tuple[Case, ...]:
    """All, family by family."""
    return tuple(case for family in FAMILIES for case in family())


__all__ = ["SIZES", "Case", "cases"]
