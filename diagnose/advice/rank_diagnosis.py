"""What is known of one rank: all of it, and in brief, as it crosses processes where there are many."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from diagnose.contracts.diagnosis import Absent, RankFinding, Sections
from diagnose.contracts.finding import Outcome, RankedFinding, Risk, RuleName, ShownRisk
from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.facts.communication.overlap import communication
from diagnose.facts.communication.peers import KeptSequence, kept
from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.breakdown import Breakdown, breakdown, launches
from diagnose.facts.core.host import HostTime, host_time
from diagnose.facts.core.idle import idle
from diagnose.facts.core.run import is_of_no_use
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.data.fetches import input_wait
from diagnose.facts.device.kernels import kernel_kinds, kernel_ops, kernels
from diagnose.facts.device.lost_time import achieved_flops
from diagnose.facts.device.memory import allocation_calls, memory
from diagnose.facts.device.transfers import copies
from diagnose.facts.host.functions import functions
from diagnose.facts.host.python import ops
from diagnose.facts.host.waits import syncs
from diagnose.facts.run.program import program
from diagnose.facts.run.quality import not_recorded
from diagnose.facts.run.time_attribution import time_attribution
from diagnose.trace.job import CollectiveSequence
from diagnose.trace.model import IntegrityNote, Peers, Provenance

T = TypeVar("T")
MOST_ROWS = 200  # Rows kept of a fact that is a list: the largest, which come first.


class StepTimes(Struct, frozen=True):
    """The used steps and how long they take."""

    recorded: int  # How many steps were recorded, used or not.
    numbers: tuple[int, ...]
    measure: Measure
    times_ns: tuple[int, ...]  # Of each used step.


class RankDiagnosis(Struct, frozen=True):
    """A rank's facts and what the rules say of them. Of ranks that are not shown some sections are enough."""

    sections: Sections
    provenance: Provenance
    steps: StepTimes | None = None
    sequence: CollectiveSequence | None = None  # None: there is nothing to compare with other ranks by.
    peers: Peers | None = None  # What the other ranks' recordings tell, if this one was analysed with them.

    @property
    def findings(self) -> tuple[RankedFinding, ...]:
        """What to fix, in order."""
        return self.sections.findings

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How each rule ended."""
        return self.sections.outcomes


def outline(facts: Facts) -> RankDiagnosis:
    """What a diagnosis needs of every rank of a job: step times and breakdown, without findings and other sections."""
    rank, used = facts.rank, optional(steps, facts)
    if used is None:
        return RankDiagnosis(Sections(rank=rank.index, integrity=rank.integrity), rank.provenance)
    return RankDiagnosis(
        Sections(
            rank=rank.index,
            integrity=(*rank.integrity, *(optional(not_recorded, facts) or ())),
            breakdown=optional(breakdown, facts),
            host=optional(host_time, facts),
        ),
        rank.provenance,
        StepTimes(used.recorded, used.numbers, used.measure, tuple(used.times_ns.tolist())),
        optional(collective_sequence, facts),
        rank.peers,
    )


def measured_sections(facts: Facts) -> dict[str, Any]:
    """Fields of Sections by name that facts alone give (no findings), and `absent`, the facts that are missing."""
    absent: list[Absent] = []

    def known(get: Callable[[Facts], T]) -> T | None:
        """The fact's value; None if the recording lacks it, which `absent` then lists."""
        try:
            return get(facts)
        except Missing as missing:
            if not is_of_no_use(missing, facts):
                absent.append(Absent(get.__name__, missing.what, missing.how_to_record_it))
            return None

    def largest(get: Callable[[Facts], tuple[T, ...]]) -> tuple[T, ...] | None:
        rows = known(get)
        return None if rows is None else rows[:MOST_ROWS]

    if known(steps) is None:
        return {"absent": tuple(absent)}
    return {
        "breakdown": known(breakdown),
        "idle": known(idle),
        "host": known(host_time),
        "kernels": largest(kernels),
        "kernel_kinds": largest(kernel_kinds),
        "kernel_ops": largest(kernel_ops),
        "launches": known(launches),
        "syncs": largest(syncs),
        "copies": known(copies),
        "input": known(input_wait),
        "communication": known(communication),
        "memory": known(memory),
        "allocation": known(allocation_calls),
        "ops": largest(ops),
        "functions": largest(functions),
        "program": optional(program, facts),
        "flops": known(achieved_flops),
        "spending": known(time_attribution),
        "absent": tuple(absent),
    }


class RankBrief(Struct, frozen=True):
    """What a Diagnosis says of a rank that it is not about: some kilobytes, and its collectives."""

    index: int
    provenance: Provenance  # Without groups: its sequence has them.
    integrity: tuple[IntegrityNote, ...]
    steps: StepTimes | None
    breakdown: Breakdown | None
    host: HostTime | None
    infers: bool  # Its program is known to be inference.
    findings: tuple[RankFinding, ...]  # In order.
    worth_a_line: int  # So many findings from the first; the rest is minor.
    risks: tuple[ShownRisk, ...]
    sequence: KeptSequence | None  # None: there is nothing to compare with other ranks by.


def in_brief(one: RankDiagnosis, ranks: int) -> RankBrief:
    """A rank in brief. `ranks`: how many there are: the more, the fewer steps are kept of each one's collectives."""
    known, found = one.sections, sorted(one.findings, key=lambda some: some.minor)
    return RankBrief(
        index=known.rank,
        provenance=replace(one.provenance, groups=()),
        integrity=known.integrity,
        steps=one.steps,
        breakdown=known.breakdown,
        host=known.host,
        infers=known.program is not None and known.program.infers,
        findings=tuple(RankFinding(some.rule, some.code, some.title, some.site) for some in found),
        worth_a_line=sum(not some.minor for some in found),
        risks=known.risks,
        sequence=None if one.sequence is None else kept(one.sequence, ranks),
    )


def shared(brief: RankBrief, known: dict[object, Any]) -> RankBrief:
    """The brief with notes and findings that are equal on other ranks as one object, for memory; `known` has them."""

    def once(values: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(known.setdefault(value, value) for value in values)

    return replace(brief, integrity=once(brief.integrity), findings=once(brief.findings))


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
    """One note for all ranks that have it; it says which ranks, and whose numbers it shows."""
    rank = shown if shown in notes else next(iter(notes))
    listed = ", ".join(map(str, list(notes)[:MOST_LISTED])) + ", ..." * (len(notes) > MOST_LISTED)
    who = "All ranks" if len(notes) == ranks else f"Rank{'s' * (len(notes) > 1)} {listed}"
    here = "" if len(set(notes.values())) == 1 else f" (the numbers are rank {rank}'s)"
    return replace(notes[rank], what=f"{who}{here}: {notes[rank].what}")


def shown_risks(found: Iterable[tuple[RuleName, Risk]], rank: int) -> tuple[ShownRisk, ...]:
    """The risks that rules found on a rank."""
    ranks = (rank,)
    return tuple(
        ShownRisk(page.id, page.code, one.title or page.title, ranks, one.evidence, one.confidence, one.fixes, one.site)
        for page, one in found
    )


def risks_of_all(ranks: Iterable[tuple[ShownRisk, ...]]) -> tuple[ShownRisk, ...]:
    """The risks of all ranks, in their order: what a rule says of several at the same place is one."""
    found: dict[tuple[object, ...], tuple[ShownRisk, set[int]]] = {}
    for one in (one for some in ranks for one in some):
        found.setdefault((one.rule, one.title, one.site), (one, set()))[1].update(one.ranks)
    return tuple(replace(first, ranks=tuple(sorted(on))) for first, on in found.values())
