"""Each rank of a job in brief: how it spends its step, and what is found on it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis, RankSummary
from diagnose.contracts.job import JobRank, JobSummary
from diagnose.reports import job_tables as jobs
from diagnose.reports.sections import place
from diagnose.reports.words import CAUSES
from diagnose.trace.units import share

MOST_ACTIVITIES = 4
MOST_FINDINGS = 5
LEAST = 0.01  # Of the step, for an activity (our choice).


class RankView(Struct, frozen=True):
    """What is shown of a rank when it is chosen."""

    number: int
    name: str  # With its stages in a pipeline.
    times: tuple[tuple[str, str], ...]  # (what, how long) of its mean step.
    host: str  # What its training threads do; "" if that is not known.
    findings: tuple[tuple[str, str], ...]  # (title, source line or "") of what is found on it alone.


def each_rank(diagnosis: Diagnosis, job: JobSummary) -> Iterator[RankView]:
    """All ranks of the job, in order."""
    alone = {rank.rank: rank for rank in diagnosis.ranks}
    return (_view(job, rank, alone[rank.rank]) for rank in job.ranks if rank.rank in alone)


def _view(job: JobSummary, one: JobRank, alone: RankSummary) -> RankView:
    named = jobs.rank_told(job, one.rank)
    return RankView(
        number=one.rank,
        name=f"{named[:1].upper()}{named[1:]}",
        times=tuple(zip(jobs.RANK_COLUMNS, jobs.rank_cells(one), strict=True)),
        host=_host(alone),
        findings=tuple(
            (found.title, place(found.site) if found.site is not None else "")
            for found in alone.findings[:MOST_FINDINGS]
        ),
    )


def _host(alone: RankSummary) -> str:
    if alone.host is None:
        return ""
    ranked = sorted(alone.host.parts.items(), key=lambda pair: -pair[1])[:MOST_ACTIVITIES]
    shown = [(activity, ns) for activity, ns in ranked if ns >= LEAST * alone.host.step_ns]
    return ", ".join(f"{CAUSES[activity]} {share(ns, alone.host.step_ns)}" for activity, ns in shown)
