"""A job of many ranks in words: its ranks and groups, what its step waits for, and which rank it waits for."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np
from msgspec import Struct

from diagnose.contracts.job import JobGroup, JobRank, JobSummary
from diagnose.replay.job_path import JobPathKind, JobPathPart
from diagnose.reports.words import listed
from diagnose.trace.units import clipped, duration, share

MOST_TOLD = 3  # Parts of the critical path that a sentence names.
LEAST_PART = 0.005  # Of the step, for a part of the critical path that is named (our choice).
LITTLE = 0.01  # Of the step: ranks that wait for less are not said to lose by it (our choice).
EXPLAINS = 1 / 3  # Of the mean rank's waiting, for what a rank needs more to be said to cause it (our choice).

_COLLECTIVES = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
}
KINDS = {
    JobPathKind.COMPUTE: "compute",
    JobPathKind.HOST: "host",
    JobPathKind.TRANSFER: "transfers",
    JobPathKind.UNMATCHED: "calls that could not be matched",
    JobPathKind.UNEXPLAINED: "not explained by the recordings",
}
OWN = {JobPathKind.COMPUTE: "compute_ns", JobPathKind.HOST: "host_ns"}  # What ranks do by themselves.

OwnTimes = Counter[tuple[int, JobPathKind]]  # ns of a rank by itself.


def unit(job: JobSummary) -> str:
    """What the job's times refer to."""
    return "step" if job.steps else "recorded window"


def operation(name: str) -> str:
    """A collective as it is called in prose."""
    return next((words for start, words in _COLLECTIVES.items() if name.startswith(start)), clipped(name, 30))


def ranks_told(ranks: Sequence[int], most: int = 6) -> str:
    """Numbers of ranks: `0 to 7` of three or more in a row, else the first `most`: `0, 8, 16 and 5 more`."""
    if len(ranks) > 2 and all(b - a == 1 for a, b in pairwise(ranks)):
        return f"{ranks[0]} to {ranks[-1]}"
    more = f" and {len(ranks) - most:,} more" if len(ranks) > most else ""
    return ", ".join(map(str, ranks[:most])) + more


def rank_told(job: JobSummary, rank: int) -> str:
    """A rank, with its stages in a pipeline."""
    stages = next((one.stages for pipeline in job.pipelines for one in pipeline if one.rank == rank), ())
    return f"rank {rank} ({stages_told(stages)})" if stages else f"rank {rank}"


def stages_told(stages: Sequence[int]) -> str:
    """Numbers of stages: "stage 0", "stages 0, 4"."""
    return f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"


def group_label(one: JobGroup) -> str:
    """What runs in a group and the group's name; of a link its two ranks."""
    if one.kind == "p2p":
        return f"rank {one.ranks[0]} → rank {one.ranks[1]}"
    return ", ".join(filter(None, (operation(one.operation), _named(one.name))))


def group_place(job: JobSummary, one: JobGroup) -> str:
    """Which ranks are in a group; empty of a link, whose label names them."""
    return "" if one.kind == "p2p" else _members(job, one.ranks)


def _members(job: JobSummary, ranks: Sequence[int]) -> str:
    return "all ranks" if len(ranks) == len(job.ranks) else f"ranks {ranks_told(ranks)}"


def _named(name: str) -> str:
    """The name that the program gives a group; "" of one that torch.distributed gives by itself."""
    return clipped(name, 40) if name not in ("", "default_pg", "undefined") else ""


def part_told(job: JobSummary, part: JobPathPart) -> str:
    """What a part of the job's critical path waits for, as a phrase."""
    if part.what is JobPathKind.TRANSFER:
        if part.operation == "send":
            return f"transfer from rank {part.ranks[0]} to rank {part.ranks[1]}"
        who, named = _members(job, part.ranks), _named(part.group)
        return f"{operation(part.operation)} of {f'{named} ({who})' if named else who}"
    if part.rank is None:
        unrecorded = part.what is JobPathKind.UNMATCHED
        return f"{operation(part.operation)}, or ranks not recorded" if unrecorded else KINDS[part.what]
    what = f"{operation(part.operation)}, not matched" if part.what is JobPathKind.UNMATCHED else KINDS[part.what]
    return f"{rank_told(job, part.rank)}: {what}"


def _waited_for(job: JobSummary, part: JobPathPart) -> str:
    """What the job's step waits for in this part of its critical path, as a clause."""
    if part.rank is None and part.what is JobPathKind.UNMATCHED:
        return f"the {operation(part.operation)}, or for ranks that are not recorded"
    if part.rank is None:
        return f"the {part_told(job, part)}" if part.what is JobPathKind.TRANSFER else "what no recording explains"
    rank, _, stage = rank_told(job, part.rank).partition(" (")
    what = {
        **{kind: KINDS[kind] for kind in OWN},
        JobPathKind.UNMATCHED: f"{operation(part.operation)} that could not be matched",
    }.get(part.what, "time that no recording explains")
    return f"{rank}'s {what}" + (f" ({stage}" if stage else "")


def standing_out(job: JobSummary) -> OwnTimes:
    """By (rank, COMPUTE or HOST), the ns per step beyond the other ranks' median, of ranks that make others wait so.

    It is more than chance, lies on the critical path, and is EXPLAINS of the mean waiting or more, where that is known.
    Empty where ranks hardly wait."""
    waits, found = mean_wait_ns(job), Counter[tuple[int, JobPathKind]]()
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


def _own_on_path(job: JobSummary) -> OwnTimes:
    """By rank and kind, the ns of a rank's own work on the job's critical path."""
    found = Counter[tuple[int, JobPathKind]]()
    for one in job.critical_path:
        if one.rank is not None and one.what in OWN:
            found[one.rank, one.what] += one.ns
    return found


def is_common(part: JobPathPart, out: OwnTimes) -> bool:
    """Whether a part of the path is own time of a rank that does not stand out; `out`: as of `standing_out`."""
    return part.what in OWN and (part.rank, part.what) not in out


def mean_wait_ns(job: JobSummary) -> float | None:
    """Mean ns per step that a rank waits, of ranks of which it is known; None if it is known of none."""
    known = [rank.wait_ns for rank in job.ranks if rank.wait_ns is not None]
    return sum(known) / len(known) if known else None


def lost(job: JobSummary) -> str:
    """A sentence on how long ranks wait for each other."""
    waits, whole = mean_wait_ns(job), job.step_ns
    if waits is None:
        return "For whom ranks wait is not known: their collectives could not be matched."
    unknown = any(rank.unmatched_ns for rank in job.ranks)
    if waits < LITTLE * whole and not unknown:
        return f"Ranks hardly wait for each other: {duration(waits)} of {duration(whole)}, on average."
    waited = "at least " * unknown + duration(waits)
    return f"A rank waits {waited} of {duration(whole)} for others, on average ({share(waits, whole)})."


def awaited(job: JobSummary) -> str:
    """What the step waits for, the largest parts of its critical path in a sentence: ranks that stand out first."""
    out, common = standing_out(job), Counter[JobPathKind]()
    parts = list[tuple[bool, int, str]]()
    for one in job.critical_path:
        if is_common(one, out):
            common[one.what] += one.ns
        else:
            parts.append((one.what in OWN, one.ns, _waited_for(job, one)))
    for kind, ns in common.items():
        what = "compute" if kind is JobPathKind.COMPUTE else "host time"
        parts.append((False, ns, f"{what} in which no rank stands out"))
    large = [part for part in sorted(parts, reverse=True) if part[1] >= LEAST_PART * job.step_ns]
    shown = [f"{duration(ns)} for {what}" for _, ns, what in large[:MOST_TOLD]]
    return f"The {unit(job)} waits {listed(shown)}." if shown else ""


class Culprit(Struct, frozen=True):
    """The rank whose own time makes the step longer than other ranks' would."""

    rank: JobRank
    kind: JobPathKind  # COMPUTE or HOST.
    path_ns: int  # Of the critical path.


def culprit(job: JobSummary) -> Culprit | None:
    """The rank and kind that stand out most on the critical path; None if none does, or if waiting is not known."""
    out, on_path = standing_out(job), _own_on_path(job)
    if not out or mean_wait_ns(job) is None:
        return None
    rank, kind = max(out, key=lambda key: min(out[key], on_path[key]))
    return Culprit(next(one for one in job.ranks if one.rank == rank), kind, on_path[rank, kind])


def why(job: JobSummary) -> str:
    """In what the rank that the step waits for differs from the others; "" where it does not."""
    if (found := culprit(job)) is None:
        return ""
    own = OWN[found.kind]
    others = median(getattr(other, own) for other in job.ranks if other is not found.rank)
    does = "computes" if found.kind is JobPathKind.COMPUTE else "is on its host, without computing, for"
    takes = f"{duration(getattr(found.rank, own))}{' a step' * bool(job.steps)}"
    return f"{rank_told(job, found.rank.rank).capitalize()} {does} {takes}, the others {duration(others)} (median)."


def lead(job: JobSummary) -> list[str]:
    """The job in sentences: what it loses, what it waits for, and why."""
    return [text for text in (lost(job), awaited(job), why(job)) if text]


def clocks(job: JobSummary) -> str:
    """A sentence on how exactly clocks of ranks were aligned; empty if there is no error to tell."""
    if not job.clock_error_ns:
        return ""
    return f"On the aligned clocks, ranks leave collectives {duration(job.clock_error_ns)} apart (median)."
