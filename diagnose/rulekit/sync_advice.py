"""What rules on synchronisation say alike."""

from __future__ import annotations

from diagnose.contracts.finding import Evidence
from diagnose.trace.units import duration


def idle_after(idle_ns: int, what: str) -> tuple[Evidence, ...]:
    """How long the GPU is idle after some waits, per step; nothing where something else is why."""
    return (Evidence(f"The GPU is idle {duration(idle_ns)} a step after these {what}.", idle_ns, "ns"),) * bool(idle_ns)
