"""What a report says of a job of many ranks, as text: shared by the terminal, Markdown and the page."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np
from msgspec import Struct

from diagnose.contracts.job import JobGroup, JobRank, JobSummary, JobUnmatched
from diagnose.facts.communication.job_times import WhyUnmatched
from diagnose.replay.job_path import JobPathKind, JobPathPart
from diagnose.trace.units import clipped, duration, share, size

MOST_RANKS = 16  # Ranks of a table in a report for people; JSON has all.
MOST_GROUPS = 8
MOST_PARTS = 6
MOST_TOLD = 3  # Parts of the critical path that a sentence names.
LEAST_PART = 0.005  # Of the step, for a row of the critical path's table (our choice).
LITTLE = 0.01  # Of the step: ranks that wait for less are not said to lose by it (our choice).
EXPLAINS = 1 / 3  # Of the mean rank's waiting, for what a rank needs more to be said to cause it (our choice).

_COLLECTIVES = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
}
WHY_UNMATCHED = {
    WhyUnmatched.NOT_RECORDED: "ranks of the group are not recorded",
    WhyUnmatched.ROOTED: "the root need not wait",
    WhyUnmatched.OTHER_SIDE_UNKNOWN: "the recording does not name the other rank",
    WhyUnmatched.DIFFERENT: "the ranks' recordings do not fit each other",
}
KINDS = {
    JobPathKind.COMPUTE: "compute",
    JobPathKind.HOST: "host",
    JobPathKind.TRANSFER: "transfers",
    JobPathKind.UNMATCHED: "calls that could not be matched",
    JobPathKind.UNEXPLAINED: "not explained by the recordings",
}


def operation(name: str) -> str:
    """A collective as it is called in prose."""
    return next((words for start, words in _COLLECTIVES.items() if name.startswith(start)), clipped(name, 30))


def ranks_told(ranks: Sequence[int], most: int = 6) -> str:
    """Numbers of ranks, runs of them in short: "0 to 7", "0, 8, 16"."""
    if len(ranks) > 2 and all(b - a == 1 for a, b in pairwise(ranks)):
        return f"{ranks[0]} to {ranks[-1]}"
    more = f" and {len(ranks) - most:,} more" if len(ranks) > most else ""
    return ", ".join(map(str, ranks[:most])) + more


def rank_told(job: JobSummary, rank: int) -> str:
    """A rank, with its stages in a pipeline."""
    stages = next((one.stages for pipeline in job.pipelines for one in pipeline if one.rank == rank), ())
    told = f" (stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))})" if stages else ""
    return f"rank {rank}{told}"


def _among(job: JobSummary, name: str, ranks: Sequence[int]) -> str:
    who = "all ranks" if len(ranks) == len(job.ranks) else f"ranks {ranks_told(ranks)}"
    named = _named(name)
    return f"{named} ({who})" if named else who


def _named(name: str) -> str:
    """What a group is for; "" of names that torch.distributed gives by itself."""
    return clipped(name, 40) if name not in ("", "default_pg", "undefined") else ""


def part_told(job: JobSummary, part: JobPathPart) -> str:
    """What a piece of the critical path waits for."""
    if part.what is JobPathKind.TRANSFER and part.operation == "send":
        return f"transfer from rank {part.ranks[0]} to rank {part.ranks[1]}"
    if part.what is JobPathKind.TRANSFER:
        return f"{operation(part.operation)} of {_among(job, part.group, part.ranks)}"
    if part.rank is None:
        unrecorded = part.what is JobPathKind.UNMATCHED
        return f"{operation(part.operation)}, or ranks not recorded" if unrecorded else KINDS[part.what]
    who = rank_told(job, part.rank)
    if part.what is JobPathKind.UNMATCHED:
        return f"{who}: {operation(part.operation)}, not matched"
    if part.what is JobPathKind.UNEXPLAINED:
        return f"{who}: {KINDS[part.what]}"
    return f"{who}: {'compute' if part.what is JobPathKind.COMPUTE else 'host'}"


def _waited_for(job: JobSummary, part: JobPathPart) -> str:
    if part.rank is None and part.what is JobPathKind.UNMATCHED:
        return f"the {operation(part.operation)}, or for ranks that are not recorded"
    if part.rank is None:
        return f"the {part_told(job, part)}" if part.what is JobPathKind.TRANSFER else "what no recording explains"
    rank, _, stage = rank_told(job, part.rank).partition(" (")
    what = {
        JobPathKind.COMPUTE: "compute",
        JobPathKind.HOST: "host",
        JobPathKind.UNMATCHED: f"{operation(part.operation)} that could not be matched",
    }.get(part.what, "time that no recording explains")
    return f"{rank}'s {what}" + (f" ({stage}" if stage else "")


class PathRow(Struct, frozen=True):
    """A row of the critical path's table."""

    label: str
    ns: int
    place: str = ""


def path_rows(job: JobSummary) -> list[PathRow]:
    """The largest parts by themselves, the others by kind; they add up to the step."""
    out, shown, rest = standing_out(job), list[JobPathPart](), defaultdict[JobPathKind, list[JobPathPart]](list)
    for one in job.critical_path:
        if len(shown) < MOST_PARTS and one.share >= LEAST_PART and not _common(one, out):
            shown.append(one)
        else:
            rest[one.what].append(one)
    rows = [PathRow(part_told(job, one), one.ns) for one in shown]
    rows += [PathRow(_others(kind, some), sum(one.ns for one in some)) for kind, some in rest.items()]
    return sorted(rows, key=lambda row: -row.ns)


def _others(kind: JobPathKind, some: list[JobPathPart]) -> str:
    count = len({one.rank for one in some if one.rank is not None})
    if kind in OWN:
        return f"{KINDS[kind]}, no rank stands out ({count:,} rank{'s' * (count != 1)})"
    return f"other {KINDS[kind]}" if kind is JobPathKind.TRANSFER else KINDS[kind]


OWN = {JobPathKind.COMPUTE: "compute_ns", JobPathKind.HOST: "host_ns"}  # What ranks do by themselves.


def standing_out(job: JobSummary) -> dict[tuple[int, JobPathKind], int]:
    """Of ranks that keep others waiting by more compute, or more time on their host, how much more they take.

    Than the median of all other ranks, in ns, and beyond chance. Where waiting is not known, of all ranks on the
    critical path.
    """
    waits, found = mean_wait_ns(job), dict[tuple[int, JobPathKind], int]()
    if len(job.ranks) < 2 or (waits is not None and waits < LITTLE * job.step_ns):
        return found
    own = np.array([[one.compute_ns, one.host_ns] for one in job.ranks], dtype=np.float64)
    place, kinds = {one.rank: at for at, one in enumerate(job.ranks)}, list(OWN)
    for (rank, kind), path_ns in _own_on_path(job).items():
        others = np.delete(own, place[rank], axis=0)
        least = max(job.noise * np.median(others.sum(axis=1)), LITTLE * job.step_ns)
        more = float(own[place[rank], kinds.index(kind)] - np.median(others[:, kinds.index(kind)]))
        if more >= least and min(more, path_ns) >= EXPLAINS * (waits or 0):
            found[rank, kind] = round(more)
    return found


def _own_on_path(job: JobSummary) -> dict[tuple[int, JobPathKind], int]:
    found = defaultdict[tuple[int, JobPathKind], int](int)
    for one in job.critical_path:
        if one.rank is not None and one.what in OWN:
            found[one.rank, one.what] += one.ns
    return dict(found)


def _common(one: JobPathPart, out: dict[tuple[int, JobPathKind], int]) -> bool:
    """Own time of a rank that takes no more than the others do."""
    return one.what in OWN and (one.rank, one.what) not in out


def by_kind(job: JobSummary) -> dict[JobPathKind, int]:
    """The critical path's ns by kind."""
    found: dict[JobPathKind, int] = defaultdict(int)
    for one in job.critical_path:
        found[one.what] += one.ns
    return dict(found)


def mean_wait_ns(job: JobSummary) -> float | None:
    """Waiting of the mean rank; None if nothing is known of any."""
    known = [rank.wait_ns for rank in job.ranks if rank.wait_ns is not None]
    return sum(known) / len(known) if known else None


def unit(job: JobSummary) -> str:
    """What times are of."""
    return "step" if job.steps else "recorded window"


def per_step(job: JobSummary) -> str:
    """After a time, in a sentence."""
    return " a step" if job.steps else ""


def lost(job: JobSummary) -> str:
    """How long ranks wait for each other."""
    waits, whole = mean_wait_ns(job), job.step_ns
    unknown = any(rank.unmatched_ns for rank in job.ranks)
    if waits is None:
        return "For whom ranks wait is not known: their collectives could not be matched."
    least = "at least " * unknown
    if waits < LITTLE * whole and not unknown:
        return f"Ranks hardly wait for each other: {duration(waits)} of {duration(whole)}, on average."
    return f"A rank waits {least}{duration(waits)} of {duration(whole)} for others, on average ({share(waits, whole)})."


def awaited(job: JobSummary) -> str:
    """What the step waits for, the largest parts of its critical path in a sentence: ranks that stand out first."""
    out, common = standing_out(job), defaultdict[JobPathKind, int](int)
    parts = list[tuple[bool, int, str]]()
    for one in job.critical_path:
        if _common(one, out):
            common[one.what] += one.ns
        else:
            parts.append((one.what in OWN, one.ns, _waited_for(job, one)))
    for kind, ns in common.items():
        what = "compute" if kind is JobPathKind.COMPUTE else "host time"
        parts.append((False, ns, f"{what} in which no rank stands out"))
    large = [part for part in sorted(parts, reverse=True) if part[1] >= LEAST_PART * job.step_ns]
    shown = [f"{duration(ns)} for {what}" for _, ns, what in large[:MOST_TOLD]]
    if not shown:
        return ""
    return f"The {unit(job)} waits {' and '.join([', '.join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)}."


class Culprit(Struct, frozen=True):
    """The rank whose own time makes the step longer than other ranks' would."""

    rank: JobRank
    kind: JobPathKind  # COMPUTE or HOST.
    path_ns: int  # Of the critical path.


def culprit(job: JobSummary) -> Culprit | None:
    """The one that stands out by most on the critical path, where ranks are known to wait for each other."""
    out, on_path = standing_out(job), _own_on_path(job)
    if not out or mean_wait_ns(job) is None:
        return None
    rank, kind = max(out, key=lambda key: min(out[key], on_path[key]))
    return Culprit(next(one for one in job.ranks if one.rank == rank), kind, on_path[rank, kind])


def why(job: JobSummary) -> str:
    """In what the rank that the step waits for differs from the others; "" where it does not."""
    if (found := culprit(job)) is None:
        return ""
    has, middle = (
        getattr(found.rank, OWN[found.kind]),
        median(getattr(other, OWN[found.kind]) for other in job.ranks if other is not found.rank),
    )
    does = "computes" if found.kind is JobPathKind.COMPUTE else "is on its host, without computing, for"
    name = rank_told(job, found.rank.rank)
    return (
        f"{name[:1].upper()}{name[1:]} {does} {duration(has)}{per_step(job)}, the others {duration(middle)} (median)."
    )


def lead(job: JobSummary) -> list[str]:
    """The job in sentences: what it loses, what it waits for, and why."""
    return [text for text in (lost(job), awaited(job), why(job)) if text]


ABOUT_RANKS = "Host: neither computing nor held up. Others wait for it: all of them together, until it comes last."


def shown_ranks(job: JobSummary) -> tuple[list[JobRank], str]:
    """The ranks of a table in order, and what to know of it.

    Of many they are those that the step or others wait for, and that wait most.
    """
    if len(job.ranks) <= MOST_RANKS:
        return list(job.ranks), ABOUT_RANKS
    on_path = defaultdict[int, int](int)
    for part in job.critical_path:
        if part.rank is not None and part.what in OWN:
            on_path[part.rank] += part.ns
    by_path = sorted(job.ranks, key=lambda rank: -on_path[rank.rank])
    by_awaited = sorted(job.ranks, key=lambda rank: -rank.awaited_ns)
    by_wait = sorted(job.ranks, key=lambda rank: -(rank.wait_ns or 0))
    chosen = dict[int, JobRank]()
    for some, most in ((by_path, MOST_RANKS // 2), (by_awaited, 3 * MOST_RANKS // 4), (by_wait, MOST_RANKS)):
        for one in some:
            if len(chosen) < most:
                chosen.setdefault(one.rank, one)
    cut = f"{len(chosen)} of {len(job.ranks):,} ranks: those that are waited for most, and that wait most."
    return sorted(chosen.values(), key=lambda one: one.rank), f"{cut} {ABOUT_RANKS}"


def group_label(one: JobGroup) -> str:
    """What runs in a group, or two ranks."""
    if one.kind == "p2p":
        return f"rank {one.ranks[0]} → rank {one.ranks[1]}"
    return ", ".join(filter(None, (operation(one.operation), _named(one.name))))


def group_place(job: JobSummary, one: JobGroup) -> str:
    """Which ranks are in a group."""
    if one.kind == "p2p":
        return ""
    return "all ranks" if len(one.ranks) == len(job.ranks) else f"ranks {ranks_told(one.ranks)}"


def group_table(job: JobSummary) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and cells of the groups that hold ranks up longest; without what is not known of any."""
    shown = job.groups[:MOST_GROUPS]
    sized = any(one.bytes is not None for one in shown)
    heads = ("calls", *("bytes",) * sized, "time", "wait", "transfer", *("bandwidth",) * sized)
    return heads, [_group_cells(one, sized) for one in shown]


def _group_cells(one: JobGroup, sized: bool) -> tuple[str, ...]:
    carried = "-" if one.bytes is None else size(one.bytes)
    rate = "-" if one.bandwidth_bytes_per_s is None else f"{size(one.bandwidth_bytes_per_s)}/s"
    times = (duration(ns) for ns in (one.ns, one.wait_ns, one.transfer_ns))
    return (f"{one.calls:,}", *(carried,) * sized, *times, *(rate,) * sized)


def groups_note(job: JobSummary) -> str:
    """What is left out, and what the times are of."""
    over = len(job.groups) - MOST_GROUPS
    cut = f"The {MOST_GROUPS} of {len(job.groups):,} that hold ranks up longest. " if over > 0 else ""
    several = any(group.kind == "p2p" for group in job.groups)
    both = " Between two ranks, the sum of both sides." if several else ""
    mean = "Per step, mean" if job.steps else "Mean"
    return f"{cut}{mean} of the group's ranks.{both} Wait and transfer are exposed."


def stage_table(job: JobSummary) -> tuple[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
    """Heads, and for each stage of all pipelines its ranks, their mean compute and waiting, and the slowest of them."""
    by_stages: dict[tuple[int, ...], list[JobRank]] = defaultdict(list)
    ranks = {rank.rank: rank for rank in job.ranks}
    for pipeline in job.pipelines:
        for one in pipeline:
            by_stages[one.stages].append(ranks[one.rank])
    several = any(len(some) > 1 for some in by_stages.values())
    heads = ("ranks" if several else "rank", "compute", *("slowest",) * several, "waiting")
    rows = []
    for stages, some in sorted(by_stages.items()):
        slowest = max(some, key=lambda one: one.compute_ns)
        waits = [one.wait_ns for one in some if one.wait_ns is not None]
        cells = (
            ranks_told([one.rank for one in some], 4),
            duration(sum(one.compute_ns for one in some) / len(some)),
            *(f"{duration(slowest.compute_ns)} (rank {slowest.rank})",) * several,
            duration(sum(waits) / len(waits)) if waits else "-",
        )
        rows.append((f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}", cells))
    return heads, rows


RANK_COLUMNS = ("compute", "host", "waiting", "transfer", "others wait for it")


def rank_cells(one: JobRank) -> tuple[str, ...]:
    """How a rank spends its step, and how long others wait for it, together."""
    least = "≥ " * bool(one.unmatched_ns)
    waits = ["-" if ns is None else f"{least}{duration(ns)}" for ns in (one.wait_ns, one.transfer_ns)]
    caused = "-" if one.compute_late_ns is None else duration(one.awaited_ns)
    return (duration(one.compute_ns), duration(one.host_ns), *waits, caused)


def why_unmatched(one: JobUnmatched) -> str:
    """Why calls could not be matched, with the ranks that are missing."""
    if one.why is WhyUnmatched.NOT_RECORDED and one.missing:
        return f"not recorded: rank{'s' * (len(one.missing) > 1)} {ranks_told(one.missing)}"
    return WHY_UNMATCHED[one.why]


def clocks(job: JobSummary) -> str:
    """How exactly times of different ranks compare."""
    if not job.clock_error_ns:
        return ""
    return f"On the aligned clocks, ranks leave collectives {duration(job.clock_error_ns)} apart (median)."
