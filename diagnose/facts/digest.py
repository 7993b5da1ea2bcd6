"""A rank in brief: every fact's value, or why it is missing. Bounded in size, so that it can cross processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.overlap import Communication, communication
from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.breakdown import NO_DEVICE, Breakdown, breakdown
from diagnose.facts.core.host import HostTime, host_time
from diagnose.facts.core.idle import IdleShare, idle
from diagnose.facts.core.launches import Launches, launches
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.data.fetches import Input, input_wait
from diagnose.facts.device.achieved import AchievedFlops, achieved_flops
from diagnose.facts.device.copies import Copies, copies
from diagnose.facts.device.kernels import Kernel, KernelGroup, kernel_kinds, kernel_ops, kernels
from diagnose.facts.device.memory import AllocationCalls, Memory, allocation_calls, memory
from diagnose.facts.host.functions import FunctionTime, functions
from diagnose.facts.host.python import Op, ops
from diagnose.facts.host.syncs import Sync, syncs
from diagnose.facts.run.program import Program, program
from diagnose.facts.run.quality import not_recorded
from diagnose.facts.run.time_attribution import AttributedTime, time_attribution
from diagnose.trace.job import CollectiveSequence
from diagnose.trace.model import IntegrityNote, Provenance

T = TypeVar("T")

MOST_ROWS = 200  # Rows kept of a fact that is a list: the largest, which come first.


@dataclass(frozen=True)
class StepTimes:
    """The used steps and how long they take."""

    recorded: int
    numbers: tuple[int, ...]
    measure: Measure
    times_ns: tuple[int, ...]


@dataclass(frozen=True)
class Absent:
    """A fact that this recording cannot give."""

    fact: str
    what: str
    how_to_record_it: str


@dataclass(frozen=True)
class RankDigest:
    """All that leaves a rank's process. None: this recording cannot give it, `absent` says why."""

    index: int
    provenance: Provenance
    integrity: tuple[IntegrityNote, ...]
    absent: tuple[Absent, ...]
    steps: StepTimes | None = None
    breakdown: Breakdown | None = None
    idle: tuple[IdleShare, ...] | None = None
    host: HostTime | None = None
    kernels: tuple[Kernel, ...] | None = None
    kernel_kinds: tuple[KernelGroup, ...] | None = None
    kernel_ops: tuple[KernelGroup, ...] | None = None
    launches: Launches | None = None
    syncs: tuple[Sync, ...] | None = None
    copies: tuple[Copies, ...] | None = None
    input: Input | None = None
    communication: Communication | None = None
    memory: tuple[Memory, ...] | None = None
    allocation: AllocationCalls | None = None
    ops: tuple[Op, ...] | None = None
    functions: tuple[FunctionTime, ...] | None = None
    program: Program | None = None
    flops: AchievedFlops | None = None
    time_attribution: tuple[AttributedTime, ...] | None = None
    sequence: CollectiveSequence | None = None  # None: there is nothing to compare with other ranks by.


def outline(facts: Facts) -> RankDigest:
    """Of the digest, what is told of every rank of a job."""
    rank, used = facts.rank, optional(steps, facts)
    if used is None:
        return RankDigest(rank.index, rank.provenance, rank.integrity, absent=())
    return RankDigest(
        index=rank.index,
        provenance=rank.provenance,
        integrity=(*rank.integrity, *(optional(not_recorded, facts) or ())),
        absent=(),
        steps=StepTimes(used.recorded, used.numbers, used.measure, tuple(used.times_ns.tolist())),
        breakdown=optional(breakdown, facts),
        host=optional(host_time, facts),
        sequence=optional(collective_sequence, facts),
    )


def digest(facts: Facts) -> RankDigest:
    """The digest of a rank."""
    absent: list[Absent] = []

    def known(get: Callable[[Facts], T]) -> T | None:
        try:
            return get(facts)
        except Missing as missing:
            if missing != NO_DEVICE or not optional(trains_on_cpu, facts):
                absent.append(Absent(get.__name__, missing.what, missing.how_to_record_it))
            return None

    def largest(get: Callable[[Facts], tuple[T, ...]]) -> tuple[T, ...] | None:
        rows = known(get)
        return None if rows is None else rows[:MOST_ROWS]

    found = outline(facts)
    if known(steps) is None:
        return replace(found, absent=tuple(absent))
    found = replace(
        found,
        breakdown=known(breakdown),
        idle=known(idle),
        host=known(host_time),
        kernels=largest(kernels),
        kernel_kinds=largest(kernel_kinds),
        kernel_ops=largest(kernel_ops),
        launches=known(launches),
        syncs=largest(syncs),
        copies=known(copies),
        input=known(input_wait),
        communication=known(communication),
        memory=known(memory),
        allocation=known(allocation_calls),
        ops=largest(ops),
        functions=largest(functions),
        program=optional(program, facts),
        flops=known(achieved_flops),
        time_attribution=known(time_attribution),
    )
    return replace(found, absent=tuple(absent))


_NUMBERS = re.compile(r"\d[\d,.]*")
MOST_LISTED = 8  # Ranks that a note names one by one.


def merged_notes(ranks: Mapping[int, Sequence[IntegrityNote]], shown: int) -> list[IntegrityNote]:
    """The ranks' notes. Those that differ in numbers only are given once, as rank `shown` has it, with their ranks."""
    if len(ranks) == 1:
        return list(ranks[shown])
    alike: dict[tuple[str, str, int], dict[int, IntegrityNote]] = {}
    for index, notes in ranks.items():
        seen: Counter[tuple[str, str]] = Counter()
        for note in notes:
            text = _NUMBERS.sub("#", note.what), _NUMBERS.sub("#", note.effect)
            alike.setdefault((*text, seen[text]), {})[index] = note
            seen[text] += 1
    return [_labelled(notes, shown, len(ranks)) for notes in alike.values()]


def _labelled(notes: dict[int, IntegrityNote], shown: int, ranks: int) -> IntegrityNote:
    """One of the notes, by rank, with whose they are."""
    rank = shown if shown in notes else next(iter(notes))
    listed = ", ".join(map(str, list(notes)[:MOST_LISTED])) + ", ..." * (len(notes) > MOST_LISTED)
    who = "All ranks" if len(notes) == ranks else f"Rank{'s' * (len(notes) > 1)} {listed}"
    here = "" if len(set(notes.values())) == 1 else f" (the numbers are rank {rank}'s)"
    return replace(notes[rank], what=f"{who}{here}: {notes[rank].what}")
