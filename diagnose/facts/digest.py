"""A rank in brief: every fact's value, or why it is missing. Bounded in size, so that it can cross processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from diagnose.facts.base import Facts, Missing
from diagnose.facts.breakdown import Breakdown, breakdown
from diagnose.facts.copies import Copies, copies
from diagnose.facts.host import HostTime, host_time
from diagnose.facts.idle import IdleShare, idle
from diagnose.facts.input import Input, input_wait
from diagnose.facts.kernels import Kernel, kernels
from diagnose.facts.launches import Launches, launches
from diagnose.facts.memory import AllocationCalls, Memory, allocation_calls, memory
from diagnose.facts.overlap import Communication, communication
from diagnose.facts.python import Op, PythonLine, ops, python_lines
from diagnose.facts.steps import Measure, steps
from diagnose.facts.syncs import Sync, syncs
from diagnose.trace.model import IntegrityNote, Provenance

T = TypeVar("T")

MOST_ROWS = 200
"""Rows kept of a fact that is a list: the largest, which come first."""


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
    """All that leaves a rank's process."""

    index: int
    provenance: Provenance
    integrity: tuple[IntegrityNote, ...]
    steps: StepTimes | None
    breakdown: Breakdown | None
    idle: tuple[IdleShare, ...] | None
    host: HostTime | None
    kernels: tuple[Kernel, ...] | None
    launches: Launches | None
    syncs: tuple[Sync, ...] | None
    copies: tuple[Copies, ...] | None
    input: Input | None
    communication: Communication | None
    memory: tuple[Memory, ...] | None
    allocation: AllocationCalls | None
    ops: tuple[Op, ...] | None
    python: tuple[PythonLine, ...] | None
    absent: tuple[Absent, ...]


def digest(facts: Facts) -> RankDigest:
    """The digest of a rank."""
    absent: list[Absent] = []

    def known(get: Callable[[Facts], T]) -> T | None:
        try:
            return get(facts)
        except Missing as missing:
            absent.append(Absent(get.__name__, missing.what, missing.how_to_record_it))
            return None

    def largest(get: Callable[[Facts], tuple[T, ...]]) -> tuple[T, ...] | None:
        rows = known(get)
        return None if rows is None else rows[:MOST_ROWS]

    used = known(steps)
    rank = facts.rank
    if used is None:
        nothing = {name: None for name in RankDigest.__dataclass_fields__ if name not in ("index", "provenance", "integrity")}
        return RankDigest(rank.index, rank.provenance, rank.integrity, **{**nothing, "absent": tuple(absent)})  # type: ignore[arg-type]
    return RankDigest(
        index=rank.index,
        provenance=rank.provenance,
        integrity=rank.integrity,
        steps=StepTimes(used.recorded, used.numbers, used.measure, tuple(used.times_ns.tolist())),
        breakdown=known(breakdown),
        idle=known(idle),
        host=known(host_time),
        kernels=largest(kernels),
        launches=known(launches),
        syncs=largest(syncs),
        copies=known(copies),
        input=known(input_wait),
        communication=known(communication),
        memory=known(memory),
        allocation=known(allocation_calls),
        ops=largest(ops),
        python=largest(python_lines),
        absent=tuple(absent),
    )
