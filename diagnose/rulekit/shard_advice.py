"""What rules on FSDP say alike: how its collectives are left out, and whether memory suffices for that."""

from __future__ import annotations

from diagnose.contracts.finding import Confidence, Level
from diagnose.facts.communication.shard_units import FineUnits
from diagnose.facts.communication.sharding import ShardTraffic
from diagnose.facts.device.head_room import HeadRoom
from diagnose.replay.edits import Between, Edit, Remove, Shorten, Times
from diagnose.trace.units import size

ALONE_LEFT = Between(0.6, 0.3, 0.0)
"""Of what the host takes for collectives where waiting is not known: ranks that differ meet later (our choice)."""


def without(traffic: ShardTraffic) -> tuple[Edit, ...]:
    """These collectives do not happen, nor what prepares them."""
    if not traffic.on_host:
        return Remove(traffic.host_ids), Remove(traffic.ids)
    waits = Shorten(Times(traffic.track, traffic.waits), ALONE_LEFT)
    if traffic.compared:
        return Remove(traffic.host_ids), Remove(traffic.ids), waits
    return Shorten(traffic.host_ids, ALONE_LEFT), Remove(traffic.ids), waits


def merged(units: FineUnits) -> tuple[Edit, ...]:
    """The units of each block are one: no collectives of the others, and no hooks."""
    needless = units.needless
    left = ALONE_LEFT if needless.on_host and not needless.compared else 0.0
    return (
        *(Shorten(Times(track, times), left) for track, times in units.host),
        Remove(needless.ids),
        Shorten(Times(needless.track, needless.waits), ALONE_LEFT),
    )


def suffices(room: HeadRoom | None, needed: int | None) -> bool | None:
    """Whether so much more memory is there; None if that is not known."""
    return None if room is None or needed is None else needed <= room.bytes


def memory_confidence(room: HeadRoom | None, needed: int | None) -> Confidence:
    """How sure it is that so much more memory can be taken, where it is not known to be too little."""
    if room is None or needed is None:
        return Confidence(Level.LOW, "whether memory suffices is not recorded: diagnose profile --memory tells")
    if room.on_host:
        return Confidence(Level.MEDIUM, f"{size(needed)} are little for this machine; what is free is not recorded")
    return Confidence(Level.MEDIUM, f"{size(needed)} are needed, and {size(room.bytes)} were never reserved")
