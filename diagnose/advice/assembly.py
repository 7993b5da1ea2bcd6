"""The Diagnosis of a run, put together of what is known of its ranks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from diagnose.advice.rank_diagnosis import RankBrief, RankDiagnosis, StepTimes, merged_notes, risks_of_all
from diagnose.contracts.diagnosis import Diagnosis, MeasuredOps, Provenance, RankSummary, Source, Steps, StepTime
from diagnose.contracts.finding import RankedFinding, RulePage
from diagnose.contracts.trials import Report
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.timed_steps import Epoch, Slowdown
from diagnose.trace.manifest import Manifest
from diagnose.trace.measured import Measurements
from diagnose.trace.model import IntegrityNote, Peers


def of_ranks(
    said: RankDiagnosis,
    ranks: Sequence[RankBrief],
    integrity: Sequence[IntegrityNote],
    tool_version: str,
    manifest: Manifest | None = None,
    rules: Sequence[RulePage] = (),
    trials: Report | None = None,
) -> Diagnosis:
    """The Diagnosis of a run: of the rank that it is about, and of all in brief, that one too, in order of rank.

    `integrity` is what is wrong with their set.
    """
    shown, notes = said.sections, merged_notes({rank.index: rank.integrity for rank in ranks}, said.sections.rank)
    known = {
        **msgspec.structs.asdict(shown),
        "findings": tuple(_with_ranks(finding, ranks) for finding in shown.findings),
        "risks": risks_of_all([rank.risks for rank in ranks]),
        "integrity": (*integrity, *notes),
    }
    return Diagnosis(
        **known,
        tool_version=tool_version,
        provenance=_provenance(ranks, manifest),
        ranks=_summaries(ranks, said.peers),
        rules=tuple(rules),
        trials=trials,
    )


def measured_ops(found: Measurements | None) -> MeasuredOps | None:
    """How much of changed ops was measured."""
    if found is None:
        return None
    return MeasuredOps(found.count, len({one.spec for one in found.ops}) - found.count, found.seconds)


def slowest(ranks: Sequence[RankBrief]) -> RankBrief:
    """The rank with the longest median step; the first of several."""
    return max(ranks, key=lambda rank: statistics.median(rank.steps.times_ns) if rank.steps else -1)


def _with_ranks(finding: RankedFinding, ranks: Sequence[RankBrief]) -> RankedFinding:
    """The finding with all ranks on which its rule found something at the same place."""
    place = finding.rule, finding.site
    same = {rank.index for rank in ranks if place in [(found.rule, found.site) for found in rank.findings]}
    where = msgspec.structs.replace(finding.where, ranks=tuple(sorted(same)))
    return msgspec.structs.replace(finding, where=where)


def _provenance(ranks: Sequence[RankBrief], manifest: Manifest | None) -> Provenance:
    devices = {(device.name, device.index): device for rank in ranks for device in rank.provenance.devices}
    return Provenance(
        sources=tuple(
            Source(
                path=rank.provenance.path,
                format=rank.provenance.format,
                rank=rank.index,
                events=rank.provenance.events,
                bytes=rank.provenance.bytes,
                recorded=tuple(sorted(rank.provenance.recorded | rank.provenance.joined)),
                detail=rank.provenance.detail,
                from_detail=tuple(sorted(rank.provenance.joined)),
            )
            for rank in ranks
        ),
        devices=tuple(devices.values()),
        world_size=max((rank.provenance.world_size or 0 for rank in ranks), default=0) or None,
        backend=ranks[0].provenance.backend,
        framework=ranks[0].provenance.versions,
        manifest=manifest,
    )


def steps_of(one: RankDiagnosis, cost: Slowdown | None, epoch: Epoch | None) -> Steps | None:
    """The steps that the figures of a rank are of, and what recording them cost."""
    time, used = _step_time(one.steps), one.steps
    if used is None or time is None:
        return None
    whole = used.measure == Measure.WINDOW
    return Steps(
        recorded=used.recorded,
        used=0 if whole else len(used.numbers),
        numbers=() if whole else used.numbers,
        measure=used.measure,
        marker=one.provenance.step_marker,
        step_time_ns=time,
        unprofiled_step_time_ns=None if cost is None else cost.mean_ns,
        usual_step_time_ns=None if cost is None else cost.unprofiled_ns,
        overhead_ratio=None if cost is None else cost.ratio,
        size_ratio=1.0 if cost is None else cost.size,
        epoch=epoch,
        unrecorded=None if cost is None else cost.unrecorded,
    )


def _summaries(ranks: Sequence[RankBrief], peers: Peers | None) -> tuple[RankSummary, ...]:
    places = {} if peers is None else {rank: at for at, rank in enumerate(peers.ranks)}
    return tuple(_compared(one, peers, places.get(one.index)) for one in ranks)


def _compared(one: RankBrief, peers: Peers | None, at: int | None) -> RankSummary:
    """A rank, with what it computes and waits if it is among those compared, at this position."""
    alone = RankSummary(
        rank=one.index,
        step_time_ns=_step_time(one.steps),
        breakdown=one.breakdown,
        times_ns=one.steps.times_ns if one.steps else (),
        host=one.host,
        findings=one.findings[: one.worth_a_line],
    )
    if peers is None or at is None:
        return alone
    count = len(peers.steps)
    computing, waiting = (round_half_up(int(ns[at].sum()), count) for ns in (peers.compute_ns, peers.waited_ns))
    return msgspec.structs.replace(alone, computing_ns=computing, waiting_ns=waiting if len(peers.met) else None)


def _step_time(steps: StepTimes | None) -> StepTime | None:
    times = steps.times_ns if steps else ()
    if not times:
        return None
    return StepTime(round(statistics.median(times)), round_half_up(sum(times), len(times)), min(times), max(times))
