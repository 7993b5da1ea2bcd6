"""A job of many ranks, summed up: what its step is spent on, who waits for whom, in which groups."""

from __future__ import annotations

import re

import numpy as np

from diagnose.contracts.job import JobGroup, JobRank, JobStage, JobSummary, JobUnmatched
from diagnose.facts.communication.balance import CPU_NOISE, DEVICE_NOISE
from diagnose.facts.communication.job_times import GroupTimes, JobTimes, Unmatched, group_times, job_times, unmatched
from diagnose.facts.communication.peers import peers
from diagnose.facts.core.base import Facts, once
from diagnose.facts.core.breakdown import round_half_up, shared_out
from diagnose.replay.job import Joined, joined_ranks
from diagnose.replay.job_path import job_path
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import Job


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
        compute_ns=_rows(times.compute_ns),
        wait_ns=tuple(
            None if one.wait_ns is None else row for one, row in zip(ranks, _rows(times.wait_ns), strict=True)
        ),
        noise=CPU_NOISE if job.sequences[0].on_cpu else DEVICE_NOISE,
    )


def _rows(values: IntArray) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, values.tolist()))


def _rank(job: Job, times: JobTimes, at: int, known: bool, count: int) -> JobRank:
    """`known`: of some of its calls it is known who waits for whom, or it has none."""
    parts = (times.compute_ns, times.host_ns, times.wait_ns, times.transfer_ns, times.unmatched_ns)
    compute, host, wait, transfer, apart = shared_out([int(part[at].sum()) for part in parts], count)
    late = [round_half_up(int(ns), count) if known else None for ns in times.caused_ns[at]]
    return JobRank(
        rank=job.sequences[at].rank,
        compute_ns=compute,
        host_ns=host,
        wait_ns=wait if known else None,
        transfer_ns=transfer if known else None,
        unmatched_ns=apart,
        compute_late_ns=late[0],
        host_late_ns=late[1],
        held_late_ns=late[2],
    )


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
