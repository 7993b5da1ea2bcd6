"""The Diagnosis of a run, put together of what is known of its ranks."""

import re
import statistics
from collections.abc import Sequence

import numpy as np
from msgspec.structs import asdict, replace

from diagnose.advice.rank_diagnosis import RankBrief, RankDiagnosis, StepTimes, merged_notes, risks_of_all
from diagnose.contracts.diagnosis import Diagnosis, MeasuredOps, Provenance, RankSummary, Source, Steps, StepTime
from diagnose.contracts.finding import RankedFinding, RulePage
from diagnose.contracts.job import JobGroup, JobRank, JobStage, JobSummary, JobUnmatched
from diagnose.contracts.trials import Report
from diagnose.facts.communication.job_times import (
    CPU_NOISE,
    DEVICE_NOISE,
    GroupTimes,
    JobTimes,
    Unmatched,
    group_times,
    job_times,
    unmatched,
)
from diagnose.facts.communication.peers import peers
from diagnose.facts.core.base import Facts, once
from diagnose.facts.core.breakdown import round_half_up, shared_out
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.program import Workload
from diagnose.facts.run.timed_steps import Epoch, Slowdown
from diagnose.replay.job import Joined, joined_ranks
from diagnose.replay.job_path import job_path
from diagnose.trace.job import Job
from diagnose.trace.manifest import Manifest
from diagnose.trace.measured import Measurements
from diagnose.trace.model import IntegrityNote, Peers


@once
def job_summary(facts: Facts) -> JobSummary:
    """The job that a rank is of. Raises Missing if the other ranks are not known."""
    return summarised(peers(facts).job, joined_ranks(facts))


def summarised(job: Job, joined: Joined) -> JobSummary:
    """A job in brief. `joined`: its graph."""
    times, count, path = job_times(job), max(len(job.sequences[0].numbers), 1), job_path(job, joined)
    calls, met = (
        np.bincount(times.calls.rank[some], minlength=len(job.sequences))
        for some in (slice(None), times.calls.join_point >= 0)
    )
    ranks = tuple(_rank(job, times, at, bool(met[at] or not calls[at]), count) for at in range(len(job.sequences)))
    by_number = {one.rank: one for one in ranks}
    return JobSummary(
        step_ns=job.step_ns,
        steps=() if job.window else job.sequences[0].numbers,
        ranks=ranks,
        groups=tuple(_group(job, group_time, count) for group_time in group_times(job, times)),
        pipelines=tuple(
            tuple(_stage(by_number[rank], pipeline.rank_of) for rank in pipeline.ranks if rank in by_number)
            for pipeline in job.pipelines
        ),
        critical_path=path.parts,
        path_lane=path.lane,
        unmatched=tuple(_unmatched(one, count) for one in unmatched(job, times)),
        clocks=len({sequence.machine if sequence.machine >= 0 else -1 - sequence.rank for sequence in job.sequences}),
        clock_error_ns=job.clock_error_ns if any(not join_point.transfer for join_point in job.join_points) else None,
        compute_ns=tuple(map(tuple, times.compute_ns.tolist())),
        wait_ns=tuple(
            None if one.wait_ns is None else tuple(ns) for one, ns in zip(ranks, times.wait_ns.tolist(), strict=True)
        ),
        noise=CPU_NOISE if job.sequences[0].on_cpu else DEVICE_NOISE,
    )


def _rank(job: Job, times: JobTimes, at: int, known: bool, count: int) -> JobRank:
    """A rank's mean step; `at`: its index. `known`: for some of its calls, if any, it is known who waits for whom."""
    parts = (times.compute_ns, times.host_ns, times.wait_ns, times.transfer_ns, times.unmatched_ns)
    compute, host, wait, transfer, apart = shared_out([int(part[at].sum()) for part in parts], count)
    late = [round_half_up(int(ns), count) if known else None for ns in times.caused_ns[at]]
    waits: tuple[int | None, int | None] = (wait, transfer) if known else (None, None)
    return JobRank(job.sequences[at].rank, compute, host, *waits, apart, *late)


_KINDS = (
    ("ep", r"expert|(^|_)ep\Z"),
    ("tp", r"tensor|(^|_)tp\Z"),
    ("pp", r"pipe|(^|_)pp\Z"),
    ("cp", r"context|(^|_)cp\Z"),
    ("fsdp", r"fsdp|shard"),
    ("dp", r"data_parallel|replicate|(^|_)d?dp\Z"),
)
"""Descriptions of DeviceMesh, torchtitan and Megatron."""


def _group(job: Job, one: GroupTimes, count: int) -> JobGroup:
    """One process group's communication per step; `one` holds totals over `count` steps."""
    use = job.groups[one.group].use if one.group >= 0 else ""
    kind = next((kind for kind, words in _KINDS if re.search(words, use.lower())), "")
    return JobGroup(
        name=use,
        kind="p2p" if one.transfer else kind,
        ranks=one.ranks,
        operation=one.operation,
        calls=round_half_up(one.calls, count),
        bytes=None if one.bytes is None else round_half_up(one.bytes, count),
        ns=round_half_up(one.ns, count),
        wait_ns=round_half_up(one.wait_ns, count),
        transfer_ns=round_half_up(one.transfer_ns, count),
        bandwidth_bytes_per_s=one.bandwidth,
    )


def _stage(one: JobRank, rank_of: tuple[int, ...]) -> JobStage:
    stages = tuple(np.flatnonzero(np.array(rank_of) == one.rank).tolist())
    return JobStage(one.rank, stages, one.compute_ns, one.wait_ns)


def _unmatched(one: Unmatched, count: int) -> JobUnmatched:
    held = round_half_up(one.held_ns, count * max(len(one.ranks), 1))
    return JobUnmatched(one.why, one.operation, one.ranks, one.missing, one.calls, held)


def of_ranks(
    said: RankDiagnosis,
    ranks: Sequence[RankBrief],
    integrity: Sequence[IntegrityNote],
    tool_version: str,
    manifest: Manifest | None = None,
    rules: Sequence[RulePage] = (),
    trials: Report | None = None,
) -> Diagnosis:
    """The Diagnosis of the rank that it is about, with all ranks in brief. `integrity`: notes on the set of ranks."""
    shown, notes = said.sections, merged_notes({rank.index: rank.integrity for rank in ranks}, said.sections.rank)
    if shown.program is not None and shown.program.infers and not all(rank.infers for rank in ranks):
        shown = replace(shown, program=replace(shown.program, workload=Workload.UNKNOWN))  # Others may train.
    shown = replace(
        shown,
        findings=tuple(_with_ranks(finding, ranks) for finding in shown.findings),
        risks=risks_of_all([rank.risks for rank in ranks]),
        integrity=(*integrity, *notes),
    )
    places = {} if said.peers is None else {rank: at for at, rank in enumerate(said.peers.ranks)}
    return Diagnosis(
        **asdict(shown),
        tool_version=tool_version,
        provenance=_provenance(ranks, manifest),
        ranks=tuple(_compared(rank, said.peers, places.get(rank.index)) for rank in ranks),
        rules=tuple(rules),
        trials=trials,
    )


def measured_ops(found: Measurements | None) -> MeasuredOps | None:
    """How many ops whose changes were asked for were measured, and how many were not; None without a measurement."""
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
    return replace(finding, where=replace(finding.where, ranks=tuple(sorted(same))))


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
    return replace(alone, computing_ns=computing, waiting_ns=waiting if len(peers.met) else None)


def _step_time(steps: StepTimes | None) -> StepTime | None:
    """Median, mean, shortest and longest step; None without steps."""
    times = steps.times_ns if steps else ()
    if not times:
        return None
    return StepTime(round(statistics.median(times)), round_half_up(sum(times), len(times)), min(times), max(times))
