"""Which collectives of FSDP repeat what others of the same step have done?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.communication.sharding import ShardTraffic, each_round, in_backward, shards, traffic
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.spans import host_spans
from diagnose.trace.enums import SpanKind

_COPY_OUT = "FSDP::all_gather_copy_out"


@dataclass(frozen=True)
class ScatteredRounds:
    """Gradients that FSDP reduces and scatters between two steps of the optimizer."""

    rounds: int
    """That do so for each step of the optimizer (the median); 0 if none does."""
    alike: bool
    """All reduce equally often and as many bytes: the same gradients. Never of a pipeline."""
    early: ShardTraffic
    """Reductions of all rounds but the last."""
    again: ShardTraffic
    """Gathers of all rounds but the first, where parameters stay gathered until the backward pass is over."""
    gradient_bytes: int | None
    """Of one round, before they are scattered; None unknown."""


@fact
def scattered_rounds(facts: Facts) -> ScatteredRounds:
    """Of the whole recording. Raises Missing without ops, and like the table of collectives."""
    found = shards(facts)
    reduces, whole = ~found.gathers, (found.turn > 0) & (found.turn < found.turns)
    last = np.full(found.turns + 1, -1)
    np.maximum.at(last, found.turn[reduces], found.round[reduces])
    first = np.full(found.turns + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, found.turn, found.round)
    seen, place = np.unique(found.round[reduces & whole], return_inverse=True)
    turn = found.turn[reduces & whole]
    calls = np.bincount(place.ravel(), minlength=len(seen))
    carried = np.bincount(place.ravel(), weights=found.bytes[reduces & whole], minlength=len(seen))
    pairs = np.unique(np.stack((turn, found.round[reduces & whole])), axis=1)
    counts = np.unique(pairs[0], return_counts=True)[1]
    kept = not (found.gathers & found.backward).any()
    known = len(seen) > 0 and bool((found.bytes[reduces & whole] >= 0).all())
    return ScatteredRounds(
        rounds=round(float(np.median(counts))) if len(counts) else 0,
        alike=len(seen) > 0
        and bool((calls == calls[0]).all() and (carried == carried[0]).all())
        and not bool((roles(facts) == Role.STAGE).any()),
        early=traffic(facts, found, reduces & (found.round < last[found.turn])),
        again=traffic(facts, found, found.gathers & kept & (found.round > first[found.turn])),
        gradient_bytes=round(float(np.median(carried))) if known else None,
    )


@dataclass(frozen=True)
class Regathers:
    """Parameters that FSDP gathers for the backward pass although it had gathered them for the forward pass."""

    traffic: ShardTraffic
    units: int
    """Gathers of a round for the backward pass (the median)."""
    forward_units: int
    """The same for the forward pass."""
    bytes: int | None
    """Of the parameters of these units, all ranks' parts together; None unknown."""


@fact
def regathers(facts: Facts) -> Regathers:
    """Of the whole recording. Raises Missing without ops, and like the table of collectives."""
    found = shards(facts)
    again = found.gathers & found.backward & np.isin(found.round, found.round[found.gathers & ~found.backward])
    forward = found.gathers & ~found.backward & np.isin(found.round, found.round[again])
    seen, place = np.unique(found.round[again], return_inverse=True)
    size = np.bincount(place.ravel(), weights=found.bytes[again], minlength=len(seen))
    copies = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: name.startswith(_COPY_OUT))
    copies = copies.where(in_backward(facts, copies.start_ns, copies.track))
    return Regathers(
        traffic=traffic(facts, found, again, copies.ids),
        units=each_round(found.round[again]),
        forward_units=each_round(found.round[forward]),
        bytes=round(float(np.median(size))) if len(seen) and (found.bytes[again] >= 0).all() else None,
    )
