"""What is known of one rank: all of it, and in brief, as it crosses processes where there are many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from diagnose.contracts.diagnosis import RankFinding
from diagnose.contracts.finding import Outcome, RankedFinding, ReplayQuality, ShownRisk
from diagnose.contracts.job import JobSummary
from diagnose.contracts.pictures import Pictures
from diagnose.contracts.timeline import Timeline
from diagnose.facts.communication.peers import KeptSequence, kept
from diagnose.facts.core.breakdown import Breakdown
from diagnose.facts.core.host import HostTime
from diagnose.facts.digest import RankDigest, StepTimes
from diagnose.facts.run.timed_steps import Epoch, Slowdown
from diagnose.replay.critical_path import PathPart
from diagnose.trace.measured import Measurements
from diagnose.trace.model import IntegrityNote, Peers, Provenance

T = TypeVar("T")


@dataclass(frozen=True)
class RankDiagnosis:
    """A rank's facts and what the rules say of them."""

    digest: RankDigest
    findings: tuple[RankedFinding, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    replay: ReplayQuality | None = None
    slowdown: Slowdown | None = None
    epoch: Epoch | None = None  # What recording cost; None where that was not measured.
    timeline: Timeline | None = None
    pictures: Pictures | None = None
    critical_path: tuple[PathPart, ...] | None = None
    job: JobSummary | None = None
    peers: Peers | None = None  # What the other ranks tell, where it was looked at with that: they wait for this one.
    risks: tuple[ShownRisk, ...] = ()
    measured: Measurements | None = None


@dataclass(frozen=True)
class RankBrief:
    """What a Diagnosis says of a rank that it is not about: some kilobytes, and its collectives."""

    index: int
    provenance: Provenance  # Without groups: its sequence has them.
    integrity: tuple[IntegrityNote, ...]
    steps: StepTimes | None
    breakdown: Breakdown | None
    host: HostTime | None
    findings: tuple[RankFinding, ...]  # In order.
    worth_a_line: int  # So many findings from the first; the rest is minor.
    risks: tuple[ShownRisk, ...]
    sequence: KeptSequence | None  # None: there is nothing to compare with other ranks by.


def in_brief(one: RankDiagnosis, ranks: int) -> RankBrief:
    """A rank in brief, if there are so many ranks."""
    digest = one.digest
    found = sorted(one.findings, key=lambda some: some.minor)
    return RankBrief(
        index=digest.index,
        provenance=replace(digest.provenance, groups=()),
        integrity=digest.integrity,
        steps=digest.steps,
        breakdown=digest.breakdown,
        host=digest.host,
        findings=tuple(RankFinding(some.rule, some.code, some.title, some.site) for some in found),
        worth_a_line=sum(not some.minor for some in found),
        risks=one.risks,
        sequence=None if digest.sequence is None else kept(digest.sequence, ranks),
    )


def shared(brief: RankBrief, known: dict[object, Any]) -> RankBrief:
    """The brief, of whose notes and findings those that other ranks have too are held once, in `known`."""

    def once(values: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(known.setdefault(value, value) for value in values)

    return replace(brief, integrity=once(brief.integrity), findings=once(brief.findings))
