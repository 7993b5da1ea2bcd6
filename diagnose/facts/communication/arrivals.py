"""When did each rank come to the collectives, and how long did it compute? What ranks are compared by.

A collective lasts as long as the last rank lets the others wait for it: from one rank's recording, waiting and
transferring look the same. Every rank gives its `Arrivals`, and gets back what the others' tell of it, its `Peers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import device_time
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import host_spans, on_training_threads, used_step
from diagnose.facts.core.steps import Measure, steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.model import Context, Peers

MEETINGS = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Beginnings of the operations that no rank leaves before the last has come."""

MOST_COLLECTIVES = 20_000
"""Of one rank that are compared: about 1 MB."""

MOST_COMPARED = 2_000_000
"""Of all ranks together: some hundred MB while they are."""

APART_NS = 100_000
"""Ranks on one clock are not seen to leave a collective before another has come by more than this."""

SOUND_SHARE = 0.9
"""If less of the collectives are left after all have come, they are not the same ones."""

HOW = "Record all ranks at once, as diagnose profile does, and analyse their folder."


@dataclass(frozen=True)
class Arrivals:
    """The used steps of one rank, and its collectives in them. Times are Unix ns."""

    numbers: tuple[int, ...]
    """Of the used steps."""
    compute_ns: IntArray
    """Shape (steps,)."""
    threads: IntArray
    """Of the kernels that compute; 0 unknown. Shape (steps,)."""
    one_clock: bool
    """Recorded with the other ranks on one machine."""
    world_size: int
    """0 unknown."""
    machine: int
    """Tells machines apart; -1 unknown."""
    device: int
    """Index of the device that it computes on; -1 none or several."""
    ids: IntArray
    """Spans of the collectives. Shape (collectives,), as all below."""
    meeting: IntArray
    """What and between whom: position in `rendezvous`."""
    step: IntArray
    """Number of the step."""
    members: IntArray
    """Size of the process group; -1 unknown."""
    start_ns: IntArray
    end_ns: IntArray
    rendezvous: tuple[str, ...]
    """As they are called on every rank."""


@fact
def arrivals(facts: Facts) -> Arrivals:
    """Raises Missing without steps, and without device work on a rank that is not known to train on the CPU."""
    used, rank = steps(facts), facts.rank
    if used.measure is Measure.WINDOW:
        raise Missing("marked steps", "Call prof.step() after each step.")
    table = collective_table(facts)
    plain = [str(operation).replace("_", "").lower() for operation in table.operation]
    step = used_step(facts, table.ids)
    joint = np.array([one.startswith(MEETINGS) for one in plain], dtype=bool) & (step >= 0)
    order = np.flatnonzero(joint)[np.argsort(table.times.starts[joint], kind="stable")][:MOST_COLLECTIVES]
    called = [f"{plain[k]} {table.group_ranks[k]}" for k in order]
    rendezvous = {name: code for code, name in enumerate(dict.fromkeys(called))}
    return Arrivals(
        numbers=used.numbers,
        compute_ns=_computing(facts),
        threads=_threads(facts),
        one_clock=_on_one_machine(rank.context),
        world_size=rank.provenance.world_size or 0,
        machine=rank.provenance.machine,
        device=rank.provenance.devices[0].index if len(rank.provenance.devices) == 1 else -1,
        ids=table.ids[order],
        meeting=np.array([rendezvous[name] for name in called], dtype=np.int64),
        step=np.array(used.numbers)[step[order]],
        members=table.group_size[order],
        start_ns=rank.zero_unix_ns + table.times.starts[order],
        end_ns=rank.zero_unix_ns + table.times.ends[order],
        rendezvous=tuple(rendezvous),
    )


def _on_one_machine(context: Context | None) -> bool:
    """Whether all ranks of the run are known to be on one; recordings that do not say are of one machine."""
    return context is not None and context.rank.peers in (None, context.rank.world_size)


def computing(facts: Facts) -> Intervals:
    """When the device computed in the used steps; where the CPU trains, when its training threads were in ops.

    Raises Missing without device work on a rank that is not known to train on the CPU.
    """
    if not trains_on_cpu(facts):
        return device_time(facts).compute
    used = steps(facts)
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).times
    starting = on_training_threads(facts, host_spans(facts, SpanKind.COLLECTIVE)).times
    return intervals.clip(intervals.subtract(ops, starting), used.start_ns, used.end_ns)


def _computing(facts: Facts) -> IntArray:
    bounds = steps(facts).bounds_ns
    return intervals.covered(Intervals(bounds[:-1], bounds[1:]), computing(facts))


def _threads(facts: Facts) -> IntArray:
    """What kernels are asked to do in each used step does not depend on how fast the device is."""
    bounds, work = steps(facts).bounds_ns, device_work(facts)
    row = facts.rank.kernels.index.get_indexer(pd.Index(work.ids[work.work_class == WorkClass.COMPUTE]))
    kernels = facts.rank.kernels.iloc[row[row >= 0]]
    sizes = kernels[["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]].to_numpy().astype(np.int64)
    step = np.searchsorted(bounds, facts.rank.spans["start_ns"].to_numpy()[kernels.index.to_numpy()], side="right") - 1
    inside = (step >= 0) & (step < len(bounds) - 1)
    found = np.bincount(step[inside], weights=sizes.prod(axis=1)[inside], minlength=len(bounds) - 1)
    return found.astype(np.int64)


def compare(ranks: Mapping[int, Arrivals | None]) -> dict[int, Peers]:
    """What the others tell of each rank; empty if fewer than two ranks, or no step of all of them, can be compared."""
    known = {rank: one for rank, one in sorted(ranks.items()) if one is not None}
    common = sorted(set.intersection(*(set(one.numbers) for one in known.values()))) if known else []
    if len(known) < 2 or len(known) < len(ranks) or not common:
        return {}
    compute = [dict(zip(one.numbers, one.compute_ns.tolist(), strict=True)) for one in known.values()]
    compute_ns = np.array([[by_step[number] for number in common] for by_step in compute], dtype=np.int64)
    asked = [dict(zip(one.numbers, one.threads.tolist(), strict=True)) for one in known.values()]
    threads = np.array([sum(by_step[number] for number in common) for by_step in asked], dtype=np.int64)
    met = _met(known)
    waited_ns = met["wait_ns"].where(met["step"].isin(common), 0).groupby(met["rank"]).sum()
    return {
        rank: Peers(
            rank=rank,
            ranks=tuple(known),
            steps=tuple(common),
            machines=np.array([one.machine for one in known.values()], dtype=np.int64),
            devices=np.array([one.device for one in known.values()], dtype=np.int64),
            compute_ns=compute_ns,
            threads=threads,
            waited_ns=np.array([int(waited_ns.get(one, 0)) for one in known], dtype=np.int64),
            met=own["id"].to_numpy(),
            waits_ns=own["wait_ns"].to_numpy(),
        )
        for rank in known
        for own in [met[met["rank"] == rank].sort_values("id")]
    }


def _met(ranks: Mapping[int, Arrivals]) -> pd.DataFrame:
    """The collectives that all of their group were seen at, one row for each of them; none if they do not fit.

    Ranks come to the collectives of one name and group in one order, so within a step they are told by their number.
    """
    names: dict[str, int] = {}
    most = MOST_COMPARED // len(ranks)
    every = pd.concat([_rows(rank, one, names).head(most) for rank, one in ranks.items()], ignore_index=True)
    place = ["meeting", "step", "turn"]
    every["turn"] = every.groupby(["rank", "meeting", "step"]).cumcount()
    there = every.groupby(place)["rank"].transform("size")
    everyone = max(len(ranks), *(one.world_size for one in ranks.values()))
    met = every[there == every["members"].where(every["members"] > 0, everyone)].copy()
    if not all(one.one_clock for one in ranks.values()):
        met[["start_ns", "end_ns"]] = met[["start_ns", "end_ns"]].sub(_clock_ns(met, place), axis=0)
    groups = met.groupby(place)
    latest, earliest = groups["start_ns"].transform("max"), groups["end_ns"].transform("min")
    sound = latest <= earliest + APART_NS
    met["wait_ns"] = np.minimum(latest, met["end_ns"]) - met["start_ns"]
    return met if len(met) and sound.mean() >= SOUND_SHARE else met.iloc[:0]


def _rows(rank: int, one: Arrivals, names: dict[str, int]) -> pd.DataFrame:
    """`names`: the number of each meeting that has been seen on any rank."""
    numbers = np.array([names.setdefault(name, len(names)) for name in one.rendezvous], dtype=np.int64)
    return pd.DataFrame(
        {
            "rank": rank,
            "id": one.ids,
            "meeting": numbers[one.meeting] if len(numbers) else one.meeting,
            "step": one.step,
            "members": one.members,
            "start_ns": one.start_ns,
            "end_ns": one.end_ns,
        }
    )


def _clock_ns(met: pd.DataFrame, place: list[str]) -> pd.Series[int]:
    """What each rank's clock is ahead of the first of its group: all leave a collective at the same moment."""
    ahead = met["end_ns"] - met.groupby(place)["end_ns"].transform("first")
    return ahead.groupby([met["meeting"], met["rank"]]).transform("median").astype(np.int64)


def awaited(others: Mapping[int, Peers]) -> int | None:
    """The rank that waits least for the others: they wait for it. None if nothing is known of waiting."""
    known = next((one for one in others.values() if len(one.met)), None)
    return None if known is None else known.ranks[int(known.waited_ns.argmin())]


@fact
def peers(facts: Facts) -> Peers:
    """What the other ranks tell of this one. Raises Missing if no other was looked at, or none in the same steps."""
    if facts.rank.peers is None:
        raise Missing("the other ranks' recordings", HOW)
    return facts.rank.peers


def waits(facts: Facts) -> Intervals | None:
    """When this rank had come to a collective and the last one had not, a normal set; None if that is not known."""
    others = optional(peers, facts)
    if others is None or not len(others.met):
        return None
    start = facts.rank.spans["start_ns"].to_numpy()[others.met]
    return intervals.union(Intervals(start, start + others.waits_ns))
