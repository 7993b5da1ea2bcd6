"""Ranks side by side, as titled tables of a report: the job that they form, and each rank."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.job import JobGroup, JobRank, JobSummary, JobUnmatched
from diagnose.facts.communication.job_times import WhyUnmatched
from diagnose.replay.job_path import JobPathKind, JobPathPart
from diagnose.reports import job_words as jobs
from diagnose.reports.job_words import KINDS, OWN
from diagnose.reports.sections import MOST_ROWS, NO_SECTION, Row, Section, of_rank, timed, total, with_rows
from diagnose.trace.units import duration, share, size

MOST_JOB_RANKS, MOST_RANKS = 16, 64  # Ranks of a table in a report for people, of a job or not; JSON has all.
MOST_GROUPS = 8
MOST_PARTS = 6

WHY_UNMATCHED = {
    WhyUnmatched.NOT_RECORDED: "ranks of the group are not recorded",
    WhyUnmatched.ROOTED: "the root need not wait",
    WhyUnmatched.OTHER_SIDE_UNKNOWN: "the recording does not name the other rank",
    WhyUnmatched.DIFFERENT: "the ranks' recordings do not fit each other",
}
RANK_COLUMNS = ("compute", "host", "waiting", "transfer", "others wait for it")
ABOUT_RANKS = "Host: neither computing nor held up. Others wait for it: all of them together, until it comes last."


def sections(diagnosis: Diagnosis) -> Iterator[Section]:
    """The tables of a report, the most important first; empty ones are left out."""
    if diagnosis.steps is not None:
        yield from of_rank(diagnosis)
        yield from job_sections(diagnosis)


def job_sections(diagnosis: Diagnosis) -> Iterator[Section]:
    """The tables of the job, if there is one, its critical path first; then of the ranks. Empty ones are left out."""
    if diagnosis.job is not None:
        yield from with_rows(_TABLES, diagnosis.job)
    yield from with_rows({"ranks": _ranks}, diagnosis)


def path_rows(job: JobSummary) -> list[tuple[str, int]]:
    """(what, ns per step) of the job's critical path, longest first: the largest parts by themselves, the others by
    kind. They add up to the step."""
    out, rows, rest = jobs.standing_out(job), list[tuple[str, int]](), defaultdict[JobPathKind, list[JobPathPart]](list)
    for one in job.critical_path:
        if len(rows) < MOST_PARTS and one.share >= jobs.LEAST_PART and not jobs.is_common(one, out):
            rows.append((jobs.part_told(job, one), one.ns))
        else:
            rest[one.what].append(one)
    for kind, some in rest.items():
        count = len({one.rank for one in some if one.rank is not None})
        among = f", no rank stands out ({count:,} rank{'s' * (count != 1)})" * (kind in OWN)
        label = "other " * (kind is JobPathKind.TRANSFER) + KINDS[kind] + among
        rows.append((label, sum(one.ns for one in some)))
    return sorted(rows, key=lambda row: -row[1])


def _path(job: JobSummary) -> Section:
    rows = [timed(label, ns, job.step_ns) for label, ns in path_rows(job)]
    rows.append(total("the job's step (mean)" if job.steps else "the recorded window", job.step_ns))
    note = " ".join([*jobs.lead(job), jobs.clocks(job)]).strip()
    columns = ("", "per step" if job.steps else "time", "share")
    return Section(f"The job: critical path of its {jobs.unit(job)}", columns, rows, note)


def _stages(job: JobSummary) -> Section:
    """A row per stage, or stages that one rank has: its ranks, their mean compute and waiting per step, the slowest."""
    by_stages, ranks = defaultdict[tuple[int, ...], list[JobRank]](list), {rank.rank: rank for rank in job.ranks}
    for pipeline in job.pipelines:
        for one in pipeline:
            by_stages[one.stages].append(ranks[one.rank])
    several = any(len(some) > 1 for some in by_stages.values())
    rows = []
    for stages, some in sorted(by_stages.items()):
        slowest = max(some, key=lambda rank: rank.compute_ns)
        waits = [rank.wait_ns for rank in some if rank.wait_ns is not None]
        cells = (
            jobs.ranks_told([rank.rank for rank in some], 4),
            duration(sum(rank.compute_ns for rank in some) / len(some)),
            *(f"{duration(slowest.compute_ns)} (rank {slowest.rank})",) * several,
            duration(sum(waits) / len(waits)) if waits else "-",
        )
        rows.append(Row(jobs.stages_told(stages), cells))
    columns = ("", "ranks" if several else "rank", "compute", *("slowest",) * several, "waiting")
    return Section("The job's pipeline stages", columns, rows, f"{_mean(job)} of a stage's ranks.")


def _mean(job: JobSummary) -> str:
    return "Per step, mean" if job.steps else "Mean"


def _groups(job: JobSummary) -> Section:
    """A row per group's operation, or link of two ranks; the MOST_GROUPS at most that hold ranks up longest."""
    shown = job.groups[:MOST_GROUPS]
    sized = any(one.bytes is not None for one in shown)

    def cells(one: JobGroup) -> tuple[str, ...]:
        moved = "-" if one.bytes is None else size(one.bytes)
        rate = "-" if one.bandwidth_bytes_per_s is None else f"{size(one.bandwidth_bytes_per_s)}/s"
        times = (duration(ns) for ns in (one.ns, one.wait_ns, one.transfer_ns))
        return (f"{one.calls:,}", *(moved,) * sized, *times, *(rate,) * sized)

    rows = [Row(jobs.group_label(one), cells(one), place=jobs.group_place(job, one)) for one in shown]
    columns = ("", "calls", *("bytes",) * sized, "time", "wait", "transfer", *("bandwidth",) * sized)
    more = len(job.groups) > MOST_GROUPS
    cut = f"The {MOST_GROUPS} of {len(job.groups):,} that hold ranks up longest. " * more
    both = " Between two ranks, the sum of both sides." * any(group.kind == "p2p" for group in job.groups)
    note = f"{cut}{_mean(job)} of the group's ranks.{both} Wait and transfer are exposed."
    return Section("The job's process groups and links", columns, rows, note)


def _unmatched(job: JobSummary) -> Section:
    rows = [
        Row(
            jobs.operation(one.operation),
            (f"{one.calls:,}", jobs.ranks_told(one.ranks), duration(one.held_ns), _why_unmatched(one)),
        )
        for one in job.unmatched[:MOST_ROWS]
    ]
    note = "How much of that is waiting is not known: it counts as neither waiting nor transfer."
    columns = ("", "calls", "of ranks", "held up" + " per step" * bool(job.steps), "why")
    return Section("Calls that could not be matched", columns, rows, note, words=True)


def _why_unmatched(one: JobUnmatched) -> str:
    if one.why is WhyUnmatched.NOT_RECORDED and one.missing:
        return f"not recorded: rank{'s' * (len(one.missing) > 1)} {jobs.ranks_told(one.missing)}"
    return WHY_UNMATCHED[one.why]


def _job_ranks(diagnosis: Diagnosis, job: JobSummary) -> Section:
    """A row per rank of `_shown`: its mean step or window, then the times of RANK_COLUMNS."""
    shown, note = _shown(job), ABOUT_RANKS
    if len(shown) < len(job.ranks):
        cut = f"{len(shown)} of {len(job.ranks):,} ranks: those that are waited for most, and that wait most."
        note = f"{cut} {ABOUT_RANKS}"
    means = {rank.rank: duration(rank.step_time_ns.mean) for rank in diagnosis.ranks if rank.step_time_ns is not None}
    rows = [Row(f"rank {one.rank}", (means.get(one.rank, "-"), *rank_cells(one))) for one in shown]
    return Section("Ranks", ("", "step" if job.steps else "window", *RANK_COLUMNS), rows, note)


def _shown(job: JobSummary) -> list[JobRank]:
    """The ranks of a table by number. Of many: 1/2 by time on the path, 1/4 as most awaited, 1/4 as waiting most."""
    if len(job.ranks) <= MOST_JOB_RANKS:
        return list(job.ranks)
    on_path = Counter[int]()
    for part in job.critical_path:
        if part.rank is not None and part.what in OWN:
            on_path[part.rank] += part.ns
    by_path = sorted(job.ranks, key=lambda rank: -on_path[rank.rank])
    by_awaited = sorted(job.ranks, key=lambda rank: -rank.awaited_ns)
    by_wait = sorted(job.ranks, key=lambda rank: -(rank.wait_ns or 0))
    chosen = dict[int, JobRank]()
    for some, most in ((by_path, 1 / 2), (by_awaited, 3 / 4), (by_wait, 1)):
        for one in some:
            if len(chosen) < most * MOST_JOB_RANKS:
                chosen.setdefault(one.rank, one)
    return sorted(chosen.values(), key=lambda one: one.rank)


def rank_cells(one: JobRank) -> tuple[str, ...]:
    """A rank's cells, as RANK_COLUMNS names them: times per step, `-` where unknown, `≥` where calls are unmatched."""
    least = "≥ " * bool(one.unmatched_ns)
    waits = ["-" if ns is None else f"{least}{duration(ns)}" for ns in (one.wait_ns, one.transfer_ns)]
    caused = "-" if one.compute_late_ns is None else duration(one.awaited_ns)
    return (duration(one.compute_ns), duration(one.host_ns), *waits, caused)


def _ranks(diagnosis: Diagnosis) -> Section:
    """A row per rank: of a job its times; else step time, and shares of it or compute time, and waiting where known."""
    if diagnosis.job is not None:
        return _job_ranks(diagnosis, diagnosis.job)
    if len(diagnosis.ranks) < 2:
        return NO_SECTION
    measured = any(rank.breakdown for rank in diagnosis.ranks)
    compared = any(rank.computing_ns is not None for rank in diagnosis.ranks)
    rows = []
    for rank in diagnosis.ranks[:MOST_RANKS]:
        whole = rank.breakdown
        parts = (whole.compute_ns, whole.exposed_communication_ns, whole.idle_ns) if whole else ()
        shares = [share(ns, whole.step_ns) for ns in parts] if whole else ["-"] * 3
        times = [None if rank.step_time_ns is None else rank.step_time_ns.mean]
        others = [*(rank.computing_ns,) * (not measured), rank.waiting_ns] * compared
        first, *rest = ("-" if ns is None else duration(ns) for ns in (*times, *others))
        rows.append(Row(f"rank {rank.rank}", (first, *shares * measured, *rest)))
    columns = ["", "step", *("compute", "exposed communication", "idle") * measured]
    columns += [*("computing",) * (compared and not measured), *("waiting for others",) * compared]
    return Section("Ranks", tuple(columns), rows)


_TABLES = {
    "the critical path of the job": _path,
    "pipeline stages": _stages,
    "process groups": _groups,
    "calls that could not be matched": _unmatched,
}
