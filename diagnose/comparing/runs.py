"""What of a Diagnosis is compared."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from diagnose.advice.timing import without_profiler
from diagnose.comparing.settings import settings
from diagnose.contracts.baseline import Baseline, GroupTime, KnownFinding, RankStep, Run
from diagnose.contracts.diagnosis import Diagnosis, RankSummary
from diagnose.contracts.finding import OutcomeKind, RankedFinding
from diagnose.contracts.job import JobSummary
from diagnose.reports import job_tables as jobs
from diagnose.trace.manifest import RankManifest
from diagnose.version import __version__

MOST_GROUPS = 32  # Of a job: those that hold ranks up longest.

LOOKED = (OutcomeKind.FOUND, OutcomeKind.CLEAN, OutcomeKind.NOT_APPLICABLE)


def baseline_of(diagnoses: list[Diagnosis]) -> Baseline:
    """One side of a comparison. Raises ValueError if nothing could be measured in one of them."""
    return Baseline(tool_version=__version__, runs=tuple(map(run_of, diagnoses)))


def middle(runs: Sequence[Run]) -> int:
    """The position of the run with the middle mean step, of two that of the lower one."""
    ranked = sorted(range(len(runs)), key=lambda at: statistics.fmean(runs[at].times_ns))
    return ranked[(len(runs) - 1) // 2]


def run_of(diagnosis: Diagnosis) -> Run:
    """What is compared of a recording. Raises ValueError if nothing could be measured."""
    known, told = diagnosis.steps, diagnosis.provenance
    if known is None:
        raise ValueError("Nothing in it could be measured.")
    own = next(rank for rank in diagnosis.ranks if rank.rank == diagnosis.rank)
    manifest = told.manifest
    ran = next((rank for rank in manifest.ranks if rank.rank == diagnosis.rank), None) if manifest else None
    return Run(
        started=manifest.started if manifest else None,
        format=next(source.format for source in told.sources if source.rank == diagnosis.rank),
        devices=tuple(device.name for device in told.devices),
        world_size=told.world_size,
        rank=diagnosis.rank,
        measure=known.measure,
        times_ns=own.times_ns,
        unprofiled_ns=() if ran is None else without_profiler(ran),
        samples_per_step=None if ran is None else _samples(ran),
        flops_per_step=None if diagnosis.flops is None else diagnosis.flops.flops,
        spending=diagnosis.spending or (),
        findings=tuple(map(_finding, diagnosis.findings)),
        looked=tuple(outcome.rule for outcome in diagnosis.outcomes if outcome.outcome in LOOKED),
        settings=settings(told, ran),
        ranks=tuple(map(_rank, diagnosis.ranks)) if len(diagnosis.ranks) > 1 else (),
        groups=() if diagnosis.job is None else tuple(_groups(diagnosis.job)),
    )


def _samples(ran: RankManifest) -> int | None:
    """That the DataLoader asked most gives per step; None where that is not known."""
    loader = max(ran.loaders, key=lambda loader: loader.asked_timed or 0, default=None)
    steps = 0 if ran.unprofiled is None else len(ran.unprofiled.wall_ns)
    if loader is None or not loader.batch_size or not loader.asked_timed or not steps:
        return None
    return round(loader.batch_size * loader.asked_timed / steps)


def _finding(found: RankedFinding) -> KnownFinding:
    return KnownFinding(
        rule=found.rule,
        code=found.code,
        title=found.title,
        site=found.site,
        low_ns=found.saving.low_ns,
        likely_ns=found.saving.likely_ns,
        high_ns=found.saving.high_ns,
        minor=found.minor,
    )


def _groups(job: JobSummary) -> Iterator[GroupTime]:
    for group in job.groups[:MOST_GROUPS]:
        label = " ".join(filter(None, (jobs.group_label(group), f"({jobs.group_place(job, group)})")))
        yield GroupTime(label=label, calls=group.calls, wait_ns=group.wait_ns, transfer_ns=group.transfer_ns)


def _rank(rank: RankSummary) -> RankStep:
    return RankStep(
        rank=rank.rank,
        step_ns=None if rank.step_time_ns is None else rank.step_time_ns.mean,
        computing_ns=rank.computing_ns,
        waiting_ns=rank.waiting_ns,
    )
